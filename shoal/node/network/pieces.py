"""How much of an object a source is asked for at a time.

All that is missing, until a transfer from it breaks off. Then a small piece, and twice as much each
time one has come whole. What is on its way when a connection is reset is lost, whatever was sent of
it: with small pieces little is on its way, so that a link which carries only some chunks before it
breaks still brings every one of them.

Guarantees: a source that never breaks off is asked once. Does not try again after a failure.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from shoal.node.network.connection import ChunkSink
from shoal.node.network.downloads import Download, Source
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.messages import Fetch
from shoal.node.network.streams import CHUNK_BYTES

FIRST_BYTES: Final = CHUNK_BYTES

AskPart = Callable[[Fetch, float, ChunkSink], Awaitable[None]]
"""What to get from whom, seconds left, taker of chunks: gets a part of the object."""


class Pieces:
    """The pieces of one object.

    Args:
        download: Which one.
        ask_part: Gets a part of it from a source.
    """

    def __init__(self, download: Download, ask_part: AskPart) -> None:
        self._object_id = download.object_id
        self._total_bytes = download.total_bytes
        self._ask_part = ask_part
        self._num_bytes: dict[Source, int] = {}

    async def ask(self, source: Source, offset: int, left_s: float, take: ChunkSink) -> None:
        """Get the rest of the object from a source.

        Args:
            source: Which.
            offset: Where the rest begins.
            left_s: For all of it.
            take: Takes the chunks.

        Raises:
            PeerUnavailableError: It broke off, or there was too little of what it sent.
            StorageError: As `ask_part`.
        """
        ends_at_s = asyncio.get_running_loop().time() + left_s
        at = offset

        def count(data: bytes) -> None:
            nonlocal at
            at += len(data)
            take(data)

        while at < self._total_bytes:
            left_s = ends_at_s - asyncio.get_running_loop().time()
            begin, missing = at, self._total_bytes - at
            num_bytes = min(missing, self._num_bytes.get(source, missing))
            try:
                request = self._request(source, begin, num_bytes, left_s)
                await self._ask_part(request, left_s, count)
            except PeerUnavailableError:
                self._num_bytes[source] = FIRST_BYTES
                raise
            if at < begin + num_bytes:
                raise PeerUnavailableError(f"{at - begin} of {num_bytes} bytes came", "")
            self._num_bytes[source] = 2 * num_bytes

    def _request(self, source: Source, offset: int, num_bytes: int, left_s: float) -> Fetch:
        return Fetch(
            addresses=source,
            object_id=self._object_id,
            total_bytes=self._total_bytes,
            offset=offset,
            num_bytes=num_bytes,
            timeout_ms=max(0, int(left_s * 1000)) + 1,
        )
