"""Frames on the socket between a node and its network process.

Layout, little-endian: kind u8 | request id u32 | length u32 | that many bytes.

    REQUEST   node to process: a message; the request id is new
    ANSWER    process to node: a message; the last frame of its request
    CHUNK     process to node: up to 256 KiB of an object, any number of them before the answer; an
              empty one: the peer has answered, or is reached and waits for our own cap
    CANCEL    node to process: empty; no answer is waited for any more

Messages are bounded by 64 KiB and read by `messages`; objects never travel as messages. The length
is checked before a byte of the body is read. After the first error a connection is of no use.

Not done here: what messages mean, who waits for which.
"""

import asyncio
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from shoal.node.network.errors import FrameError

MAX_MESSAGE_BYTES: Final = 64 * 1024
MAX_CHUNK_BYTES: Final = 256 * 1024

_HEAD: Final = struct.Struct("<BII")
HEAD_BYTES: Final = _HEAD.size


class FrameKind(IntEnum):
    """What the bytes of a frame are."""

    REQUEST = 1
    ANSWER = 2
    CHUNK = 3
    CANCEL = 4


_MAX_BYTES: Final = {
    FrameKind.REQUEST: MAX_MESSAGE_BYTES,
    FrameKind.ANSWER: MAX_MESSAGE_BYTES,
    FrameKind.CHUNK: MAX_CHUNK_BYTES,
    FrameKind.CANCEL: 0,
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame."""

    kind: FrameKind
    request_id: int
    body: bytes | memoryview = b""


def pack_head(frame: Frame) -> bytes:
    """Write what goes before a frame's body.

    Args:
        frame: The frame.

    Returns:
        Nine bytes.

    Raises:
        FrameError: The body is longer than its kind allows, or the request id is no u32.
    """
    limit = _MAX_BYTES[frame.kind]
    if len(frame.body) > limit:
        raise FrameError(f"a {frame.kind.name} has {len(frame.body)} bytes, at most {limit}")
    if not 0 <= frame.request_id < 2**32:
        raise FrameError(f"request id {frame.request_id} is no u32")
    return _HEAD.pack(frame.kind, frame.request_id, len(frame.body))


def parse_head(head: bytes) -> tuple[FrameKind, int, int]:
    """Read what goes before a frame's body.

    Args:
        head: Nine bytes.

    Returns:
        Kind, request id and the length of the body, which is within the limit of the kind.

    Raises:
        FrameError: An unknown kind or too long a body.
    """
    if len(head) != HEAD_BYTES:
        raise FrameError(f"a frame begins with {HEAD_BYTES} bytes, found {len(head)}")
    number, request_id, num_bytes = _HEAD.unpack(head)
    try:
        kind = FrameKind(number)
    except ValueError as error:
        raise FrameError(f"unknown frame kind {number}") from error
    if num_bytes > _MAX_BYTES[kind]:
        raise FrameError(f"a {kind.name} of {num_bytes} bytes, at most {_MAX_BYTES[kind]}")
    return kind, request_id, num_bytes


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """Read the next frame.

    Args:
        reader: The connection.

    Returns:
        The frame; None where the other side ended the connection between two frames.

    Raises:
        FrameError: The bytes are no frame, or the connection ended inside one.
    """
    try:
        head = await reader.readexactly(HEAD_BYTES)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise FrameError("the connection ended inside a frame") from error
    except OSError:
        return None
    kind, request_id, num_bytes = parse_head(head)
    try:
        body = await reader.readexactly(num_bytes) if num_bytes else b""
    except (asyncio.IncompleteReadError, OSError) as error:
        raise FrameError("the connection ended inside a frame") from error
    return Frame(kind, request_id, body)


async def write_frame(writer: asyncio.StreamWriter, frame: Frame) -> None:
    """Write a frame and wait until the socket has room again.

    Safe from several tasks: a frame enters the buffer as a whole.

    Args:
        writer: The connection.
        frame: The frame.

    Raises:
        FrameError: The frame breaks a limit.
        OSError: The connection is gone.
    """
    writer.write(pack_head(frame))
    if frame.body:
        writer.write(frame.body)
    await writer.drain()
