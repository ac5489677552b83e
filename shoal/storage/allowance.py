"""Who pays for the bytes that a store is about to move, and the wait that it takes.

A store asks with `spend` (or `spend_in_thread`) for every block that crosses the link. Whose bytes
they are travels in a context variable, as the notes of `progress` do, so that the `ObjectStore`
interface stays as it is and worker threads pay for the right transfer. Nothing is asked for by
stores on this machine's disk or in memory: their bytes cross no link.

Guarantees: without a `Bandwidth` in the context nothing waits and nothing is counted. A wait for
our own cap is nobody's fault: `spend` says how long it took, and tells `waits`.

Does not decide how much may move (`pacing` does) or keep the month's sum (a `Book` does).
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from shoal.storage.errors import StorageError
from shoal.storage.pacing import Kind, RateLimit
from shoal.storage.waits import Waited

Direction = Literal["up", "down"]

CONTROL_KINDS: Final = frozenset({"announcement", "record", "list", "head"})
"""What keeps a node in step; everything else is bulk."""
_SLICE_S: Final = 0.25
"""A thread looks so often whether its wait is still wanted."""


class QuotaReachedError(StorageError):
    """This node's own monthly quota is used up: no more bulk in this direction.

    Attributes:
        direction: Which one.
    """

    def __init__(self, message: str, key: str, direction: Direction) -> None:
        super().__init__(message, key)
        self.args = (message, key, direction)
        self.direction = direction


class Book(Protocol):
    """Keeps sums of what has moved; called from any thread."""

    def add(self, direction: Direction, num_bytes: int) -> None:
        """Add bytes."""
        ...

    def exhausted(self, direction: Direction) -> str:
        """Why no more bulk may move in this direction; empty if it may."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Bandwidth:
    """What this node may take of its link.

    Attributes:
        up: The cap on what it sends; None: none.
        down: The cap on what it receives; None: none.
        book: Who keeps the sums; None: nobody.
    """

    up: RateLimit | None = None
    down: RateLimit | None = None
    book: Book | None = None

    def rate(self, direction: Direction) -> RateLimit | None:
        """The cap of one direction."""
        return self.up if direction == "up" else self.down


@dataclass(frozen=True, slots=True)
class _Payer:
    bandwidth: Bandwidth | None
    kind: Kind


_payer: ContextVar[_Payer] = ContextVar("shoal_storage_payer", default=_Payer(None, "bulk"))  # noqa: B039  # frozen


@contextmanager
def paid_by(bandwidth: Bandwidth | None, kind: Kind) -> Iterator[None]:
    """Charge everything that is called inside to this account.

    Args:
        bandwidth: The node's; None: nothing is capped or counted.
        kind: Control is never behind bulk, also where nothing is capped.

    Yields:
        Nothing.
    """
    token = _payer.set(_Payer(bandwidth, kind))
    try:
        yield
    finally:
        _payer.reset(token)


def is_control() -> bool:
    """Whether what is done now belongs to the control plane."""
    return _payer.get().kind == "control"


def block_bytes(direction: Direction, usual_bytes: int) -> int:
    """How many bytes to move at a time.

    Args:
        direction: Up or down.
        usual_bytes: Without a cap.

    Returns:
        The usual number, or fewer so that a cap really shapes the link.
    """
    bandwidth = _payer.get().bandwidth
    rate = None if bandwidth is None else bandwidth.rate(direction)
    return usual_bytes if rate is None else min(usual_bytes, rate.block_bytes)


def check_quota(direction: Direction, key: str) -> None:
    """Go on only if the month's quota allows another bulk transfer; control always may.

    Args:
        direction: Up or down.
        key: The object, for the message.

    Raises:
        QuotaReachedError: It is used up; what is under way is not stopped.
    """
    payer = _payer.get()
    if payer.bandwidth is None or payer.bandwidth.book is None or payer.kind == "control":
        return
    reason = payer.bandwidth.book.exhausted(direction)
    if reason:
        raise QuotaReachedError(reason, key, direction)


def count(direction: Direction, num_bytes: int) -> None:
    """Count bytes that another process moves and paces.

    Args:
        direction: Up or down.
        num_bytes: How many.
    """
    bandwidth = _payer.get().bandwidth
    if bandwidth is not None and bandwidth.book is not None:
        bandwidth.book.add(direction, num_bytes)


async def spend(direction: Direction, num_bytes: int) -> float:
    """Count bytes and wait until they may move.

    Args:
        direction: Up: before they are sent. Down: after they came, before more are read.
        num_bytes: How many.

    Returns:
        The seconds waited.
    """
    payer = _payer.get()
    if payer.bandwidth is None:
        return 0.0
    count(direction, num_bytes)
    rate = payer.bandwidth.rate(direction)
    return 0.0 if rate is None else await wait_for(rate, payer.kind, num_bytes)


def spend_in_thread(direction: Direction, num_bytes: int, check: Callable[[], None]) -> float:
    """The same in a worker thread.

    Args:
        direction: As for `spend`.
        num_bytes: As for `spend`.
        check: Called several times a second; raises when the wait is no longer wanted.

    Returns:
        The seconds waited.
    """
    payer = _payer.get()
    if payer.bandwidth is None:
        return 0.0
    count(direction, num_bytes)
    rate = payer.bandwidth.rate(direction)
    if rate is None:
        return 0.0
    with Waited() as waited:
        for piece in _pieces(num_bytes, rate.block_bytes):
            ticket = rate.ask(payer.kind, piece)
            while (wait_s := rate.wait_s(ticket)) > 0:
                waited.begin()
                check()
                time.sleep(min(wait_s, _SLICE_S))
    return waited.seconds


async def wait_for(rate: RateLimit, kind: Kind, num_bytes: int) -> float:
    """Wait until bytes may move.

    Args:
        rate: The cap.
        kind: Whose bytes.
        num_bytes: How many; asked for block by block.

    Returns:
        The seconds waited.
    """
    with Waited() as waited:
        for piece in _pieces(num_bytes, rate.block_bytes):
            ticket = rate.ask(kind, piece)
            while (wait_s := rate.wait_s(ticket)) > 0:
                waited.begin()
                await asyncio.sleep(wait_s)
    return waited.seconds


def _pieces(num_bytes: int, most_bytes: int) -> Iterator[int]:
    for at in range(0, num_bytes, most_bytes):
        yield min(most_bytes, num_bytes - at)
