"""Time that passed because we kept to our own cap: nobody's fault, and no part of any time limit.

Guarantees: waits of parallel transfers count once; `excused_timeout` ends what takes longer than
its limit without them. Does not wait itself (see `allowance`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock


class Waits:
    """How long somebody has waited for our own cap; parallel waits count once.

    Args:
        outer: Is told of every wait too.
    """

    __slots__ = ("_lock", "_num_waiting", "_outer", "_since_s", "_sum_s")

    def __init__(self, outer: "Waits | None" = None) -> None:
        self._outer = outer
        self._lock = Lock()
        self._num_waiting = 0
        self._since_s = 0.0
        self._sum_s = 0.0

    @property
    def total_s(self) -> float:
        """Seconds so far, a wait that is under way included."""
        with self._lock:
            running_s = time.monotonic() - self._since_s if self._num_waiting else 0.0
            return self._sum_s + running_s

    def begin(self) -> None:
        """A wait begins."""
        with self._lock:
            if not self._num_waiting:
                self._since_s = time.monotonic()
            self._num_waiting += 1
        if self._outer is not None:
            self._outer.begin()

    def end(self) -> None:
        """It has ended."""
        with self._lock:
            self._num_waiting -= 1
            if not self._num_waiting:
                self._sum_s += time.monotonic() - self._since_s
        if self._outer is not None:
            self._outer.end()


_waits: ContextVar[Waits | None] = ContextVar("shoal_storage_waits", default=None)


@contextmanager
def collecting_waits() -> Iterator[Waits]:
    """Collect how long the calls inside wait for our own cap.

    Yields:
        The sum, growing.
    """
    waits = Waits(_waits.get())
    token = _waits.set(waits)
    try:
        yield waits
    finally:
        _waits.reset(token)


@asynccontextmanager
async def excused_timeout(limit_s: float) -> AsyncIterator[None]:
    """Like `asyncio.timeout`, without the time that passes in waits for our own cap.

    Args:
        limit_s: For everything else, seconds.

    Yields:
        Nothing.

    Raises:
        TimeoutError: The time is over.
    """
    loop = asyncio.get_running_loop()
    with collecting_waits() as waits:
        async with asyncio.timeout(None) as timeout:
            watching = _Excusing(waits, timeout, loop)
            watching.look_in(limit_s)
            try:
                yield
            finally:
                watching.stop()


class _Excusing:
    """Ends a timeout when its time is over but for the waits."""

    def __init__(
        self, waits: Waits, timeout: asyncio.Timeout, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._waits = waits
        self._timeout = timeout
        self._loop = loop
        self._excused_s = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def look_in(self, seconds: float) -> None:
        self._handle = self._loop.call_later(seconds, self._look)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _look(self) -> None:
        more_s = self._waits.total_s - self._excused_s
        if more_s > 0:
            self._excused_s += more_s
            self.look_in(more_s)
        else:
            self._timeout.reschedule(self._loop.time())


@dataclass(slots=True)
class Waited:
    """One wait's time, told to whoever collects waits; a context manager.

    Attributes:
        seconds: How long it took; 0 if it never began.
    """

    seconds: float = 0.0
    _collector: Waits | None = field(default_factory=_waits.get)
    _since_s: float | None = None

    def __enter__(self) -> "Waited":
        return self

    def begin(self) -> None:
        """The wait begins now, unless it has begun."""
        if self._since_s is None:
            self._since_s = time.monotonic()
            if self._collector is not None:
                self._collector.begin()

    def __exit__(self, *_: object) -> None:
        if self._since_s is not None:
            self.seconds = time.monotonic() - self._since_s
            if self._collector is not None:
                self._collector.end()
