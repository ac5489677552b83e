"""How many bytes this node has moved in the calendar month (UTC), against its own quotas.

Guarantees: the sum is in one small file of the state folder, written whole or not at all; after a
sudden end no more is missing than what moved since the last `save`, and the reader of the file
takes nothing it did not write: a torn or foreign one is put aside by the next `save` and the month
begins at 0, which `trouble` says. A clock that goes back never gives a used quota back; a new month
begins at 0.

Counts what stores and the inbox move, without the few per cent of headers, TLS and lost packets
that a provider's bill has on top. Does not stop anything (see `allowance.check_quota`).
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Final

from shoal.node.checkpoint import write_atomically
from shoal.storage.allowance import Direction

FILE_NAME: Final = "monthly-use.json"
WARN_RATIO: Final = 0.8
_FORMAT: Final = "shoal/monthly-use/1"
_MAX_FILE_BYTES: Final = 4096
_MAX_BYTES: Final = 1 << 62
_WORDS: Final[dict[Direction, str]] = {"up": "upload", "down": "download"}


@dataclass(frozen=True, kw_only=True, slots=True)
class MonthSums:
    """What has moved in one month."""

    month: str
    """As in 2026-11."""
    up: int = 0
    down: int = 0

    def of(self, direction: Direction) -> int:
        """One direction's bytes."""
        return self.up if direction == "up" else self.down


class MonthlyUse:
    """Safe to use from several threads.

    Args:
        file: Where the sums are kept; None: nowhere.
        now_s: The wall clock, unix seconds.
        up_bytes: The quota of what is sent; 0: none.
        down_bytes: The quota of what is received; 0: none.

    Attributes:
        trouble: What was wrong with the file; empty: nothing.
    """

    def __init__(
        self, file: Path | None, now_s: Callable[[], float], *, up_bytes: int, down_bytes: int
    ) -> None:
        self._file = file
        self._now_s = now_s
        self._quotas: dict[Direction, int] = {"up": up_bytes, "down": down_bytes}
        self._lock = Lock()
        self._saving = Lock()
        self._said: set[tuple[str, Direction, float]] = set()
        self.trouble = ""
        self._is_aside = False
        self._sums = self._load() or MonthSums(month=month_of(now_s()))
        self._saved = self._sums

    def add(self, direction: Direction, num_bytes: int) -> None:
        """Add bytes that have moved."""
        with self._lock:
            self._turn()
            sums = self._sums
            self._sums = MonthSums(
                month=sums.month,
                up=sums.up + num_bytes * (direction == "up"),
                down=sums.down + num_bytes * (direction == "down"),
            )

    def sums(self) -> MonthSums:
        """The current month's."""
        with self._lock:
            self._turn()
            return self._sums

    def quota(self, direction: Direction) -> int:
        """The most of one direction in a month; 0: any number."""
        return self._quotas[direction]

    def exhausted(self, direction: Direction) -> str:
        """Why no more bulk may move in this direction; empty if it may."""
        quota = self._quotas[direction]
        sums = self.sums()
        if not quota or sums.of(direction) < quota:
            return ""
        word = _WORDS[direction]
        return (
            f"E_QUOTA the month's {word} quota is used up: {sums.of(direction):,} of {quota:,} "
            f"bytes ([bandwidth] monthly_{word}_bytes); a new month begins at {_end_of(sums.month)}"
        )

    def notices(self) -> list[str]:
        """What should be said now and was not: once a month at 80 % and once at 100 %."""
        found = []
        for direction, quota in self._quotas.items():
            sums = self.sums()
            for ratio in (1.0, WARN_RATIO):
                mark = (sums.month, direction, ratio)
                if not quota or mark in self._said or sums.of(direction) < ratio * quota:
                    continue
                self._said |= {mark, (sums.month, direction, WARN_RATIO)}
                found.append(self.exhausted(direction) or self._nearly(direction, sums))
        return found

    def _nearly(self, direction: Direction, sums: MonthSums) -> str:
        quota = self._quotas[direction]
        return (
            f"{sums.of(direction) / quota:.0%} of the month's {_WORDS[direction]} quota of "
            f"{quota:,} bytes is used; a new month begins at {_end_of(sums.month)}"
        )

    @property
    def num_unsaved_bytes(self) -> int:
        """What a sudden end would lose."""
        with self._lock:
            now, saved = self._sums, self._saved
        if now.month != saved.month:
            return now.up + now.down + 1
        return now.up - saved.up + now.down - saved.down

    def save(self) -> None:
        """Write the sums, if they have changed.

        Raises:
            OSError: As the operating system says; the old file is untouched.
        """
        with self._saving:
            sums = self.sums()
            if self._file is None or sums == self._saved:
                return
            if self.trouble and not self._is_aside:
                # Only now: doctor, which looks without saving, must not eat the node's warning.
                with contextlib.suppress(OSError):
                    self._file.replace(self._file.with_name(self._file.name + ".bad"))
                self._is_aside = True
            plain = {"format": _FORMAT, "month": sums.month, "up": sums.up, "down": sums.down}
            write_atomically(self._file, json.dumps(plain).encode())
            with self._lock:
                self._saved = sums

    def _turn(self) -> None:
        """Begin a new month; under the lock."""
        month = month_of(self._now_s())
        if month > self._sums.month:
            self._sums = MonthSums(month=month)
        elif _following(month) < self._sums.month:
            # The clock was far ahead once: what was used stays used, in the month that it is.
            self._sums = MonthSums(month=month, up=self._sums.up, down=self._sums.down)

    def _load(self) -> MonthSums | None:
        if self._file is None:
            return None
        try:
            with self._file.open("rb") as file:
                return _read(file.read(_MAX_FILE_BYTES + 1))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.trouble = f"{self._file}: {error}; the month's sums begin at 0"
            return None


def month_of(now_s: float) -> str:
    """The calendar month in UTC, as in 2026-11; sorts by time."""
    return f"{datetime.fromtimestamp(now_s, UTC):%Y-%m}"


def _following(month: str) -> str:
    year, number = int(month[:4]), int(month[5:])
    return f"{year + number // 12:04}-{number % 12 + 1:02}"


def _end_of(month: str) -> str:
    return f"{_following(month)}-01 00:00 UTC"


def _read(raw: bytes) -> MonthSums:
    """The sums in a file.

    Raises:
        ValueError: It is no such file.
    """
    if len(raw) > _MAX_FILE_BYTES:
        raise ValueError(f"more than {_MAX_FILE_BYTES} bytes")
    try:
        plain = json.loads(raw)
    except RecursionError as error:
        raise ValueError("no table of sums") from error
    if not isinstance(plain, dict) or plain.get("format") != _FORMAT:
        raise ValueError("no table of sums")
    month = plain.get("month")
    if not isinstance(month, str) or len(month) != len("2026-11"):
        raise ValueError("a month expected")
    datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    return MonthSums(month=month, up=_sum_in(plain, "up"), down=_sum_in(plain, "down"))


def _sum_in(plain: dict[str, object], name: str) -> int:
    value = plain.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_BYTES:
        raise ValueError(f"a sum expected as {name}")
    return value
