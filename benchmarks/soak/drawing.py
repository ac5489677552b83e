"""The picture of a soak: memory, descriptors and goodput over time, with the faults."""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.soak.outcome import Outcome, soaked
from benchmarks.soak.trends import series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "validator": "tab:red",
    "s3": "tab:blue",
    "p2p": "tab:orange",
    "network": "tab:green",
    "p2pd": "tab:purple",
    "store": "tab:gray",
}


def draw(outcome: Outcome, file: Path) -> None:
    """Writes the picture as PNG."""
    import matplotlib as mpl  # noqa: PLC0415  # takes a second that the soak itself does not need

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  # as above

    figure, axes = plt.subplots(4, 1, figsize=(13, 14), sharex=True, layout="constrained")
    memory, descriptors, counted, rounds = axes
    _draw_series(outcome, memory, descriptors)
    _draw_rounds(outcome, counted, rounds)
    for axis in axes:
        for fault in outcome.faults:
            axis.axvline(_minute(outcome, fault.began_at_s), color="0.85", linewidth=0.8, zorder=0)
    for fault in outcome.faults:
        x = _minute(outcome, fault.began_at_s)
        counted.text(
            x, 0.02, f"{fault.kind} {fault.target}", transform=counted.get_xaxis_transform(),
            rotation=90, fontsize=6, va="bottom", ha="right", color="0.4",
        )  # fmt: skip
    rounds.set_xlabel("minutes")
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _minute(outcome: Outcome, at_s: float) -> float:
    return (at_s - outcome.samples_began_at_s) / 60


def _draw_series(outcome: Outcome, memory: "Axes", descriptors: "Axes") -> None:
    named = set()
    for process, series in series_of(outcome.samples).items():
        label = process.kind if process.kind not in named else None
        named.add(process.kind)
        minutes = [sample.time_s / 60 for sample in series]
        style: dict[str, Any] = {"color": _COLOURS[process.kind], "linewidth": 0.9, "alpha": 0.8}
        memory.plot(minutes, [s.anonymous_kib / 1024 for s in series], label=label, **style)
        descriptors.plot(minutes, [s.num_fds for s in series], **style)
    memory.set_ylabel("anonymous memory, MiB")
    memory.set_ylim(bottom=0)
    memory.legend(loc="upper left", ncols=6, fontsize=8)
    descriptors.set_ylabel("open descriptors")
    descriptors.set_ylim(bottom=0)


def _draw_rounds(outcome: Outcome, counted: "Axes", durations: "Axes") -> None:
    records = soaked(outcome)
    minutes = [_minute(outcome, r.closed_at_ms / 1000) for r in records]
    for kind in ("s3", "p2p"):
        keys = {outcome.peers[name] for name, one in outcome.kinds.items() if one == kind}
        if not keys:
            continue
        shares = [sum(e.peer in keys for e in r.counted) / len(keys) for r in records]
        counted.step(minutes, shares, where="mid", color=_COLOURS[kind], label=f"peers on {kind}")
    counted.set_ylabel("payloads counted / possible")
    counted.set_ylim(0, 1.05)
    counted.legend(loc="lower left", fontsize=8)
    gaps_s = [(b - a) * 60 for a, b in pairwise(minutes)]
    durations.plot(minutes[1:], gaps_s, color="black", linewidth=0.9, marker=".", markersize=3)
    durations.set_ylabel("round, seconds")
    durations.set_ylim(bottom=0)
