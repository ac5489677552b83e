"""The order in which sources are asked for one object.

Each source is asked in turn and goes on where the last one stopped. One that does not have the
object, or sent wrong bytes, is not asked again; one that is busy or away is, after a pause, until
the time is over. Which source sent wrong bytes is known only if it was the only one: after a mixed
failure the sources are tried without mixing.

Does not know sockets: `ask` does one attempt.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from shoal.node.network.connection import ChunkSink
from shoal.node.network.downloads import Download, Source
from shoal.node.network.errors import PeerUnavailableError, WrongBytesError
from shoal.storage.errors import ObjectNotFoundError, ObjectSizeError, StorageError
from shoal.storage.progress import note_retry

PAUSE_S: Final = 0.5

AskSource = Callable[[Source, int, float, ChunkSink], Awaitable[None]]
"""Source, offset, seconds left, taker of chunks: gets the rest of the object from that source."""


class Fetching:
    """One object's attempts.

    Args:
        download: What has come so far.
        sources: The best first.
        ask: Does one attempt.
    """

    def __init__(self, download: Download, sources: tuple[Source, ...], ask: AskSource) -> None:
        self._download = download
        self._sources = list(dict.fromkeys(sources))
        self._ask = ask
        self._last_error: StorageError = PeerUnavailableError("there is no source", "")

    async def run(self, timeout_s: float) -> None:
        """Try until it is done.

        Args:
            timeout_s: For all of it.

        Raises:
            StorageError: Why the last source failed; PeerUnavailableError where the time is over.
        """
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + timeout_s
        while self._sources:
            for source in tuple(self._sources):
                left_s = ends_at_s - loop.time()
                if left_s <= 0:
                    text = f"not fetched within {timeout_s:.0f} s: {self._last_error}"
                    raise PeerUnavailableError(text, "") from self._last_error
                if await self._try(source, left_s):
                    return
                note_retry()
            await asyncio.sleep(min(PAUSE_S, max(0.0, ends_at_s - loop.time())))
        raise self._last_error

    async def _try(self, source: Source, left_s: float) -> bool:
        download = self._download
        download.begin(source)
        try:
            await self._get_rest(source, left_s)
            download.finish()
        except (ObjectNotFoundError, ObjectSizeError) as error:
            self._give_up(source, error)
        except WrongBytesError as error:
            self._last_error = error
            if not download.was_mixed:
                self._give_up(source, error)
        except PeerUnavailableError as error:
            self._last_error = error
        else:
            return True
        return False

    async def _get_rest(self, source: Source, left_s: float) -> None:
        download = self._download
        try:
            await self._ask(source, download.num_bytes, left_s, download.take)
        except PeerUnavailableError:
            # What goes wrong after the last byte does not matter.
            if not download.is_whole:
                raise

    def _give_up(self, source: Source, error: StorageError) -> None:
        self._sources.remove(source)
        self._last_error = error
