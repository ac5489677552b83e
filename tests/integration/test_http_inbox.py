"""The validator's HTTP service and the store behind it, over real sockets on loopback."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from shoal.node.clock import SystemClock
from shoal.node.inbox import Inbox
from shoal.node.run_context import RunContext, make_context
from shoal.node.store_keys import RUN_STORE
from shoal.node.telemetry.event_log import EventLog
from shoal.protocol.announcement import Announcement, AnnouncementType, Where, build_announcement
from shoal.protocol.identity import Identity
from shoal.protocol.payload import build_payload
from shoal.protocol.record_body import CountedPayload
from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectSizeError,
    ObjectTooLargeError,
    RefusedError,
    StorageError,
    StorageUnavailableError,
)
from shoal.storage.http import HttpLimits, HttpStore
from shoal.storage.memory import MemoryStore
from shoal.storage.meter import Meter
from tests.support.bodies import body_like
from tests.support.manifests import (
    VALIDATOR,
    first_head,
    layout_of,
    peer,
    record_after,
    tiny_manifest,
)

ALICE, BOB = peer(1), peer(2)
MANIFEST = tiny_manifest()
LIMITS = HttpLimits(total_s=60.0)
IMPATIENT = HttpLimits(total_s=60.0, rate_window_s=0.3)


def context_of(folder: Path, store: MemoryStore) -> RunContext:
    """A validator of the tiny run."""
    clock = SystemClock()
    return make_context(
        MANIFEST,
        VALIDATOR,
        store,
        meter=Meter(time.monotonic),
        clock=clock,
        log=EventLog(folder / "events.jsonl", clock.now_s),
    )


@asynccontextmanager
async def _serving(app: web.Application, limits: HttpLimits = LIMITS) -> AsyncIterator[HttpStore]:
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with HttpStore(f"http://{host}:{port}", limits) as store:
            yield store
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _inbox(folder: Path) -> AsyncIterator[tuple[HttpStore, MemoryStore, RunContext]]:
    backing = MemoryStore()
    run = context_of(folder, backing)
    inbox = Inbox(run, backing, lambda: first_head(MANIFEST))
    async with _serving(inbox.application()) as store:
        yield store, backing, run
    run.log.close()


def _payload(identity: Identity, round_id: int = 1) -> bytes:
    head = first_head(MANIFEST)
    return build_payload(
        identity,
        run_id=MANIFEST.run_id,
        manifest_hash=MANIFEST.manifest_hash,
        codec_value_bits=MANIFEST.codec.value_bits,
        round_id=round_id,
        base_state=head.state,
        inner_steps=3,
        tokens=9,
        body=body_like(layout_of(MANIFEST), seed=7),
    )


def _announcement(identity: Identity, kind: AnnouncementType) -> bytes:
    published = kind is AnnouncementType.PUBLISHED
    return build_announcement(
        identity,
        Announcement(
            run_id=MANIFEST.run_id,
            round_id=1,
            peer_key=identity.peer.key,
            type=kind,
            payload_id=bytes(32) if published else b"",
            num_bytes=MANIFEST.payload_bytes if published else 0,
            sequence=1,
            where=Where(provider=RUN_STORE),
        ),
    )


def test_a_peer_without_a_bucket_publishes_through_the_inbox(tmp_path: Path) -> None:
    async def body() -> None:
        async with _inbox(tmp_path) as (store, backing, run):
            raw = _payload(ALICE)
            keys = run.keys
            for key, data in (
                (keys.attending(1, ALICE.peer), _announcement(ALICE, AnnouncementType.ATTENDING)),
                (keys.payload(1, ALICE.peer), raw),
                (keys.published(1, ALICE.peer), _announcement(ALICE, AnnouncementType.PUBLISHED)),
            ):
                await store.put(key, data)
                assert await backing.get(key, max_bytes=len(data)) == data
                with pytest.raises(ObjectExistsError):
                    await store.put(key, data)
            assert await store.get(keys.payload(1, ALICE.peer), max_bytes=len(raw)) == raw
            assert (await store.head(keys.payload(1, ALICE.peer))).num_bytes == len(raw)
            part = await store.get(keys.payload(1, ALICE.peer), max_bytes=9, start=5, length=9)
            assert part == raw[5:14]
            page = await store.list(keys.published_prefix(1))
            assert page.keys == (keys.published(1, ALICE.peer),)
            assert abs(await store.server_time_s() - time.time()) < 60

    asyncio.run(body())


def test_the_inbox_refuses_what_is_not_its_signers_or_not_of_the_open_round(tmp_path: Path) -> None:
    async def body() -> None:
        async with _inbox(tmp_path) as (store, backing, run):
            raw, keys = _payload(ALICE), run.keys
            attending = _announcement(ALICE, AnnouncementType.ATTENDING)
            flipped = raw[:-1] + bytes([raw[-1] ^ 1])
            other_run = bytes(32).hex() + "/" + keys.record(1).split("/", 1)[1]
            cases = [
                (keys.payload(1, BOB.peer), raw, "E_OBJECT_KEY"),
                (keys.payload(2, ALICE.peer), raw, "E_ROUND_FUTURE"),
                (keys.payload(0, ALICE.peer), raw, "E_ROUND_OLD"),
                (keys.payload(1, ALICE.peer), raw[:-1], "E_LEN"),
                (keys.payload(1, ALICE.peer), raw + b"x", "E_LEN"),
                (keys.payload(1, ALICE.peer), b"", "E_LEN"),
                (keys.payload(1, ALICE.peer), flipped, "E_BODY_HASH"),
                (keys.attending(1, ALICE.peer), bytes(1025), "E_LEN"),
                (keys.attending(1, ALICE.peer), b"{}", "E_LEN"),
                (keys.attending(1, BOB.peer), attending, "E_OBJECT_KEY"),
                (keys.published(1, ALICE.peer), attending, "E_OBJECT_KEY"),
                (keys.record(1), raw, "E_OBJECT_KEY"),
                (keys.manifest, raw, "E_OBJECT_KEY"),
                (keys.copy(bytes(32)), raw, "E_OBJECT_KEY"),
                (other_run, raw, "E_RUN"),
            ]
            for key, data, code in cases:
                with pytest.raises(RefusedError) as caught:
                    await store.put(key, data)
                assert caught.value.code == code, key
            assert (await backing.list("")).keys == ()

    asyncio.run(body())


def test_a_crowd_of_new_keys_fills_neither_the_store_nor_the_round(tmp_path: Path) -> None:
    async def body() -> None:
        async with _inbox(tmp_path) as (store, backing, run):
            counted = tuple(
                CountedPayload(peer=peer(i).peer, payload_id=peer(i).peer.key, weight=1)
                for i in range(1, 4)
            )
            run.familiar.note(record_after(first_head(MANIFEST), MANIFEST, counted))
            room = run.familiar.num_newcomers
            for number in range(100, 100 + room):
                await _publish_all(store, run, peer(number))
            for number in range(200, 220):
                with pytest.raises(StorageUnavailableError, match="newcomers"):
                    await _publish_all(store, run, peer(number))
            for number in (1, 2, 3):
                await _publish_all(store, run, peer(number))
            keys = (await backing.list("")).keys
            assert len(keys) == 3 * (room + 3)
            sizes = [(await backing.head(key)).num_bytes for key in keys]
            assert sum(sizes) <= (room + 3) * (MANIFEST.payload_bytes + 2 * 1024)

    asyncio.run(body())


async def _publish_all(store: HttpStore, run: RunContext, identity: Identity) -> None:
    """Everything that one peer puts into a round."""
    keys = run.keys
    raw = _announcement(identity, AnnouncementType.ATTENDING)
    await store.put(keys.attending(1, identity.peer), raw)
    await store.put(keys.payload(1, identity.peer), _payload(identity))
    raw = _announcement(identity, AnnouncementType.PUBLISHED)
    await store.put(keys.published(1, identity.peer), raw)


def test_a_bad_signature_takes_no_newcomers_place(tmp_path: Path) -> None:
    async def body() -> None:
        async with _inbox(tmp_path) as (store, _, run):
            raw = _announcement(ALICE, AnnouncementType.ATTENDING)
            for number in range(100, 100 + run.familiar.num_newcomers + 5):
                with pytest.raises(RefusedError):
                    await store.put(run.keys.attending(1, peer(number).peer), raw)
            await store.put(run.keys.attending(1, ALICE.peer), raw)

    asyncio.run(body())


def test_reading_keeps_to_the_run_and_to_the_callers_limit(tmp_path: Path) -> None:
    async def body() -> None:
        async with _inbox(tmp_path) as (store, backing, run):
            await backing.put(run.keys.manifest, b"0123456789")
            await backing.put("secret", b"x")
            with pytest.raises(ObjectTooLargeError):
                await store.get(run.keys.manifest, max_bytes=9)
            with pytest.raises(ObjectNotFoundError):
                await store.get(run.keys.record(1), max_bytes=9)
            with pytest.raises(ObjectNotFoundError):
                await store.head(run.keys.record(1))
            with pytest.raises(RefusedError):
                await store.get("secret", max_bytes=9)
            with pytest.raises(ObjectSizeError):
                await store.get(run.keys.manifest, max_bytes=99, start=5, length=6)
            with pytest.raises(AccessDeniedError):
                await store.put(run.keys.manifest, b"x", overwrite=True)
            with pytest.raises(AccessDeniedError):
                await store.delete(run.keys.manifest)
            for i in range(25):
                await backing.put(f"{run.keys.record(1)}-{i:02d}", b"x")
            keys: list[str] = []
            after = None
            while True:
                page = await store.list(run.keys.record(1), after=after, limit=10)
                keys += page.keys
                if page.next_after is None:
                    break
                after = page.next_after
            assert keys == [f"{run.keys.record(1)}-{i:02d}" for i in range(25)]

    asyncio.run(body())


Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _redirect(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("http://127.0.0.1:1/")


async def _gzip(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b"x", headers={"Content-Encoding": "gzip"})


async def _no_length(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    answer.enable_chunked_encoding()
    await answer.prepare(request)
    await answer.write(b"x" * 100)
    return answer


async def _drip(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    for _ in range(100):
        await answer.write(b"x")
        await asyncio.sleep(0.05)
    return answer


async def _cut(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b"x" * 500)
    if request.transport is not None:
        request.transport.abort()
    return answer


async def _busy(_: web.Request) -> web.StreamResponse:
    return web.Response(status=429)


@pytest.mark.parametrize(
    ("reply", "expected", "code"),
    [
        (_redirect, RefusedError, "E_HTTP_REDIRECT"),
        (_gzip, RefusedError, "E_HTTP_ENCODING"),
        (_no_length, ObjectSizeError, ""),
        (_drip, StorageUnavailableError, ""),
        (_cut, StorageUnavailableError, ""),
        (_busy, StorageUnavailableError, ""),
    ],
)
def test_a_misbehaving_server_gives_one_clear_error(
    reply: Reply, expected: type[StorageError], code: str
) -> None:
    headers: list[dict[str, str]] = []

    async def record(request: web.Request) -> web.StreamResponse:
        headers.append(dict(request.headers))
        return await reply(request)

    async def body() -> None:
        app = web.Application()
        app.router.add_get("/objects/{key:.+}", record)
        async with _serving(app, IMPATIENT if reply is _drip else LIMITS) as store:
            with pytest.raises(expected) as caught:
                await store.get("a/b", max_bytes=2000)
            assert getattr(caught.value, "code", "") == code

    asyncio.run(body())
    assert headers
    for one in headers:
        assert not {"Authorization", "Cookie", "X-Amz-Security-Token"} & set(one)
        assert one["Accept-Encoding"] == "identity"
