"""How many bytes may move now: one direction of a capped link, shared by control plane and bulk.

Two token buckets. Control earns `reserved_bytes_per_s`, bulk the rest of the cap. What one side
earns beyond its bucket goes to the other; and control, when it has too little, takes what bulk has
left over. So each side may use the whole cap while the other is silent, and control waits for
nothing but its own earlier bytes, however many bulk transfers queue.

Guarantees: within any window of t seconds no more than `bytes_per_s * t + burst_bytes` are allowed,
if no single ask is larger than `block_bytes`; asks of one kind are served in their order, so that
transfers which ask block by block share the rate equally; nobody starves. Safe to use from several
threads.

Does not sleep (see `allowance`), and does not know what moves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final, Literal

Kind = Literal["control", "bulk"]

MIN_RESERVED_BYTES_PER_S: Final = 16 * 1024
"""Announcements and lists of a round pass through this, whatever the cap."""
MIN_CAP_BYTES_PER_S: Final = 2 * MIN_RESERVED_BYTES_PER_S
_BLOCKS_PER_S: Final = 16
_MIN_BLOCK_BYTES: Final = 2 * 1024
_MAX_BLOCK_BYTES: Final = 256 * 1024
_EXACT_BYTES: Final = 1e-3
"""Less than this is a rounding error."""


def reserved_rate(bytes_per_s: float, control_ratio: float) -> float:
    """What a cap keeps for the control plane.

    Args:
        bytes_per_s: The cap.
        control_ratio: The share that was asked for, 0 to 1.

    Returns:
        Bytes per second: the share, at least `MIN_RESERVED_BYTES_PER_S`, at most half the cap.
    """
    return min(max(bytes_per_s * control_ratio, MIN_RESERVED_BYTES_PER_S), bytes_per_s / 2)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the queue of one kind."""

    kind: Kind
    position: float
    """Bytes asked for by this kind up to and with this ask."""


class RateLimit:
    """One direction of a link.

    Args:
        bytes_per_s: The cap.
        reserved_bytes_per_s: What control has for itself; the share of 5 % if None.
        now_s: A clock in seconds that does not go back.

    Attributes:
        bytes_per_s: The cap.
        reserved_bytes_per_s: The control plane's part of it.
        block_bytes: The most that one ask should have.
        burst_bytes: What may move at once after a silence.
    """

    def __init__(
        self,
        bytes_per_s: float,
        *,
        now_s: Callable[[], float],
        reserved_bytes_per_s: float | None = None,
    ) -> None:
        if reserved_bytes_per_s is None:
            reserved_bytes_per_s = reserved_rate(bytes_per_s, 0.05)
        if not 0 < reserved_bytes_per_s < bytes_per_s:
            raise ValueError(f"{reserved_bytes_per_s} of {bytes_per_s} bytes/s cannot be reserved")
        self.bytes_per_s = bytes_per_s
        self.reserved_bytes_per_s = reserved_bytes_per_s
        block_bytes = min(max(bytes_per_s / _BLOCKS_PER_S, _MIN_BLOCK_BYTES), _MAX_BLOCK_BYTES)
        self.block_bytes = int(block_bytes)
        self._now_s = now_s
        self._lock = Lock()
        self._refilled_at_s = now_s()
        self._rates: dict[Kind, float] = {
            "control": reserved_bytes_per_s,
            "bulk": bytes_per_s - reserved_bytes_per_s,
        }
        size_bytes = 2.0 * self.block_bytes
        self._sizes: dict[Kind, float] = {"control": size_bytes, "bulk": size_bytes}
        self.burst_bytes = sum(self._sizes.values())
        # Below zero: so much is promised to those who wait.
        self._levels: dict[Kind, float] = dict(self._sizes)
        self._asked: dict[Kind, float] = {"control": 0.0, "bulk": 0.0}

    def ask(self, kind: Kind, num_bytes: int) -> Ticket:
        """Queue for bytes; what is asked for is spent, whether it moves or not.

        Args:
            kind: Whose bytes.
            num_bytes: How many, at most `block_bytes`.

        Returns:
            The place in the queue, for `wait_s`.
        """
        with self._lock:
            self._refill()
            self._levels[kind] -= num_bytes
            self._asked[kind] += num_bytes
            self._lend()
            return Ticket(kind, self._asked[kind])

    def wait_s(self, ticket: Ticket) -> float:
        """How long to wait before asking here again.

        Args:
            ticket: From `ask`.

        Returns:
            Seconds; 0: the bytes may move.
        """
        with self._lock:
            self._refill()
            kind = ticket.kind
            # Whoever asked later has no part in this one's wait.
            later = self._asked[kind] - ticket.position
            missing_bytes = -(self._levels[kind] + later)
            return 0.0 if missing_bytes <= _EXACT_BYTES else missing_bytes / self._rates[kind]

    def _refill(self) -> None:
        now_s = self._now_s()
        passed_s = max(now_s - self._refilled_at_s, 0.0)
        self._refilled_at_s = now_s
        for kind, rate in self._rates.items():
            self._levels[kind] += rate * passed_s
        self._spill("control", "bulk")
        self._lend()
        self._spill("bulk", "control")

    def _spill(self, source: Kind, target: Kind) -> None:
        """What does not fit into a bucket goes to the other; what fits into neither is lost."""
        levels, sizes = self._levels, self._sizes
        over_bytes = levels[source] - sizes[source]
        if over_bytes > 0:
            levels[source] = sizes[source]
            levels[target] += over_bytes
            if target == "control":
                levels[target] = min(levels[target], sizes[target])

    def _lend(self) -> None:
        """Control in need takes what bulk has left over."""
        levels = self._levels
        lent_bytes = min(-levels["control"], levels["bulk"])
        if lent_bytes > 0:
            levels["control"] += lent_bytes
            levels["bulk"] -= lent_bytes
