"""Objects over a stream between two peers: one request, one answer, chunks.

Layout, little-endian:

    request   magic b"SHOALGET" (8) | version u16 = 1 | reserved u16 = 0 | run id (32) |
              object id (32) | offset u64 | length u64; length 0 asks for the size only
    answer    magic b"SHOALHAS" (8) | status u16 | reserved u16 = 0 | total length u64
    chunk     length u32 | SHA-256 (32) | bytes; 16 KiB, only the last one is shorter
    thanks    one byte 0x06 by the receiver, then both sides close

The receiver knows the total length beforehand and takes nothing that the peer says as a size. It
never reads more than was asked for. Ends are in the framing: a stream that one side half-closes is
closed for both on the way.

Guarantees: whoever is too slow, stops, or sends other lengths or hashes costs this one transfer,
within a window of time. Every whole chunk that has come is given on, also where the stream breaks
right behind it: a link that breaks again and again delivers, if a chunk gets through each time.
Chunk hashes find damage early; what the whole must hash to is checked by whoever knows it. Time
spent outside reading is never counted against the peer.
"""

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, Protocol, TypeVar

from shoal.node.network.errors import PeerUnavailableError, WrongBytesError
from shoal.storage.errors import ObjectNotFoundError, ObjectSizeError

PROTOCOL_NAME: Final = "/shoal/objects/1"
CHUNK_BYTES: Final = 16 * 1024
"""Of a chunk that has not come whole nothing is kept: small, for links that break often."""
MAX_OBJECT_BYTES: Final = 2**53
THANKS: Final = b"\x06"

_REQUEST: Final = struct.Struct("<8sHH32s32sQQ")
_ANSWER: Final = struct.Struct("<8sHHQ")
_CHUNK: Final = struct.Struct("<I32s")
_REQUEST_MAGIC: Final = b"SHOALGET"
_ANSWER_MAGIC: Final = b"SHOALHAS"
_VERSION: Final = 1
_READ_BYTES: Final = 64 * 1024
REQUEST_BYTES: Final = _REQUEST.size
ANSWER_BYTES: Final = _ANSWER.size

ResultT = TypeVar("ResultT")


class Reader(Protocol):
    """The part of `asyncio.StreamReader` that is used."""

    async def read(self, n: int = -1) -> bytes:
        """Give 1 to `n` bytes, or none at the end."""
        ...


class Writer(Protocol):
    """The part of `asyncio.StreamWriter` that is used."""

    def write(self, data: bytes) -> None:
        """Queue bytes."""
        ...

    async def drain(self) -> None:
        """Wait until the queue is short."""
        ...


