"""Look-ups in the DHT that many polls share.

Guarantees: one look-up per name at a time, so many at once in all, not again before a pause is
over; whoever waits for them waits a bounded time, and those that take longer go on for the next
one who asks. What is found is handed to `take`. Does not know what a name means.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from shoal.storage.errors import StorageError

MAX_AT_ONCE: Final = 16
MAX_NAMES: Final = 8192

_log = logging.getLogger(__name__)

NameT = TypeVar("NameT", bound=Hashable)


class LookUps(Generic[NameT]):
    """The look-ups of one kind.

    Args:
        look: Looks one name up and keeps what it finds.
        pause_s: How long a name is left alone after it was looked up.
        now_s: A monotonic clock.
    """

    def __init__(
        self,
        look: Callable[[NameT], Awaitable[None]],
        pause_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._pause_s = pause_s
        self._now_s = now_s
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._ended_at_s: dict[NameT, float] = {}
        self._running: dict[NameT, asyncio.Task[None]] = {}
        self._failed: set[NameT] = set()

    async def refresh(self, names: Iterable[NameT], wait_s: float) -> bool:
        """Look up those whose pause is over, and wait for them a little.

        Args:
            names: What is wanted.
            wait_s: The longest wait.

        Returns:
            Whether at least one of them has been looked up, now or within its pause.
        """
        wanted = tuple(names)
        for name in wanted:
            if name not in self._running and self._is_due(name):
                self._running[name] = asyncio.create_task(self._run(name))
        running = [self._running[name] for name in wanted if name in self._running]
        if running:
            await asyncio.wait(running, timeout=wait_s)
        return any(name in self._ended_at_s and name not in self._failed for name in wanted)

    def close(self) -> None:
        """End all look-ups."""
        for task in self._running.values():
            task.cancel()

    def _is_due(self, name: NameT) -> bool:
        ended_at_s = self._ended_at_s.get(name)
        return ended_at_s is None or self._now_s() >= ended_at_s + self._pause_s

    async def _run(self, name: NameT) -> None:
        try:
            async with self._slots:
                await self._look(name)
            self._failed.discard(name)
        except StorageError as error:
            self._failed.add(name)
            _log.debug("looking up %s: %s", name, error)
        finally:
            if len(self._ended_at_s) >= MAX_NAMES:
                self._ended_at_s.clear()
                self._failed.clear()
            self._ended_at_s[name] = self._now_s()
            self._running.pop(name, None)
