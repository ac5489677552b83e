"""The bodies that a validator's HTTP service takes and gives, within the node's caps and quotas.

Guarantees: objects of at most 64 KiB are the control plane's and go before payloads; what is given
is counted by the meter as "served", also when the client goes away in the middle; bodies move block
by block, so that a cap shapes them.

Does not know which bodies may come or go: `inbox` does.
"""

from contextlib import AbstractContextManager
from typing import Final

from aiohttp import web

from shoal.storage.allowance import block_bytes, paid_by, spend
from shoal.storage.meter import SERVED, Meter, Transfer

OTHERS: Final = "others"
"""Whose transfers these are, for the meter."""
CONTROL_BYTES: Final = 64 * 1024
_BLOCK_BYTES: Final = 256 * 1024


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


async def send_body(answer: web.StreamResponse, body: memoryview, meter: Meter) -> None:
    """Sends the body of an answer that is prepared, as the cap lets it go."""
    size = block_bytes("up", _BLOCK_BYTES)
    started_at_s, num_sent = meter.now_s(), 0
    try:
        for start in range(0, len(body), size):
            block = body[start : start + size]
            await spend("up", len(block))
            await answer.write(block)
            num_sent += len(block)
        await answer.write_eof()
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
                ok=num_sent == len(body),
                num_retries=0,
            )
        )
