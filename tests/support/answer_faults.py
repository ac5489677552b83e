"""What a bad server or a bad link does to an answer; each is an `Act` of `http_link`."""

import asyncio
from collections.abc import Awaitable, Callable

from shoal.protocol.identity import Identity
from shoal.protocol.payload import build_payload
from shoal.protocol.payload_header import PAYLOAD_PREFIX_BYTES, peek
from tests.support.http_link import Act, HttpLink
from tests.support.s3_bad_server import BLOCK, Exchange, Seen

HTML = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Wi-Fi</body></html>"


async def flip(exchange: Exchange, link: HttpLink) -> None:
    """One bit of the body is another one."""
    reply = await link.fetch(exchange.seen)
    body = bytearray(reply.body)
    body[-7] ^= 1
    await exchange.answer(reply.status, reply.headers, bytes(body))


async def truncate(exchange: Exchange, link: HttpLink) -> None:
    """The end of the body is missing, and the announced length is that of the rest."""
    reply = await link.fetch(exchange.seen)
    body = reply.body[: len(reply.body) // 2]
    await exchange.answer(reply.status, {**reply.headers, "Content-Length": len(body)}, body)


async def html_page(exchange: Exchange, _: HttpLink) -> None:
    """A page for people, with status 200."""
    await exchange.answer(200, {"Content-Type": "text/html"}, HTML)


async def encoded(exchange: Exchange, link: HttpLink) -> None:
    """The right bytes, said to be compressed."""
    reply = await link.fetch(exchange.seen)
    await exchange.answer(reply.status, {**reply.headers, "Content-Encoding": "gzip"}, reply.body)


def redirect(location: str) -> Act:
    """Sends the client elsewhere."""

    async def act(exchange: Exchange, _: HttpLink) -> None:
        await exchange.answer(302, {"Location": location})

    return act


def busy(status: int = 429, retry_after_s: int | None = None) -> Act:
    """Asks for patience."""

    async def act(exchange: Exchange, _: HttpLink) -> None:
        await exchange.answer(status, {"Retry-After": retry_after_s})

    return act


async def trickle(exchange: Exchange, link: HttpLink) -> None:
    """One byte a second."""
    reply = await link.fetch(exchange.seen)
    await exchange.answer(reply.status, reply.headers)
    for at in range(len(reply.body)):
        await exchange.raw(reply.body[at : at + 1])
        await asyncio.sleep(1.0)


async def reset_at_64_kib(exchange: Exchange, link: HttpLink) -> None:
    """No more than 64 KiB of a body come through one connection."""
    reply = await link.fetch(exchange.seen)
    await exchange.answer(reply.status, reply.headers, reply.body[:BLOCK])
    # What was written is on its way before the reset.
    await asyncio.sleep(0.05)
    exchange.reset()


def is_long_read(seen: Seen) -> bool:
    """A read whose answer may be longer than 64 KiB."""
    return seen.method == "GET" and ("/payloads/" in seen.path or "/blobs/" in seen.path)


async def refuse_server(exchange: Exchange, _: HttpLink) -> None:
    """An answer that no attempt gets past."""
    await exchange.answer(503)


def another_payload(raw: bytes, identity: Identity) -> bytes:
    """The same payload with another number of tokens, well signed: a second word of its author."""
    header = peek(raw).header
    return build_payload(
        identity,
        run_id=header.run_id,
        manifest_hash=header.manifest_hash,
        codec_value_bits=header.codec,
        round_id=header.round_id,
        base_state=header.base_state,
        inner_steps=header.inner_steps,
        tokens=header.tokens + 1,
        body=raw[PAYLOAD_PREFIX_BYTES:],
    )


def other_version(identity: Identity) -> Act:
    """Another payload of the author than the announced one; others get that."""

    async def act(exchange: Exchange, link: HttpLink) -> None:
        reply = await link.fetch(exchange.seen)
        body = another_payload(reply.body, identity)
        await exchange.answer(reply.status, {**reply.headers, "ETag": '"other"'}, body)

    return act


def replaced(identity: Identity, put: Callable[[str, bytes], Awaitable[None]]) -> Act:
    """The object is replaced, in the store, before its first reader gets it.

    Args:
        identity: The author.
        put: Overwrites an object of the author's bucket: key, bytes.
    """
    replacing = asyncio.Lock()
    done: set[str] = set()

    async def act(exchange: Exchange, link: HttpLink) -> None:
        seen = exchange.seen
        async with replacing:
            if seen.path not in done:
                reply = await link.fetch(seen)
                key = seen.path.lstrip("/").partition("/")[2]
                await put(key, another_payload(reply.body, identity))
                done.add(seen.path)
        await link.pass_on(exchange)

    return act
