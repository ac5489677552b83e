"""One node as its events tell it: the single source of page, metrics and status screen.

Guarantees: any event, known, unknown or damaged, is taken without an exception; what is kept is
bounded; after a restart the same log gives the same history; another run in the same log starts a
new one.

Does not do: read files or clocks.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import asdict, dataclass, field

from shoal.node.telemetry.names import EventName
from shoal.node.web.bandwidth_use import BandwidthUse, read_use
from shoal.node.web.event_fields import Event, flag, number, text, whole
from shoal.node.web.peers import Peers
from shoal.node.web.round_points import RoundPoint, RoundPoints
from shoal.node.web.timeline import Timeline, opened
from shoal.protocol.errors import ErrorCode

MAX_NOTICES = 12
OTHER_CODE = "OTHER"
"""Stands for every code that is no ErrorCode: a label takes no foreign text."""
_CODES = frozenset(code.value for code in ErrorCode)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What the manifest says, for those who have it."""

    name: str = ""
    num_rounds: int = 0
    inner_steps: int = 0
    roster: Collection[str] | None = None


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over all rounds of the log."""

    num_rounds: int = 0
    num_counted: int = 0
    num_void: int = 0
    num_accepted: int = 0
    num_warnings: int = 0
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0
    upload_s: float = 0.0
    round_s: float = 0.0
    exposed_communication_s: float = 0.0
    tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Now:
    """What the node is doing."""

    phase: str = "starting"
    round_id: int = 0
    step: int = 0
    step_loss: float | None = None
    heard_at_s: float | None = None
    """Time of the last event."""
    finished: bool = False
    parameters_root: str = ""


@dataclass(slots=True)
class NodeHistory:
    """Takes one node's events, oldest first."""

    name: str
    facts: RunFacts = field(default_factory=RunFacts)
    peer: str = ""
    role: str = ""
    run_id: str = ""
    now: Now = field(default_factory=Now)
    totals: Totals = field(default_factory=Totals)
    points: RoundPoints = field(default_factory=RoundPoints)
    rejected: dict[str, int] = field(default_factory=dict)
    """Refused payloads by code, at most one key per ErrorCode and one more."""
    notices: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))
    """The last refusals and warnings."""
    timeline: Timeline | None = None
    last_timeline: Timeline | None = None
    bandwidth: BandwidthUse | None = None
    _peers: Peers | None = None

    @property
    def peers(self) -> Peers:
        """The others."""
        if self._peers is None:
            self._peers = Peers(self.facts.roster)
        return self._peers

    def restart(self) -> None:
        """What was going on when the log was last written is over; what was done stays."""
        self.now = Now(round_id=self.now.round_id, heard_at_s=self.now.heard_at_s)
        self.timeline = None

    def take(self, event: Event) -> RoundPoint | None:
        """Takes one event; gives the new point if it was the report of a new round."""
        name = text(event, "event")
        self.now.heard_at_s = number(event, "time_s") or self.now.heard_at_s
        if name == EventName.ROUND:
            return self._close_round(event)
        if name == EventName.NODE_STARTED:
            self._start(event)
        elif name == EventName.ROUND_OPENED:
            self._open_round(event)
        elif name == EventName.INNER_STEP:
            self.now.step, self.now.step_loss = whole(event, "step"), number(event, "loss")
        elif name == EventName.NODE_STOPPED:
            self._stop(event)
        else:
            self._take_small(name, event)
        return None

    def _take_small(self, name: str, event: Event) -> None:
        if self.timeline is not None and whole(event, "round_id") == self.timeline.round_id:
            self.timeline.take(event)
        if name == EventName.BANDWIDTH:
            self.bandwidth = read_use(event)
        elif name == EventName.PAYLOAD_STAGED:
            self.now.phase = "uploading"
        elif name == EventName.PAYLOAD_PUBLISHED:
            self.now.phase = "waiting"
        elif name == EventName.PAYLOAD_REJECTED:
            code = text(event, "code")
            code = code if code in _CODES else OTHER_CODE
            self.rejected[code] = self.rejected.get(code, 0) + 1
        if name in (EventName.PAYLOAD_REJECTED, EventName.RECORD_REJECTED, EventName.WARNING):
            self._notice(name, event)

    def _notice(self, name: str, event: Event) -> None:
        self.totals.num_warnings += name == EventName.WARNING
        self.notices.append(
            {
                "event": name,
                "time_s": number(event, "time_s"),
                "round_id": whole(event, "round_id"),
                "peer": text(event, "peer", max_chars=80),
                "code": text(event, "code", max_chars=40),
                "detail": text(event, "detail") or text(event, "message"),
            }
        )

    def _start(self, event: Event) -> None:
        run_id = text(event, "run_id", max_chars=64)
        if self.run_id not in ("", run_id):
            self._forget()
        self.run_id = run_id
        self.peer, self.role = text(event, "peer", max_chars=80), text(event, "role", max_chars=20)
        self.now.round_id = whole(event, "round_id")
        self.restart()

    def _forget(self) -> None:
        self.totals, self.points, self._peers = Totals(), RoundPoints(), None
        self.rejected, self.timeline, self.last_timeline = {}, None, None
        self.notices.clear()

    def _open_round(self, event: Event) -> None:
        self.now.phase = "gathering" if self.role == "validator" else "training"
        self.now.round_id, self.now.step = whole(event, "round_id"), 0
        self.timeline = opened(event)

    def _close_round(self, report: Event) -> RoundPoint | None:
        self.now.round_id = whole(report, "round_id")
        self.now.phase = "catching up" if flag(report, "replayed") else "between"
        timeline, self.timeline = self.timeline, None
        point = self.points.take(report)
        if point is None:
            return None
        if timeline is not None and timeline.round_id == point.round_id:
            timeline.close(report)
            self.last_timeline = timeline
        self.peers.take(report)
        self._add(point)
        return point

    def _add(self, point: RoundPoint) -> None:
        totals = self.totals
        totals.num_rounds += 1
        totals.num_counted += point.counted
        totals.num_void += point.void
        totals.num_accepted += point.num_accepted
        totals.uploaded_bytes += point.uploaded_bytes
        totals.downloaded_bytes += point.downloaded_bytes
        totals.upload_s += point.upload_s
        totals.round_s += point.round_s
        totals.exposed_communication_s += point.exposed_communication_s
        totals.tokens += point.tokens

    def _stop(self, event: Event) -> None:
        self.now.finished = flag(event, "finished")
        self.now.phase = "finished" if self.now.finished else "stopped"
        self.now.parameters_root = text(event, "parameters_root", max_chars=64)
        self.timeline = None

    def communication_ratio(self) -> float | None:
        """Exposed communication over all rounds' time."""
        total_s = self.totals.round_s
        return self.totals.exposed_communication_s / total_s if total_s > 0 else None

    def plain(self) -> dict[str, object]:
        """Everything but the points, for JSON."""
        return {
            "name": self.name,
            "peer": self.peer,
            "role": self.role,
            "run_id": self.run_id,
            "run_name": self.facts.name,
            "num_rounds": self.facts.num_rounds,
            "inner_steps": self.facts.inner_steps,
            "now": asdict(self.now),
            "totals": {**asdict(self.totals), "communication_ratio": self.communication_ratio()},
            "bandwidth": None if self.bandwidth is None else asdict(self.bandwidth),
            "rejected": dict(sorted(self.rejected.items())),
            "notices": list(self.notices),
            "peers": self.peers.plain(),
            "timeline": None if self.timeline is None else self.timeline.plain(),
            "last_timeline": None if self.last_timeline is None else self.last_timeline.plain(),
        }
