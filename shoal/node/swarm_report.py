"""What a swarm prints and draws at its end.

Guarantees: every figure comes from the nodes' event logs or from the files in the store; bytes are
counted on disk. matplotlib enters here and nowhere else.

Does not do: judge a run: it says whether the parameters are identical, and shows the rest.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from shoal.node.checkpoint import write_atomically
from shoal.node.swarm_events import NodeView, Report
from shoal.node.swarm_setup import SwarmFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = "report.png"
SUMMARY = "summary.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerSummary:
    """One peer's row."""

    name: str
    peer: str
    num_rounds: int
    num_counted: int
    first_loss: float
    last_loss: float
    gather_median_s: float
    gather_worst_s: float
    upload_bytes_per_s: float
    download_bytes_per_s: float
    communication_ratio: float
    relative_squared_error: float
    mean_ratio: float


def write_report(console: Console, folder: SwarmFolder, nodes: Sequence[NodeView]) -> bool:
    """Prints the table, draws the picture, writes summary.json.

    Returns:
        Whether all nodes hold identical parameters.
    """
    peers = [n for n in nodes if n.role == "peer" and n.reports]
    rows = [summarize(node) for node in peers]
    roots = {node.parameters_root for node in nodes}
    identical = len(roots) == 1 and "" not in roots
    sizes = payload_sizes(folder) or [n for node in nodes for n in node.published_bytes]
    _print_tables(console, rows)
    _print_bytes(console, folder, sizes)
    _print_losses(console, rows, nodes)
    if rows:
        draw(folder.root / PICTURE, nodes, folder.manifest.payload_bytes)
        console.print(f"picture: {folder.root / PICTURE}", highlight=False, soft_wrap=True)
    text = f"event logs: {folder.root}/nodes/*/state/events.jsonl"
    console.print(text, highlight=False, soft_wrap=True)
    if identical:
        text = f"parameters identical on all {len(nodes)} nodes: {next(iter(roots))}"
        console.print(text, style="bold green", highlight=False, soft_wrap=True)
    else:
        # Nodes that were stopped in different rounds have different parameters: nothing is wrong.
        style = "red" if all(node.finished for node in nodes) else ""
        for node in nodes:
            root = node.parameters_root or "not known (did not end cleanly)"
            text = f"{node.name}: after round {max(node.reports, default=0)} parameters {root}"
            console.print(text, style=style, highlight=False, soft_wrap=True)
    _write_summary(folder, rows, roots, sizes)
    return identical


def summarize(node: NodeView) -> PeerSummary:
    """One peer's figures over all its rounds."""
    reports = [node.reports[r] for r in sorted(node.reports)]
    losses = [x for r in reports if (x := number(r, "mean_loss")) is not None]
    latencies = [x for r in reports for x in values(r, "gather_latency_s")]
    downloads = [d for r in reports for d in _downloads(r)]
    upload_s = sum(number(r, "upload_s") or 0.0 for r in reports)
    return PeerSummary(
        name=node.name,
        peer=node.peer,
        num_rounds=len(reports),
        num_counted=sum(bool(r["counted"]) for r in reports),
        first_loss=losses[0] if losses else float("nan"),
        last_loss=losses[-1] if losses else float("nan"),
        gather_median_s=median(latencies) if latencies else 0.0,
        gather_worst_s=max(latencies, default=0.0),
        upload_bytes_per_s=_ratio(sum(number(r, "uploaded_bytes") or 0 for r in reports), upload_s),
        download_bytes_per_s=_ratio(
            sum(number(d, "num_bytes") or 0.0 for d in downloads),
            sum(number(d, "transfer_s") or 0.0 for d in downloads),
        ),
        communication_ratio=_ratio(
            sum(number(r, "exposed_communication_s") or 0.0 for r in reports),
            sum(number(r, "round_s") or 0.0 for r in reports),
        ),
        relative_squared_error=_mean(reports, "relative_squared_error"),
        mean_ratio=_mean(reports, "mean_ratio"),
    )


