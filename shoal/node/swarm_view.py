"""A swarm's live progress in the terminal (Rich).

Guarantees: on a terminal one table is redrawn; elsewhere (a file, a pipe, CI) one line per round is
printed, so that logs stay readable. Does not do: know processes.
"""

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.node.swarm_events import NodeView, Report
from shoal.protocol.manifest import RunManifest


class SwarmView:
    """Draws; use it as a context manager."""

    def __init__(self, console: Console, manifest: RunManifest, nodes: Sequence[NodeView]) -> None:
        self._console = console
        self._manifest = manifest
        self._nodes = nodes
        self._started_s = time.monotonic()
        self._live: Live | None = None
        self._printed_round = 0

    def __enter__(self) -> "SwarmView":
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(self._draw(), console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.update(self._draw(), refresh=True)
            self._live.stop()

    def update(self, new_reports: Sequence[Report]) -> None:
        """Shows the present state; call it after the views have read their logs."""
        if self._live is not None:
            self._live.update(self._draw())
            return
        for report in new_reports:
            round_id = int(str(report["round_id"]))
            if report["role"] == "validator" and round_id > self._printed_round:
                self._printed_round = round_id
                self._console.print(self._round_line(report), markup=False, highlight=False)

    def say(self, message: str) -> None:
        """One line above the table."""
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def _round_line(self, report: Report) -> str:
        held_out = report.get("held_out_loss")
        loss = f"held-out loss {held_out:.3f}" if isinstance(held_out, float) else "-"
        return (
            f"[{time.monotonic() - self._started_s:5.0f} s] round {report['round_id']:>3} of "
            f"{self._manifest.run.num_rounds}: {report['num_counted']} payloads counted, {loss}, "
            f"state {str(report['state_hash'])[:12]}"
        )

    def _draw(self) -> Group:
        total = self._manifest.run.num_rounds
        done = max((max(n.reports, default=0) for n in self._nodes), default=0)
        elapsed_s = time.monotonic() - self._started_s
        head = Text(f"{self._manifest.run.name}: round {done} of {total}, {elapsed_s:.0f} s")
        table = Table(expand=False)
        for column in ("node", "round", "phase", "inner steps", "loss", "held-out", "counted"):
            table.add_column(column, justify="left" if column in ("node", "phase") else "right")
        table.add_column("refused")
        for node in self._nodes:
            table.add_row(*self._row(node))
        # A bar alone ends without a new line; a row of a table does not.
        bar = Table.grid()
        bar.add_row(ProgressBar(total=total, completed=done, width=60))
        return Group(head, bar, table)

    def _row(self, node: NodeView) -> tuple[RenderableType, ...]:
        steps = self._manifest.training.inner_steps
        trains = node.role != "validator"
        last = node.reports[max(node.reports)] if node.reports else {}
        held_out = last.get("held_out_loss")
        counted = sum(bool(r["counted"]) for r in node.reports.values())
        return (
            node.name,
            str(node.round_id),
            node.phase,
            ProgressBar(total=steps, completed=node.step, width=16) if trains else "",
            f"{node.loss:.3f}" if node.loss is not None else "",
            f"{held_out:.3f}" if isinstance(held_out, float) else "",
            f"{counted}/{len(node.reports)}" if trains else "",
            ", ".join(f"{code} x{n}" for code, n in sorted(node.rejected.items())),
        )
