"""The objects that this peer gives away, and the streams over which it does.

Guarantees: only objects of this run are read: those that were registered, by the file and length
they were registered with, and the plain files of a few folders that are named by an id; the number
of streams is bounded in all and per peer, also of those that ask for nothing; a peer that does not
take what it asked for loses its stream. Does not know what the objects are.
"""

import asyncio
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.link_share import num_streams
from shoal.node.network.object_ids import ANY_MANIFEST_ID, clock_id
from shoal.node.network.streams import (
    CHUNK_BYTES,
    REQUEST_BYTES,
    Limits,
    ObjectRequest,
    Pace,
    Reader,
    StreamStatus,
    Writer,
    pack_answer,
    pack_chunks,
    parse_request,
    read_exactly,
)
from shoal.storage.allowance import wait_for
from shoal.storage.pacing import Kind, RateLimit

CONTROL_OBJECT_BYTES: Final = 64 * 1024
"""Objects up to this length are records and announcements: they go before payloads."""
MAX_SMALL_PER_PEER: Final = 8
"""Streams of one peer for small objects and sizes, besides those for payloads."""
MAX_WAITING: Final = 64
"""Streams that may be open without having been given a slot."""
MAX_OPEN_PER_PEER: Final = 24
"""Streams of one peer of whatever kind: those that send no request must leave room for others'."""
_BATCH_BYTES: Final = 16 * CHUNK_BYTES
"""Read from the file and handed to the stream at a time."""
_REQUEST_LIMITS: Final = Limits(timeout_s=10.0, min_bytes_per_s=0.0)
_THANKS_LIMITS: Final = Limits(timeout_s=30.0, min_bytes_per_s=0.0, window_s=30.0)
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class ServedObject:
    """A file and how long it is."""

    path: Path
    num_bytes: int

    @property
    def is_bulk(self) -> bool:
        """Whether it is larger than records and announcements."""
        return self.num_bytes > CONTROL_OBJECT_BYTES