def payload_sizes(folder: SwarmFolder) -> list[int]:
    """Lengths in bytes of all payload files, where payloads are files of a store in the folder."""
    root = folder.root / "store"
    return [p.stat().st_size for p in sorted(root.glob("**/payloads/**/*")) if p.is_file()]


def number(report: Report, name: str) -> float | None:
    """A number of a report, None where it was not measured."""
    value = report.get(name)
    return float(value) if isinstance(value, int | float) else None


def values(report: Report, name: str) -> list[float]:
    """The numbers of a table of a report."""
    return [float(v) for v in _table(report, name).values() if isinstance(v, int | float)]


def _table(report: Report, name: str) -> dict[str, object]:
    value = report.get(name)
    return value if isinstance(value, dict) else {}


def _downloads(report: Report) -> list[Report]:
    return [v for v in _table(report, "downloads").values() if isinstance(v, dict)]


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0 else 0.0


def _mean(reports: Sequence[Report], name: str) -> float:
    found = [x for r in reports if (x := number(r, name)) is not None]
    return mean(found) if found else float("nan")


def _print_tables(console: Console, rows: Sequence[PeerSummary]) -> None:
    training = _table_of("training", "counted", "loss first", "loss last", "quant. error", "qv/v2")
    network = _table_of("network", "gather median", "gather worst", "up MB/s", "down MB/s", "share")
    for row in rows:
        name = f"{row.name} {row.peer[-6:]}"
        training.add_row(
            name,
            f"{row.num_counted} of {row.num_rounds}",
            f"{row.first_loss:.3f}",
            f"{row.last_loss:.3f}",
            f"{row.relative_squared_error:.5f}",
            f"{row.mean_ratio:.4f}",
        )
        network.add_row(
            name,
            f"{row.gather_median_s * 1000:.0f} ms",
            f"{row.gather_worst_s * 1000:.0f} ms",
            f"{row.upload_bytes_per_s / 1e6:.1f}",
            f"{row.download_bytes_per_s / 1e6:.1f}",
            f"{row.communication_ratio:.2%}",
        )
    console.print(training)
    console.print(network)
    console.print("share: part of the rounds' time spent on communication and nothing else")


