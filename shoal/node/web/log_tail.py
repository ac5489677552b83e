"""Reads an event log that somebody else writes.

Guarantees: a half-written last line is left for the next reading; a line that is no event is
counted and skipped; of a long log only the last `MAX_READ_BYTES` are read; a log that was replaced
by a shorter one is read again from its beginning; one that cannot be read gives a reason, not an
error.

Does not do: wait or watch.
"""

import json
from pathlib import Path

from shoal.node.web.event_fields import Event

MAX_READ_BYTES = 32 << 20


class LogTail:
    """One log file, read as it grows."""

    def __init__(self, path: Path, max_read_bytes: int = MAX_READ_BYTES) -> None:
        self.path = path
        self.num_bad_lines = 0
        self.trouble = ""
        """Why the file cannot be read; empty if it can or is not there yet."""
        self._max_read_bytes = max_read_bytes
        self._offset = 0

    def read_new(self) -> list[Event]:
        """The events since the last call, oldest first."""
        try:
            raw = self._read()
            self.trouble = ""
        except FileNotFoundError:
            return []
        except OSError as error:
            self.trouble = error.strerror or "cannot be read"
            return []
        found = [_parse(line) for line in raw.splitlines() if line.strip()]
        self.num_bad_lines += sum(event is None for event in found)
        return [event for event in found if event is not None]

    def _read(self) -> bytes:
        """Whole lines only."""
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            start = 0 if size < self._offset else self._offset
            skipped = size - start > self._max_read_bytes
            start = file.seek(max(start, size - self._max_read_bytes))
            raw = file.read(self._max_read_bytes)
        whole, newline, _ = raw.rpartition(b"\n")
        self._offset = start + len(whole) + len(newline)
        # Of the line that the limit cut in two the end is left.
        return whole.partition(b"\n")[2] if skipped else whole


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
