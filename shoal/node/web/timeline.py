"""One round as it goes on: when each peer's payload was announced, downloaded and verified.

Guarantees: built from events alone, bounded in rows, times in seconds since the round opened.

Does not do: guess. When a download ended is known while the round runs only if the event says how
long it took (`download_s`); else it is filled in from the round's report.
"""

from dataclasses import asdict, dataclass, field

from shoal.node.telemetry.names import EventName
from shoal.node.web.event_fields import Event, number, seconds, table, text, whole

MAX_ROWS = 64
_SHORT_CHARS = 6


@dataclass(slots=True, kw_only=True)
class Arrival:
    """One peer's payload."""

    peer: str
    announced_s: float | None = None
    downloaded_s: float | None = None
    verified_s: float | None = None
    rejected_s: float | None = None
    code: str = ""
    """Why it was refused; empty if it was not."""


@dataclass(slots=True, kw_only=True)
class Timeline:
    """One round."""

    round_id: int = 0
    opened_at_s: float = 0.0
    staged_s: float | None = None
    """This node's own payload was made."""
    published_s: float | None = None
    closed_s: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    """Durations by phase, once the round is over."""
    arrivals: dict[str, Arrival] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Takes in an event of this round."""
        name, at_s = event.get("event"), self._since(event)
        if name == EventName.PAYLOAD_STAGED:
            self.staged_s = at_s
        elif name == EventName.PAYLOAD_PUBLISHED:
            self.published_s = at_s
        elif name == EventName.PAYLOAD_ACCEPTED:
            self._accept(event, at_s)
        elif name == EventName.PAYLOAD_REJECTED:
            row = self._row(text(event, "peer", max_chars=80))
            row.rejected_s, row.code = at_s, text(event, "code", max_chars=40)

    def _accept(self, event: Event, at_s: float) -> None:
        row = self._row(text(event, "peer", max_chars=80))
        row.announced_s = max(at_s - seconds(event, "latency_s"), 0.0)
        row.verified_s = at_s
        self._downloaded(row, number(event, "download_s"))

    def close(self, report: Event) -> None:
        """Takes in the round's report."""
        self.closed_s = self._since(report)
        names = ("train_s", "stage_s", "upload_s", "wait_s", "apply_s")
        self.phases = {name: seconds(report, name) for name in names}
        downloads = table(report, "downloads")
        for row in self.arrivals.values():
            download = downloads.get(row.peer[-_SHORT_CHARS:])
            if row.downloaded_s is None and isinstance(download, dict):
                self._downloaded(row, number(download, "transfer_s"))

    @staticmethod
    def _downloaded(row: Arrival, download_s: float | None) -> None:
        if download_s is not None and row.announced_s is not None and row.verified_s is not None:
            row.downloaded_s = min(row.announced_s + download_s, row.verified_s)

    def _since(self, event: Event) -> float:
        return max(seconds(event, "time_s") - self.opened_at_s, 0.0)

    def _row(self, peer: str) -> Arrival:
        """The peer's row; beyond the limit a row that nobody sees."""
        if len(self.arrivals) >= MAX_ROWS and peer not in self.arrivals:
            return Arrival(peer=peer)
        return self.arrivals.setdefault(peer, Arrival(peer=peer))

    @property
    def slowest(self) -> str:
        """Whose payload was verified last; empty if nobody's was."""
        done = [row for row in self.arrivals.values() if row.verified_s is not None]
        return max(done, key=lambda row: row.verified_s or 0.0).peer if done else ""

    def plain(self) -> dict[str, object]:
        """For JSON."""
        rows = [asdict(row) for row in self.arrivals.values()]
        return {
            "round_id": self.round_id,
            "opened_at_s": self.opened_at_s,
            "staged_s": self.staged_s,
            "published_s": self.published_s,
            "closed_s": self.closed_s,
            "phases": self.phases,
            "arrivals": rows,
            "slowest": self.slowest,
        }


def opened(event: Event) -> Timeline:
    """The timeline of a round that just opened."""
    return Timeline(round_id=whole(event, "round_id"), opened_at_s=seconds(event, "time_s"))