def _table_of(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("peer", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _print_bytes(console: Console, folder: SwarmFolder, sizes: Sequence[int]) -> None:
    dense = 4 * sum(folder.manifest.sizes)
    expected = folder.manifest.payload_bytes
    same = "all" if set(sizes) <= {expected} else "NOT all"
    console.print(
        f"payloads as stored: {len(sizes)}, {same} of exactly {expected:,} bytes; the same "
        f"update as dense fp32: {dense:,} bytes, {dense / expected:.1f} times as many",
        highlight=False,
        soft_wrap=True,
    )


def _print_losses(console: Console, rows: Sequence[PeerSummary], nodes: Sequence[NodeView]) -> None:
    held_out = [
        x
        for n in nodes
        for r in sorted(n.reports)
        if (x := number(n.reports[r], "held_out_loss")) is not None
    ]
    if rows and held_out:
        console.print(
            f"training loss: {mean(r.first_loss for r in rows):.3f} in the first round, "
            f"{mean(r.last_loss for r in rows):.3f} in the last (mean of {len(rows)} peers); "
            f"held-out loss: {held_out[0]:.3f} to {held_out[-1]:.3f}",
            highlight=False,
            soft_wrap=True,
        )


def _write_summary(
    folder: SwarmFolder, rows: Sequence[PeerSummary], roots: set[str], sizes: Sequence[int]
) -> None:
    summary = {
        "run_id": folder.manifest.run_id.hex(),
        "parameters_roots": sorted(roots),
        "payload_bytes": folder.manifest.payload_bytes,
        "num_payloads": len(sizes),
        "dense_bytes": 4 * sum(folder.manifest.sizes),
        "peers": [{name: _finite(getattr(row, name)) for name in row.__slots__} for row in rows],
    }
    write_atomically(folder.root / SUMMARY, json.dumps(summary, indent=1).encode())


def _finite(value: object) -> object:
    """NaN is no JSON: what was not measured is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def draw(path: Path, nodes: Sequence[NodeView], payload_bytes: int) -> None:
    """Draws loss, gather latency, bandwidth and phases as one PNG.

    Args:
        path: where the picture goes.
        nodes: all nodes with their reports.
        payload_bytes: for the title.
    """
    import matplotlib as mpl  # noqa: PLC0415  # slow, and only needed at the end

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  # after the choice of the backend

    peers = [n for n in nodes if n.role == "peer" and n.reports]
    figure, axes = plt.subplots(2, 2, figsize=(12, 8), layout="constrained")
    _draw_loss(axes[0][0], peers, nodes)
    _draw_latency(axes[0][1], peers)
    _draw_bandwidth(axes[1][0], peers)
    _draw_phases(axes[1][1], peers)
    figure.suptitle(f"{len(peers)} peers, payloads of {payload_bytes:,} bytes")
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=110)
    temporary.replace(path)
    plt.close(figure)


def _series(node: NodeView, name: str) -> tuple[list[int], list[float]]:
    found = [(r, number(node.reports[r], name)) for r in sorted(node.reports)]
    points = [(r, x) for r, x in found if x is not None]
    return [r for r, _ in points], [x for _, x in points]


def _draw_loss(axes: "Axes", peers: Sequence[NodeView], nodes: Sequence[NodeView]) -> None:
    for node in peers:
        axes.plot(*_series(node, "mean_loss"), marker=".", linewidth=1, label=node.name)
    for node in nodes:
        if node.role == "validator":
            axes.plot(*_series(node, "held_out_loss"), "k--", label="held-out")
    axes.set(title="loss (mean over inner steps)", xlabel="round", ylabel="nats per token")
    axes.locator_params(axis="x", integer=True)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _draw_latency(axes: "Axes", peers: Sequence[NodeView]) -> None:
    rounds = sorted({r for n in peers for r in n.reports})
    samples = [
        [
            1000 * x
            for n in peers
            if r in n.reports
            for x in values(n.reports[r], "gather_latency_s")
        ]
        for r in rounds
    ]
    kept = [(r, s) for r, s in zip(rounds, samples, strict=True) if s]
    axes.plot([r for r, _ in kept], [median(s) for _, s in kept], marker=".", label="median")
    axes.plot([r for r, _ in kept], [max(s) for _, s in kept], marker=".", label="worst")
    axes.set(title="gather latency: announced to verified", xlabel="round", ylabel="ms")
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", integer=True)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _draw_bandwidth(axes: "Axes", peers: Sequence[NodeView]) -> None:
    rows = [summarize(node) for node in peers]
    places = list(range(len(rows)))
    up = [row.upload_bytes_per_s / 1e6 for row in rows]
    down = [row.download_bytes_per_s / 1e6 for row in rows]
    axes.bar([p - 0.2 for p in places], up, width=0.4, label="upload")
    axes.bar([p + 0.2 for p in places], down, width=0.4, label="download")
    axes.set_xticks(places, [row.name for row in rows])
    axes.set(title="bandwidth while transferring", ylabel="MB/s")
    axes.legend(fontsize=8)


def _draw_phases(axes: "Axes", peers: Sequence[NodeView]) -> None:
    left = [0.0] * len(peers)
    for name in ("train", "stage", "upload", "wait", "apply"):
        widths = [_total(node, f"{name}_s") for node in peers]
        axes.barh([node.name for node in peers], widths, left=left, label=name)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(title="where the time went", xlabel="seconds, all rounds")
    axes.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.12))


def _total(node: NodeView, name: str) -> float:
    return sum(number(report, name) or 0.0 for report in node.reports.values())
