"""The order in which sources are asked for one object.

Sources are asked in turn, and each goes on where the last one stopped. One that gives no sign of
life within `hedging.PAUSE_S` is not waited for: the next is asked beside it, and the first sign of
life (an answer, bytes) decides who goes on; the others are dropped. One that does not have the
object, or sent wrong bytes, is not asked again. One that broke off after it gave bytes is asked
again at once, behind all others; one that gave none, after a pause; one that was dropped, after a
longer one; all that until the time is over. Which source sent wrong bytes is known only if it was
the only one: after a mixed failure the sources are tried without mixing.

Guarantees: an attempt without bytes is followed by a pause or by another source, one with bytes
shortens what is missing: nobody is asked in a tight circle. It ends at its time limit.

Does not know sockets: `ask` does one attempt.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from shoal.node.network.connection import ChunkSink
from shoal.node.network.downloads import Download, MixedBytesError, Source
from shoal.node.network.errors import PeerUnavailableError, WrongBytesError
from shoal.node.network.hedging import PAUSE_S as HEDGE_S
from shoal.node.network.hedging import end_all
from shoal.storage.errors import ObjectNotFoundError, ObjectSizeError, StorageError
from shoal.storage.progress import note_retry

PAUSE_S: Final = 0.5
DROPPED_PAUSE_S: Final = 15.0
"""Of a source that was silent while another answered: as long as a dial may take."""

AskSource = Callable[[Source, int, float, ChunkSink], Awaitable[None]]
"""Source, offset, seconds left, taker of chunks: gets the rest of the object from that source. A
chunk without bytes is a sign of life."""
MoreSources = Callable[[], Awaitable[Sequence[Source]]]
"""Finds more sources; called once, when all that are known have been asked."""


class _Turn:
    """A source: when it may be asked, and how it does while it is."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.ready_at_s = 0.0
        self.num_asked = 0
        self.num_bytes = 0
        self.is_dropped = False


