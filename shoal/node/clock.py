"""The wall clock of a node, as a value that is passed in.

Guarantees: the only place in the node that reads wall-clock time. Does not do: set the clock; an
offset from the configuration corrects a machine whose clock cannot be set.
"""

import time
from dataclasses import dataclass
from typing import Protocol

MAX_CLOCK_ERROR_S = 10.0
"""A node whose clock is further off than this does not take part."""


class Clock(Protocol):
    """Seconds since the epoch."""

    def now_s(self) -> float:
        """The current time, unix seconds."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clock plus a fixed correction."""

    offset_s: float = 0.0

    def now_s(self) -> float:
        """The corrected time, unix seconds."""
        return time.time() + self.offset_s
