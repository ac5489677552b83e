"""`shoal status`: one terminal screen about one node or a whole swarm, from event logs alone.

Guarantees: works while nodes run, after they ended, with an empty folder, with half lines and with
files that cannot be read: what is missing is said on the screen. Texts of peers are printed as
text. The table fits into 80 columns, with fewer columns into 40.

Does not do: ask a node anything, or write.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.node.web.board import Agreement, Board
from shoal.node.web.event_fields import number, rate
from shoal.node.web.history import NodeHistory
from shoal.node.web.log_folder import LogFolder, Status

WATCH_S = 1.0
_COLUMNS = {
    **dict.fromkeys(("node", "round", "phase"), 0),
    "heard": 72,
    "loss": 0,
    **dict.fromkeys(("counted", "gather", "share"), 72),
    **dict.fromkeys(("down", "up", "refused"), 116),
}
"""Each column, and how wide a terminal must be for it."""
_MIN_ROWS = 3
_FRAME_LINES = 14
_MAX_NOTICES = 3
_BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


def show_status(path: Path, console: Console, *, watch: bool, as_json: bool) -> None:
    """Prints the status once, or until Ctrl+C.

    Raises:
        ConfigError: there is no such folder.
    """
    reader = LogFolder(path)
    if as_json:
        console.out(to_json(reader.read(), time.time), highlight=False)
    elif watch:
        _watch(reader, console, lambda: time.sleep(WATCH_S))
    else:
        console.print(draw(reader.read(), console, time.time()))


def _watch(reader: LogFolder, console: Console, wait: Callable[[], None]) -> None:
    """Redraws until `wait` is interrupted."""
    try:
        if console.is_dumb_terminal:
            # Nothing can be redrawn there: every screen below the last one.
            while True:
                console.print(draw(reader.read(), console, time.time()))
                wait()
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(draw(reader.read(), console, time.time()), refresh=True)
                wait()
    except KeyboardInterrupt:
        return


def to_json(status: Status, now_s: Callable[[], float]) -> str:
    """The same JSON as the page's /api/state, with what could not be read."""
    state = json.loads(Board(status.histories, now_s).snapshot())
    return json.dumps({**state, "path": str(status.path), "troubles": list(status.troubles)})


def draw(status: Status, console: Console, now_s: float) -> RenderableType:
    """One screen."""
    parts: list[RenderableType] = [_head(status)]
    if not status.histories:
        parts.append(Text(f"no event log under {status.path} yet", style="yellow"))
    else:
        parts.append(_table(status, console, now_s))
    if len(status.histories) == 1:
        parts += _curves(status.histories[0], console)
        use = status.histories[0].bandwidth
        if use is not None:
            parts.append(Text.assemble(("bandwidth      ", "dim"), use.line()))
    parts += _refusals(status.histories)
    parts += [Text(trouble, style="yellow") for trouble in status.troubles[:_MAX_NOTICES]]
    return Group(*parts)


def _head(status: Status) -> Text:
    facts = status.facts
    run_id = next((h.run_id for h in status.histories if h.run_id), "")
    done = max((p.round_id for h in status.histories if (p := h.points.last)), default=0)
    head = Text(facts.name or "shoal", style="bold")
    if run_id:
        head.append(f"  run {run_id[:16]}", style="dim")
    of = f" of {facts.num_rounds}" if facts.num_rounds else ""
    head.append(f"  round {done}{of} applied" if done else "  no rounds yet", style="not bold")
    agreement = status.agreement
    if agreement is not None:
        head.append(f"\nstate {agreement.state_hash[:32]} ", style="not bold")
        head.append_text(_equal(agreement))
    return head


def _equal(agreement: Agreement) -> Text:
    if agreement.of == 1:
        return Text(f"after round {agreement.round_id}", style="dim")
    style = "green" if agreement.equal == agreement.of else "bold red"
    return Text(
        f"equal on {agreement.equal} of {agreement.of} nodes after round {agreement.round_id}",
        style=style,
    )


