"""The bodies that a validator's HTTP service takes and gives, within the node's caps and quotas.

Guarantees: objects of at most 64 KiB are the control plane's and go before payloads; what is given
is counted by the meter as "served", also when the client goes away in the middle; bodies move block
by block, so that a cap shapes them, and of what is given no more than a block is in memory.

Does not know which bodies may come or go: `inbox` does.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from typing import Final

from aiohttp import web

from shoal.storage.allowance import block_bytes, paid_by, spend
from shoal.storage.errors import StorageError
from shoal.storage.meter import SERVED, Meter, Transfer
from shoal.storage.object_store import ObjectStore

logger = logging.getLogger(__name__)

OTHERS: Final = "others"
"""Whose transfers these are, for the meter."""
CONTROL_BYTES: Final = 64 * 1024
_BLOCK_BYTES: Final = 256 * 1024
_READ_BYTES: Final = 1024 * 1024
"""Of an object in memory for each reader of it."""
_WRITE_S: Final = 30.0
"""A reader takes a block in this time, some 9 KB/s, or it has to come again."""


def paid(meter: Meter, num_bytes: int) -> AbstractContextManager[None]:
    """Charge what happens inside to the node.

    Args:
        meter: Knows what the node may take of its link.
        num_bytes: Of the whole object, which is the control plane's or bulk by its length.
    """
    return paid_by(meter.bandwidth, "control" if num_bytes <= CONTROL_BYTES else "bulk")


async def read_body(request: web.Request) -> bytes:
    """The body, whose length was checked before, as the cap lets it come."""
    body = bytearray()
    async for block in request.content.iter_chunked(_BLOCK_BYTES):
        body += block
        await spend("down", len(block))
    return bytes(body)


async def drop_body(request: web.Request) -> None:
    """Reads the body and forgets it."""
    async for block in request.content.iter_chunked(_BLOCK_BYTES):
        await spend("down", len(block))


async def read_blocks(
    store: ObjectStore, key: str, start: int, num_bytes: int
) -> AsyncIterator[bytes]:
    """A part of an object as it is read, never more than a block of it in memory.

    Args:
        store: has it; what may be read here is never changed once it is there.
        key: of the object.
        start: where the part begins.
        num_bytes: how long it is.

    Yields:
        Blocks, together as long as the part.

    Raises:
        StorageError: it cannot be read, or not to its end.
    """
    end = start + num_bytes
    for at in range(start, end, _READ_BYTES):
        length = min(_READ_BYTES, end - at)
        yield await store.get(key, max_bytes=length, start=at, length=length)


async def send_body(
    request: web.Request,
    answer: web.StreamResponse,
    first: bytes,
    others: AsyncIterator[bytes],
    meter: Meter,
) -> None:
    """Sends the body of an answer that is prepared, as the cap lets it go.

    A reader that takes no block for `_WRITE_S`, and a store that fails in the middle, end the
    connection, which tells the reader that the body is not whole.

    Args:
        request: whose connection it is.
        answer: has its head sent.
        first: the first block, empty if the body is.
        others: the blocks after it.
        meter: is told, also of what was sent in vain.
    """
    started_at_s, num_sent, whole = meter.now_s(), 0, False
    try:
        block = first
        while block:
            for part in _parts(block):
                await spend("up", len(part))
                async with asyncio.timeout(_WRITE_S):
                    await answer.write(part)
                num_sent += len(part)
            block = await anext(others, b"")
        await answer.write_eof()
        whole = True
    except (StorageError, TimeoutError, ConnectionError) as error:
        logger.info("a reader of %s did not get all of it: %s", request.path, error)
        if request.transport is not None:
            request.transport.abort()
    finally:
        meter.record(
            Transfer(
                peer=OTHERS,
                direction="up",
                kind=SERVED,
                num_bytes=num_sent,
                started_at_s=started_at_s,
                first_byte_s=0.0 if num_sent else None,
                total_s=meter.now_s() - started_at_s,
                ok=whole,
                num_retries=0,
            )
        )


def _parts(block: bytes) -> Iterator[memoryview]:
    size = block_bytes("up", _BLOCK_BYTES)
    view = memoryview(block)
    for start in range(0, len(view), size):
        yield view[start : start + size]