class ObjectServer:
    """Answers requests for objects.

    Args:
        run_id: The run; requests for others are refused.
        max_streams: Most transfers at one time.
        max_streams_per_peer: The same, to one peer.
        min_bytes_per_s: Slower takers are given up.
        rate: The cap on all of them together; None: none.
        folders: Files in them that are named by an id (hex, perhaps with a plus sign) are served.

    Attributes:
        num_bytes_up: Bytes of objects sent so far.
        gives_bulk: Whether objects larger than a record are given away.
    """

    def __init__(
        self,
        *,
        run_id: bytes,
        max_streams: int,
        max_streams_per_peer: int,
        min_bytes_per_s: float,
        rate: RateLimit | None = None,
        folders: tuple[Path, ...] = (),
    ) -> None:
        self._run_id = run_id
        self._clock_id = clock_id(run_id)
        self._folders = folders
        self._rate = rate
        # Below the least rate each, the takers would give up.
        self._max_streams = min(max_streams, num_streams(rate, min_bytes_per_s, max_streams))
        self._max_streams_per_peer = max_streams_per_peer
        self._limits = Limits(timeout_s=_DAY_S, min_bytes_per_s=min_bytes_per_s)
        self._objects: dict[bytes, ServedObject] = {}
        self._busy: Counter[str] = Counter()
        self._busy_small: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        self.num_bytes_up = 0
        self.gives_bulk = True

    @property
    def num_objects(self) -> int:
        """How many objects are served."""
        return len(self._objects)

    def add(self, object_id: bytes, path: Path, num_bytes: int) -> None:
        """Serve a file from now on; replaces what had this id.

        Args:
            object_id: 32 bytes.
            path: The file, not to be changed while it is served.
            num_bytes: Its length.

        Raises:
            OSError: There is no such file.
            ValueError: The id is not of 32 bytes, or the file has another length.
        """
        found_bytes = path.stat().st_size
        if len(object_id) != 32 or found_bytes != num_bytes:
            raise ValueError(f"{found_bytes} bytes in the file, {num_bytes} expected")
        self._objects[object_id] = ServedObject(path, num_bytes)

    def remove(self, object_id: bytes) -> None:
        """Serve it no longer; idempotent."""
        self._objects.pop(object_id, None)

    async def answer(self, peer: str, reader: Reader, writer: Writer) -> None:
        """Serve one stream to its end; the caller closes it.

        Args:
            peer: The libp2p id of the peer at the other end, which libp2p has verified.
            reader: The stream's one half.
            writer: The other.

        Raises:
            PeerUnavailableError: The peer went away or is too slow.
        """
        is_full = self._open.total() >= self._max_streams + MAX_WAITING
        if is_full or self._open[peer] >= MAX_OPEN_PER_PEER:
            return
        self._open[peer] += 1
        try:
            request_pace = Pace(_REQUEST_LIMITS, time.monotonic)
            wanted = parse_request(await read_exactly(reader, REQUEST_BYTES, request_pace))
            served = await asyncio.to_thread(self._find, wanted)
            # Records and sizes never wait for those who take payloads.
            is_bulk = bool(wanted and wanted.num_bytes and served and served.is_bulk)
            with self._slot(peer, is_bulk=is_bulk) as free:
                await self._answer(wanted, served, writer, free=free)
                await read_exactly(reader, 1, Pace(_THANKS_LIMITS, time.monotonic))
        finally:
            _count_down(self._open, peer)

    async def _answer(
        self,
        wanted: ObjectRequest | None,
        served: ServedObject | None,
        writer: Writer,
        *,
        free: bool,
    ) -> None:
        status = self._judge(wanted, served, free=free)
        total_bytes = served.num_bytes if served and status is StreamStatus.OK else 0
        pace = Pace(self._limits, time.monotonic)
        writer.write(pack_answer(status, total_bytes))
        await pace.wait(writer.drain)
        if wanted is not None and served is not None and status is StreamStatus.OK:
            kind: Kind = "bulk" if served.is_bulk else "control"
            await self._send(served.path, wanted, writer, pace, kind)

    def _find(self, wanted: ObjectRequest | None) -> ServedObject | None:
        if wanted is None:
            return None
        object_id = wanted.object_id
        if object_id == self._clock_id:
            # Only its length is ever asked for.
            return ServedObject(Path(os.devnull), int(time.time() * 1000))
        served = self._objects.get(object_id)
        if served is not None:
            return served
        names = (object_id.hex(), object_id.hex() + "+")
        paths = (folder / name for folder in self._folders for name in names)
        return next((found for found in map(_plain_file, paths) if found is not None), None)

    def _judge(
        self, wanted: ObjectRequest | None, served: ServedObject | None, *, free: bool
    ) -> StreamStatus:
        if wanted is None:
            return StreamStatus.BAD_REQUEST
        if wanted.run_id != self._run_id and wanted.object_id != ANY_MANIFEST_ID:
            return StreamStatus.OTHER_RUN
        if served is None:
            return StreamStatus.NOT_FOUND
        if wanted.offset + wanted.num_bytes > served.num_bytes:
            return StreamStatus.BAD_REQUEST
        if served.is_bulk and wanted.num_bytes and not self.gives_bulk:
            return StreamStatus.BUSY
        return StreamStatus.OK if free else StreamStatus.BUSY

    async def _send(
        self, path: Path, wanted: ObjectRequest, writer: Writer, pace: Pace, kind: Kind
    ) -> None:
        at, end = wanted.offset, wanted.offset + wanted.num_bytes
        descriptor = os.open(path, os.O_RDONLY)
        try:
            while at < end:
                num_bytes = min(end - at, _BATCH_BYTES)
                chunks = await asyncio.to_thread(_read_chunks, descriptor, num_bytes, at)
                for part in self._parts(chunks):
                    if self._rate is not None:
                        await wait_for(self._rate, kind, len(part))
                    writer.write(part)
                    await pace.wait(writer.drain)
                pace.moved(num_bytes)
                self.num_bytes_up += num_bytes
                at += num_bytes
        finally:
            os.close(descriptor)

    def _parts(self, chunks: bytes) -> Iterator[bytes]:
        """All at once, or in pieces that shape the link."""
        size = len(chunks) if self._rate is None else self._rate.block_bytes
        for start in range(0, len(chunks), size):
            yield chunks[start : start + size]

    @contextmanager
    def _slot(self, peer: str, *, is_bulk: bool) -> Iterator[bool]:
        busy = self._busy if is_bulk else self._busy_small
        most = self._max_streams if is_bulk else MAX_WAITING
        most_of_peer = self._max_streams_per_peer if is_bulk else MAX_SMALL_PER_PEER
        free = busy.total() < most and busy[peer] < most_of_peer
        if free:
            busy[peer] += 1
        try:
            yield free
        finally:
            if free:
                _count_down(busy, peer)


def _count_down(counter: Counter[str], peer: str) -> None:
    """One less; who has none left is forgotten, since anybody can make peer ids."""
    counter[peer] -= 1
    if not counter[peer]:
        del counter[peer]


def _plain_file(path: Path) -> ServedObject | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return ServedObject(path, found.st_size) if stat.S_ISREG(found.st_mode) else None


def _read_chunks(descriptor: int, num_bytes: int, at: int) -> bytes:
    data = os.pread(descriptor, num_bytes, at)
    if len(data) != num_bytes:
        raise PeerUnavailableError("a served file has become shorter", "")
    return pack_chunks(data)
