"""What is known of a swarm from its nodes' event logs.

Guarantees: everything shown (live, table, picture) is derived from these logs; a half-written last
line is left for the next reading; a line that is no event is skipped and counted.

Does not do: draw.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from shoal.node.telemetry.names import EventName

Report = dict[str, object]


@dataclass(slots=True, kw_only=True)
class NodeView:
    """One node as its log tells it."""

    name: str
    log: Path
    role: str = ""
    peer: str = ""
    phase: str = "starting"
    round_id: int = 0
    step: int = 0
    loss: float | None = None
    parameters_root: str = ""
    """Of the last clean stop; empty while running."""
    finished: bool = False
    reports: dict[int, Report] = field(default_factory=dict)
    """By round; a replay after a restart does not replace the first report."""
    rejected: dict[str, int] = field(default_factory=dict)
    published_bytes: list[int] = field(default_factory=list)
    """Lengths of the payloads that this node published."""
    num_skipped: int = 0
    """Lines that were no event."""
    _offset: int = 0

    def read_new(self) -> list[Report]:
        """Takes in what was appended since the last call; returns new round reports."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._offset)
                raw = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _ = raw.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        new = []
        for line in whole.splitlines():
            event = _parse(line)
            try:
                is_new = self._take(event)
            except KeyError:
                event, is_new = {}, False
            self.num_skipped += not event
            if is_new:
                new.append(event)
        return new

    def _take(self, event: Report) -> bool:
        """Updates the view; True for a round report that is new."""
        name = event.get("event")
        if name == EventName.NODE_STARTED:
            self.role, self.peer = str(event["role"]), str(event["peer"])
            self.phase, self.parameters_root, self.finished = "starting", "", False
        elif name == EventName.ROUND_OPENED:
            self.phase, self.step = "training" if self.role == "peer" else "gathering", 0
            self.round_id = _int(event, "round_id")
        elif name == EventName.INNER_STEP:
            self.step, self.loss = _int(event, "step"), _number(event, "loss")
        elif name == EventName.PAYLOAD_STAGED:
            self.phase = "uploading"
        elif name == EventName.PAYLOAD_PUBLISHED:
            self.phase = "waiting"
            self.published_bytes.append(_int(event, "num_bytes"))
        elif name == EventName.PAYLOAD_REJECTED:
            code = str(event["code"])
            self.rejected[code] = self.rejected.get(code, 0) + 1
        elif name == EventName.NODE_STOPPED:
            self.phase = "finished" if event["finished"] else "stopped"
            self.finished = bool(event["finished"])
            self.parameters_root = str(event["parameters_root"])
        elif name == EventName.ROUND:
            return self._take_report(event)
        return False

    def _take_report(self, event: Report) -> bool:
        round_id = _int(event, "round_id")
        self.round_id = round_id
        if round_id in self.reports:
            return False
        self.reports[round_id] = event
        return True


def _parse(line: bytes) -> Report:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _int(event: Report, name: str) -> int:
    value = event[name]
    return value if isinstance(value, int) else 0


def _number(event: Report, name: str) -> float | None:
    value = event.get(name)
    return float(value) if isinstance(value, int | float) else None
