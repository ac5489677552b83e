"""The event log: JSON lines, one event each, appended as they happen.

Guarantees: a line is written in one call and flushed, so that a reader never sees half an event
before its newline; a log that cannot be written any more (disk full) is dropped with one message on
standard error and never stops training. Subscribers get the same events, in the same order, also
when the file is gone.

Does not do: rotate. Fields of peers are codes, hex digits and numbers, so nothing needs escaping
beyond JSON's own.
"""

import json
import math
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from shoal.node.telemetry.names import EventName
from shoal.node.telemetry.round_report import RoundReport

Subscriber = Callable[[Mapping[str, object]], None]
"""Called in the thread that emits, one event at a time; must be quick, must not raise or emit."""


class EventLog:
    """Appends events to one file; safe to use from several threads."""

    def __init__(self, path: Path, now_s: Callable[[], float]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        # A crash or a full disk may have left a line without its end; the next one begins anew.
        is_torn = path.exists() and not _ends_whole(path)
        self._file = path.open("a", encoding="ascii")
        if is_torn:
            self._file.write("\n")
        self._now_s = now_s
        self._lock = threading.Lock()
        self._broken = False
        self._subscribers: list[Subscriber] = []

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Calls back with every later event; gives the function that ends it."""
        with self._lock:
            self._subscribers.append(callback)

        def unsubscribe() -> None:
            with self._lock:
                if callback in self._subscribers:
                    self._subscribers.remove(callback)

        return unsubscribe

    def emit(self, event: EventName, **fields: object) -> None:
        """Appends one event with the time and `fields`."""
        plain = {"event": event.value, "time_s": self._now_s(), **_plain(fields)}
        line = json.dumps(plain)
        with self._lock:
            if not self._broken:
                self._append(line)
            for callback in self._subscribers:
                callback(plain)

    def _append(self, line: str) -> None:
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
            self._subscribers.clear()
            # A full disk has been reported; what could not be written is still in the buffer.
            with suppress(OSError):
                self._file.close()


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 1, 0))
        return file.read(1) in (b"", b"\n")


def _plain(fields: dict[str, object]) -> dict[str, object]:
    """NaN and infinity are no JSON: they become null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in fields.items()
    }