class Fetching:
    """One object's attempts.

    Args:
        download: What has come so far.
        sources: The best first.
        ask: Does one attempt.
        more: Finds more sources when these are not enough; None: there are none.
    """

    def __init__(
        self,
        download: Download,
        sources: Sequence[Source],
        ask: AskSource,
        more: MoreSources | None = None,
    ) -> None:
        self._download = download
        self._known: set[Source] = set()
        self._turns: list[_Turn] = []
        self._ask = ask
        self._more = more
        self._running: dict[asyncio.Future[None], _Turn] = {}
        self._finding: asyncio.Future[Sequence[Source]] | None = None
        self._chosen: _Turn | None = None
        self._asked_at_s = self._ends_at_s = 0.0
        self._last_error: StorageError = PeerUnavailableError("there is no source", "")
        self._add(sources)

    async def run(self, timeout_s: float) -> None:
        """Try until it is done.

        Args:
            timeout_s: For all of it.

        Raises:
            StorageError: Why the last source failed; PeerUnavailableError where the time is over.
        """
        self._ends_at_s = _now_s() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._run()
        except TimeoutError as error:
            text = f"not fetched within {timeout_s:.0f} s: {self._last_error}"
            raise PeerUnavailableError(text, "") from error
        finally:
            await end_all(self._tasks())

    async def _run(self) -> None:
        while self._turns or self._running or self._finding or self._more:
            if self._chosen is None:
                self._begin_next()
            running = self._tasks()
            wait_s = self._wait_s()
            if not running:
                await asyncio.sleep(wait_s or 0.0)
                continue
            done, _ = await asyncio.wait(
                running, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            if self._finding is not None and self._finding in done:
                self._take_more(self._finding)
            ended = [self._end(one) for one in done if one in self._running]
            if any(ended):
                return
        raise self._last_error

    # Any: attempts and a finder have different results, and a Future is invariant in its own.
    def _tasks(self) -> set[asyncio.Future[Any]]:
        finders = () if self._finding is None else (self._finding,)
        return {*self._running, *finders}

    def _begin_next(self) -> None:
        """Ask the next source, unless the last one was asked only just now."""
        now_s = _now_s()
        if self._running and now_s < self._asked_at_s + HEDGE_S:
            return
        ready = [turn for turn in self._turns if turn.ready_at_s <= now_s]
        new = [turn for turn in ready if not turn.num_asked]
        if not new and self._more is not None:
            self._finding, self._more = asyncio.ensure_future(self._more()), None
        for turn in (new or ready)[:1]:
            self._turns.remove(turn)
            turn.num_asked += 1
            turn.num_bytes, turn.is_dropped = 0, False
            self._asked_at_s = now_s
            self._running[asyncio.ensure_future(self._attempt(turn))] = turn

    def _wait_s(self) -> float | None:
        """How long until another one may be asked; None: until one of those ends."""
        if self._chosen is not None or not (self._turns or self._more):
            return None
        now_s = _now_s()
        at_s = now_s if self._more else min(turn.ready_at_s for turn in self._turns)
        if self._running:
            at_s = max(at_s, self._asked_at_s + HEDGE_S)
        return max(0.0, at_s - now_s)

    async def _attempt(self, turn: _Turn) -> None:
        download = self._download

        def take(data: bytes) -> None:
            if self._chosen is None and not turn.is_dropped:
                self._choose(turn)
            if self._chosen is turn and data:
                turn.num_bytes += len(data)
                download.take(data)

        left_s = self._ends_at_s - _now_s()
        try:
            await self._ask(turn.source, download.offset_for(turn.source), left_s, take)
        except PeerUnavailableError:
            # What goes wrong after the last byte does not matter.
            if self._chosen is not turn or not download.is_whole:
                raise
        take(b"")
        if self._chosen is turn:
            download.finish()

    def _choose(self, turn: _Turn) -> None:
        """This one goes on, the others are dropped."""
        self._chosen = turn
        self._download.begin(turn.source)
        for task, other in self._running.items():
            if other is not turn:
                other.is_dropped = True
                task.cancel()

    def _end(self, task: asyncio.Future[None]) -> bool:
        """Judge an attempt that is over; whether the object is there."""
        turn = self._running.pop(task)
        if self._chosen is turn:
            self._chosen = None
        if turn.is_dropped:
            self._again(turn, DROPPED_PAUSE_S)
            return False
        try:
            task.result()
        except (ObjectNotFoundError, ObjectSizeError, WrongBytesError) as error:
            self._last_error = error
            if isinstance(error, MixedBytesError):
                self._again(turn, 0.0)
        except PeerUnavailableError as error:
            self._last_error = error
            self._again(turn, 0.0 if turn.num_bytes else PAUSE_S)
        else:
            return True
        note_retry()
        if not turn.num_bytes or turn not in self._turns:
            self._end_long_pauses()
        return False

    def _again(self, turn: _Turn, pause_s: float) -> None:
        turn.ready_at_s = _now_s() + pause_s
        # Another one would begin from nothing.
        goes_on = turn.num_bytes and self._download.is_unmixed
        self._turns.insert(0 if goes_on else len(self._turns), turn)

    def _end_long_pauses(self) -> None:
        """Who answered is no better than those who were silent meanwhile."""
        for turn in self._turns:
            turn.ready_at_s = min(turn.ready_at_s, _now_s() + PAUSE_S)

    def _take_more(self, finding: asyncio.Future[Sequence[Source]]) -> None:
        self._finding = None
        try:
            found = finding.result()
        except StorageError as error:
            self._last_error = error
            return
        self._add(found)

    def _add(self, sources: Sequence[Source]) -> None:
        new = [source for source in dict.fromkeys(sources) if source not in self._known]
        self._known.update(new)
        self._turns += [_Turn(source) for source in new]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