class StreamStatus(IntEnum):
    """How a request was answered; closed."""

    OK = 0
    NOT_FOUND = 1
    BUSY = 2
    BAD_REQUEST = 3
    OTHER_RUN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectRequest:
    """What is asked of a peer."""

    run_id: bytes
    object_id: bytes
    offset: int
    num_bytes: int
    """Bytes wanted from the offset on; 0: only the size."""

    def pack(self) -> bytes:
        """Write the request."""
        return _REQUEST.pack(
            _REQUEST_MAGIC, _VERSION, 0, self.run_id, self.object_id, self.offset, self.num_bytes
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a transfer may take."""

    timeout_s: float
    min_bytes_per_s: float
    window_s: float = 10.0
    """The minimum rate is looked at once in so many seconds of waiting."""


class Pace:
    """Watches one transfer's deadline and rate.

    Args:
        limits: What is allowed.
        now_s: A monotonic clock.
    """

    def __init__(self, limits: Limits, now_s: Callable[[], float]) -> None:
        self._limits = limits
        self._now_s = now_s
        self._ends_at_s = now_s() + limits.timeout_s
        self._waited_s = 0.0
        self._num_bytes = 0

    async def wait(self, step: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Wait for the other side, within what is allowed.

        Args:
            step: Begins a read or a drain.

        Returns:
            Its result.

        Raises:
            PeerUnavailableError: Nothing came within the window or before the deadline.
        """
        started_at_s = self._now_s()
        allowed_s = self._ends_at_s - started_at_s
        if allowed_s <= 0:
            raise PeerUnavailableError(f"not done within {self._limits.timeout_s:.0f} s", "")
        try:
            async with asyncio.timeout(min(allowed_s, self._limits.window_s)):
                return await step()
        except TimeoutError as error:
            raise PeerUnavailableError("the peer stopped in the middle", "") from error
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise PeerUnavailableError("the connection to the peer broke", "") from error
        finally:
            self._waited_s += self._now_s() - started_at_s

    def moved(self, num_bytes: int) -> None:
        """Count bytes that the other side sent or took.

        Args:
            num_bytes: How many since the last call.

        Raises:
            PeerUnavailableError: A window is over and had too few.
        """
        self._num_bytes += num_bytes
        if self._waited_s < self._limits.window_s:
            return
        rate = self._num_bytes / self._waited_s
        if rate < self._limits.min_bytes_per_s:
            floor = self._limits.min_bytes_per_s
            raise PeerUnavailableError(f"{rate:.0f} bytes/s, at least {floor:.0f} expected", "")
        self._waited_s, self._num_bytes = 0.0, 0


def parse_request(raw: bytes) -> ObjectRequest | None:
    """Read a request; nobody is trusted.

    Args:
        raw: `REQUEST_BYTES` bytes.

    Returns:
        The request; None if it is none.
    """
    magic, version, reserved, run_id, object_id, offset, num_bytes = _REQUEST.unpack(raw)
    if (magic, version, reserved) != (_REQUEST_MAGIC, _VERSION, 0):
        return None
    if offset > MAX_OBJECT_BYTES or num_bytes > MAX_OBJECT_BYTES:
        return None
    return ObjectRequest(run_id=run_id, object_id=object_id, offset=offset, num_bytes=num_bytes)


def pack_answer(status: StreamStatus, total_bytes: int = 0) -> bytes:
    """Write an answer."""
    return _ANSWER.pack(_ANSWER_MAGIC, status, 0, total_bytes)


def pack_chunks(data: bytes) -> bytes:
    """Write bytes as chunks; only at the end of a transfer may the last one be short."""
    view, parts = memoryview(data), list[bytes | memoryview]()
    for at in range(0, len(data), CHUNK_BYTES):
        chunk = view[at : at + CHUNK_BYTES]
        parts += [_CHUNK.pack(len(chunk), hashlib.sha256(chunk).digest()), chunk]
    return b"".join(parts)


async def read_exactly(reader: Reader, num_bytes: int, pace: Pace) -> bytes:
    """Read so many bytes, watching the pace after every part.

    Args:
        reader: The stream.
        num_bytes: How many; all of them are held in memory.
        pace: Deadline and rate.

    Returns:
        Exactly so many bytes.

    Raises:
        PeerUnavailableError: The stream ended, stopped or is too slow.
    """
    found = bytearray()
    while len(found) < num_bytes:
        found += await _read_some(reader, min(num_bytes - len(found), _READ_BYTES), pace)
    return bytes(found)


async def ask_size(
    reader: Reader, writer: Writer, run_id: bytes, object_id: bytes, pace: Pace
) -> int:
    """Ask how long an object is.

    Args:
        reader: The stream's one half.
        writer: The other.
        run_id: The run.
        object_id: Which object.
        pace: Deadline and rate.

    Returns:
        What the peer says; a claim.

    Raises:
        ObjectNotFoundError: The peer does not serve it.
        PeerUnavailableError: Busy, gone, too slow, or no answer of this protocol.
    """
    wanted = ObjectRequest(run_id=run_id, object_id=object_id, offset=0, num_bytes=0)
    total_bytes = await _ask(reader, writer, wanted, pace)
    writer.write(THANKS)
    await pace.wait(writer.drain)
    return total_bytes


async def receive(
    reader: Reader, writer: Writer, wanted: ObjectRequest, total_bytes: int, pace: Pace
) -> AsyncIterator[bytes]:
    """Fetch a part of an object.

    Args:
        reader: The stream's one half.
        writer: The other.
        wanted: The request; a part of the object.
        total_bytes: Length of the whole object, as the caller knows it.
        pace: Deadline and rate.

    Yields:
        Nothing (b"") when the peer has answered that it gives the object; then the bytes of
        chunks with the right length and hash, as soon as they have come whole.

    Raises:
        ObjectNotFoundError: The peer does not serve it.
        ObjectSizeError: The peer has an object of another length.
        WrongBytesError: A chunk has another length or hash than it should.
        PeerUnavailableError: Busy, gone, too slow, or no answer of this protocol.
    """
    found_bytes = await _ask(reader, writer, wanted, pace)
    name = wanted.object_id.hex()
    if found_bytes != total_bytes:
        raise ObjectSizeError(
            f"the peer's object {name} has {found_bytes} bytes, expected {total_bytes}", name
        )
    yield b""
    left, raw = wanted.num_bytes, bytearray()
    while left:
        # Never more than was asked for.
        most_bytes = min(_wire_bytes(left) - len(raw), _READ_BYTES)
        raw += await _read_some(reader, most_bytes, pace)
        data = _take_chunks(raw, left)
        left -= len(data)
        if data:
            yield data
    writer.write(THANKS)
    await pace.wait(writer.drain)


async def _ask(reader: Reader, writer: Writer, wanted: ObjectRequest, pace: Pace) -> int:
    writer.write(wanted.pack())
    await pace.wait(writer.drain)
    answer = await read_exactly(reader, ANSWER_BYTES, pace)
    magic, status, reserved, total_bytes = _ANSWER.unpack(answer)
    if magic != _ANSWER_MAGIC or reserved != 0:
        raise PeerUnavailableError("the peer's answer is none of this protocol", "")
    if status == StreamStatus.NOT_FOUND:
        name = wanted.object_id.hex()
        raise ObjectNotFoundError(f"the peer does not serve object {name}", name)
    if status == StreamStatus.OTHER_RUN:
        raise PeerUnavailableError("the peer is of another run", "")
    if status != StreamStatus.OK:
        raise PeerUnavailableError(f"the peer refuses with status {status}", "")
    return int(total_bytes)


async def _read_some(reader: Reader, most_bytes: int, pace: Pace) -> bytes:
    part = await pace.wait(partial(reader.read, most_bytes))
    if not part:
        raise PeerUnavailableError("the peer ended the stream too early", "")
    pace.moved(len(part))
    return part


def _wire_bytes(num_bytes: int) -> int:
    """How long so many bytes are together with what goes before each chunk."""
    return num_bytes + _CHUNK.size * -(-num_bytes // CHUNK_BYTES)


def _take_chunks(raw: bytearray, left: int) -> bytes:
    """Take all whole chunks away from the beginning of what was read."""
    parts: list[bytes] = []
    at = 0
    while left and len(raw) - at >= _CHUNK.size:
        num_bytes = min(left, CHUNK_BYTES)
        length, digest = _CHUNK.unpack_from(raw, at)
        end = at + _CHUNK.size + num_bytes
        if length != num_bytes:
            raise WrongBytesError(f"a chunk of {length} bytes, expected {num_bytes}", "")
        if len(raw) < end:
            break
        data = bytes(memoryview(raw)[end - num_bytes : end])
        if hashlib.sha256(data).digest() != digest:
            raise WrongBytesError("a chunk does not have the hash that came with it", "")
        parts.append(data)
        left, at = left - num_bytes, end
    del raw[:at]
    return parts[0] if len(parts) == 1 else b"".join(parts)