def _table(status: Status, console: Console, now_s: float) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    shown = [name for name, width in _COLUMNS.items() if console.width >= width]
    for name in shown:
        justify: JustifyMethod = "left" if name in ("node", "phase") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    num_rows = max(_MIN_ROWS, console.height - _FRAME_LINES)
    for history in status.histories[:num_rows]:
        cells = dict(zip(_COLUMNS, _cells(history, now_s), strict=True))
        table.add_row(*(Text(cells[name]) for name in shown))
    hidden = len(status.histories) - num_rows
    if hidden > 0:
        table.caption = f"and {hidden} more nodes; --json has all"
    return table


def _cells(history: NodeHistory, now_s: float) -> tuple[str, ...]:
    now, totals, last = history.now, history.totals, history.points.last
    step = f" {now.step}" if now.phase == "training" and now.step else ""
    trains = history.role != "validator"
    downloads = [p for p in history.peers.all() if p.transfer_s > 0]
    down = rate(sum(p.num_bytes for p in downloads), sum(p.transfer_s for p in downloads))
    return (
        history.name,
        str(now.round_id or "-"),
        now.phase + step,
        "-" if now.heard_at_s is None else _seconds(max(now_s - now.heard_at_s, 0.0)),
        _loss(history),
        f"{totals.num_counted}/{totals.num_rounds}" if trains else "-",
        _gather(last.gather_median_s, last.gather_worst_s) if last else "-",
        _percent(history.communication_ratio()),
        _rate(down),
        _rate(rate(totals.uploaded_bytes, totals.upload_s)),
        str(sum(history.rejected.values())),
    )


def _loss(history: NodeHistory) -> str:
    """The newest one: a peer's own, a validator's on held-out data."""
    for point in reversed(history.points.kept):
        loss = point.mean_loss if point.mean_loss is not None else point.held_out_loss
        if loss is not None:
            return f"{loss:.3f}"
    return "-"


def _gather(median_s: float | None, worst_s: float | None) -> str:
    if median_s is None or worst_s is None:
        return "-"
    if worst_s < 1:
        return f"{median_s * 1000:.3g}/{worst_s * 1000:.3g} ms"
    return f"{median_s:.3g}/{worst_s:.3g} s"


def _curves(history: NodeHistory, console: Console) -> list[RenderableType]:
    """Small pictures of one node's past, where the terminal has the characters."""
    if not console.encoding.lower().startswith("utf"):
        return []
    points = history.points.kept
    rows = {
        "training loss": [p.mean_loss for p in points],
        "held-out loss": [p.held_out_loss for p in points],
        "worst gather": [p.gather_worst_s for p in points],
    }
    shown = {name: [x for x in row if x is not None] for name, row in rows.items()}
    room = max(console.width - 18, 8)
    return [
        Text.assemble((f"{name:15}", "dim"), (_sparkline(values[-room:]), "cyan"))
        for name, values in shown.items()
        if len(values) > 1
    ]


def _sparkline(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in values)


def _refusals(histories: Sequence[NodeHistory]) -> list[RenderableType]:
    codes: dict[str, int] = {}
    for history in histories:
        for code, count in history.rejected.items():
            codes[code] = codes.get(code, 0) + count
    lines: list[RenderableType] = []
    if codes:
        text = ", ".join(f"{code} x{count}" for code, count in sorted(codes.items()))
        lines.append(Text(f"refused payloads: {text}", style="red"))
    notices = [notice for history in histories for notice in history.notices]
    notices.sort(key=lambda notice: number(notice, "time_s") or 0.0)
    for notice in notices[-_MAX_NOTICES:]:
        reason = ": ".join(str(notice[key]) for key in ("code", "detail") if notice[key])
        who = f" {str(notice['peer'])[-6:]}" if notice["peer"] else ""
        line = Text(f"round {notice['round_id']}{who}: {reason}", style="dim")
        line.truncate(100, overflow="ellipsis")
        lines.append(line)
    return lines


def _seconds(duration_s: float) -> str:
    if duration_s < 1:
        return "<1 s"
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    size, unit = next(u for u in units if duration_s >= u[0])
    return f"{duration_s / size:.0f} {unit}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2%}"


def _rate(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{bytes_per_s / 1e6:.2f} MB/s"
