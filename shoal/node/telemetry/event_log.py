"""The event log: JSON lines, one event each, appended as they happen.

Guarantees: a line is written in one call and flushed, so that a reader never sees half an event
before its newline; a log that cannot be written any more (disk full) is dropped with one message on
standard error and never stops training.

Does not do: rotate. Fields of peers are codes, hex digits and numbers, so nothing needs escaping
beyond JSON's own.
"""

import json
import math
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from shoal.node.telemetry.names import EventName
from shoal.node.telemetry.round_report import RoundReport


class EventLog:
    """Appends events to one file; safe to use from several threads."""

    def __init__(self, path: Path, now_s: Callable[[], float]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="ascii")
        self._now_s = now_s
        self._lock = threading.Lock()
        self._broken = False

    def emit(self, event: EventName, **fields: object) -> None:
        """Appends one event with the time and `fields`."""
        line = json.dumps({"event": event.value, "time_s": self._now_s(), **_plain(fields)})
        with self._lock:
            if self._broken:
                return
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except OSError as error:
                self._broken = True
                print(f"event log dropped: {error.strerror}", file=sys.stderr)  # noqa: T201  # the log itself is gone

    def round(self, report: RoundReport) -> None:
        """Appends a round's report."""
        self.emit(EventName.ROUND, **asdict(report))

    def close(self) -> None:
        """Closes the file; later events are dropped."""
        with self._lock:
            self._broken = True
            self._file.close()


def _plain(fields: dict[str, object]) -> dict[str, object]:
    """NaN and infinity are no JSON: they become null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in fields.items()
    }
