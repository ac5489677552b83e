"""Caps on real transfers over HTTP and S3, counted at a proxy; announcements on a saturated link.

A cap bounds what has moved at any moment since the beginning, so delays of a busy machine can only
help; what comes first is told by order, never by seconds.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from shoal.node.clock import SystemClock
from shoal.node.inbox import Inbox
from shoal.node.monthly_use import FILE_NAME, MonthlyUse, month_of
from shoal.node.run_context import make_context
from shoal.node.store_keys import RUN_STORE
from shoal.node.telemetry.event_log import EventLog
from shoal.protocol.announcement import Announcement, AnnouncementType, Where, build_announcement
from shoal.storage.allowance import Bandwidth, QuotaReachedError
from shoal.storage.http import HttpStore
from shoal.storage.memory import MemoryStore
from shoal.storage.meter import Meter, MeteredStore
from shoal.storage.object_store import ObjectStore
from shoal.storage.pacing import RateLimit
from shoal.storage.s3 import S3Limits, S3Store
from tests.support import s3_server
from tests.support.manifests import VALIDATOR, first_head, peer, tiny_manifest
from tests.support.processes import Forge, Node, all_ended
from tests.support.s3_bad_server import noise, until
from tests.support.shaping_proxy import Link, ShapingProxy
from tests.support.tiny_run import make_tiny_run

pytestmark = pytest.mark.slow

CAP = 500_000.0
HEADERS_BYTES = 64 * 1024
"""Of all requests and answers of a test, generously."""
DATA = noise(5, 300_000)
MANIFEST = tiny_manifest()


def limit() -> RateLimit:
    return RateLimit(CAP, now_s=time.monotonic)


def metered(store: ObjectStore, bandwidth: Bandwidth | None) -> MeteredStore:
    return MeteredStore(store, Meter(time.monotonic, bandwidth=bandwidth))


@asynccontextmanager
async def shelf() -> AsyncIterator[tuple[int, MemoryStore]]:
    """A server that keeps what it is given, as it comes."""
    backing = MemoryStore()

    async def put(request: web.Request) -> web.Response:
        await backing.put(request.match_info["key"], await request.read())
        return web.Response(status=201)

    async def get(request: web.Request) -> web.Response:
        raw = await backing.get(request.match_info["key"], max_bytes=1 << 30)
        return web.Response(body=raw)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_put("/objects/{key:.+}", put)
    app.router.add_get("/objects/{key:.+}", get)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1], backing
    finally:
        await runner.cleanup()


async def counted(
    count: Callable[[], int], work: Awaitable[object], most: Callable[[float], float]
) -> tuple[float, int]:
    """Does the work and looks again and again whether more has moved than may have."""
    begun_at_s, task, num_looks = time.monotonic(), asyncio.ensure_future(work), 0
    while not task.done():
        num_bytes = count()
        assert num_bytes <= most(time.monotonic() - begun_at_s)
        num_looks += num_bytes > 0
        await asyncio.wait({task}, timeout=0.02)
    await task
    assert num_looks > 5
    return time.monotonic() - begun_at_s, count()


def most_of(rate: RateLimit) -> Callable[[float], float]:
    return lambda seconds: rate.bytes_per_s * seconds + rate.burst_bytes + HEADERS_BYTES


def test_http_uploads_keep_to_the_cap_all_together() -> None:
    async def body() -> None:
        rate = limit()
        async with shelf() as (port, backing), ShapingProxy("127.0.0.1", port) as proxy:
            async with HttpStore(proxy.url) as http:
                store = metered(http, Bandwidth(up=rate)).labelled(peer="own", kind="payload")
                puts = [store.put(f"a/{i}", DATA) for i in range(4)]
                work = asyncio.gather(*puts)
                _, sent = await counted(lambda: proxy.num_bytes_up, work, most_of(rate))
            assert sent >= 4 * len(DATA)
            assert await backing.get("a/3", max_bytes=len(DATA)) == DATA

    asyncio.run(body())


def test_http_downloads_keep_to_the_cap_all_together() -> None:
    async def body() -> None:
        rate = limit()
        async with shelf() as (port, backing), ShapingProxy("127.0.0.1", port) as proxy:
            await backing.put("a", DATA)
            async with HttpStore(proxy.url) as http:
                counting = metered(http, Bandwidth(down=rate))
                store = counting.labelled(peer="p", kind="payload")
                begun_at_s = time.monotonic()
                found = await asyncio.gather(
                    *(store.get("a", max_bytes=len(DATA)) for _ in range(4))
                )
                took_s = time.monotonic() - begun_at_s
            assert found == [DATA] * 4
            assert proxy.num_bytes_down <= most_of(rate)(took_s)

    asyncio.run(body())


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[Callable[[int], S3Store]]:
    server = s3_server.seaweed(request.config)
    config = server.config(s3_server.PRIVATE, prefix=s3_server.fresh_prefix())
    opened: list[S3Store] = []

    def open_at(port: int) -> S3Store:
        place = replace(config, endpoint_url=f"http://127.0.0.1:{port}")
        limits = S3Limits(deadline_s=120.0, part_bytes=5 << 20, min_bytes_per_s=1.0)
        opened.append(S3Store(place, server.keys[s3_server.PRIVATE].writer, limits=limits))
        return opened[-1]

    yield open_at
    for store in opened:
        store.close()


def s3_port(request: pytest.FixtureRequest) -> int:
    return int(s3_server.seaweed(request.config).endpoint_url.rsplit(":", 1)[1])


def test_s3_threads_keep_to_the_cap_all_together(
    request: pytest.FixtureRequest, bucket: Callable[[int], S3Store]
) -> None:
    large = noise(6, (5 << 20) + 100_000)
    up, down = (RateLimit(3_000_000.0, now_s=time.monotonic) for _ in range(2))

    async def body() -> None:
        async with ShapingProxy("127.0.0.1", s3_port(request)) as proxy:
            meter = metered(bucket(proxy.port), Bandwidth(up=up, down=down))
            store = meter.labelled(peer="own", kind="payload")
            work = asyncio.gather(store.put("large", large, overwrite=True), store.put("a", DATA))
            _, sent = await counted(lambda: proxy.num_bytes_up, work, most_of(up))
            assert sent >= len(large) + len(DATA)
            before, begun_at_s = proxy.num_bytes_down, time.monotonic()
            assert await store.get("large", max_bytes=len(large)) == large
            took_s = time.monotonic() - begun_at_s
            assert proxy.num_bytes_down - before <= most_of(down)(took_s)

    asyncio.run(body())


async def overtakes(stores: MeteredStore, num_bulk: int, moved: Callable[[], int]) -> None:
    """An announcement put while all of the bulk is under way is there before any of it."""
    bulk = stores.labelled(peer="own", kind="payload")
    puts = [asyncio.ensure_future(bulk.put(f"b/{i:03}", DATA)) for i in range(num_bulk)]
    try:
        await until(lambda: moved() > 100_000)
        assert not any(put.done() for put in puts)
        told = stores.labelled(peer="own", kind="announcement")
        await told.put("told", b"here I am")
        assert await told.get("told", max_bytes=100) == b"here I am"
        assert sum(put.done() for put in puts) < num_bulk / 2
        assert moved() < num_bulk * len(DATA) / 2
    finally:
        for put in puts:
            put.cancel()
        await asyncio.gather(*puts, return_exceptions=True)


@pytest.mark.parametrize("cap", [None, 600_000.0])
def test_http_announcements_overtake_bulk_on_a_saturated_uplink(cap: float | None) -> None:
    async def body() -> None:
        rate = None if cap is None else RateLimit(cap, now_s=time.monotonic)
        link = Link(bytes_per_s=1_000_000)
        async with (
            shelf() as (port, _),
            ShapingProxy("127.0.0.1", port, link) as proxy,
            HttpStore(proxy.url) as http,
        ):
            await overtakes(metered(http, Bandwidth(up=rate)), 80, lambda: proxy.num_bytes_up)

    asyncio.run(body())


def test_s3_announcements_overtake_bulk_on_a_saturated_uplink(
    request: pytest.FixtureRequest, bucket: Callable[[int], S3Store]
) -> None:
    async def body() -> None:
        link = Link(bytes_per_s=1_000_000)
        async with ShapingProxy("127.0.0.1", s3_port(request), link) as proxy:
            await overtakes(metered(bucket(proxy.port), None), 60, lambda: proxy.num_bytes_up)

    asyncio.run(body())


@asynccontextmanager
async def inbox(
    folder: Path, bandwidth: Bandwidth | None
) -> AsyncIterator[tuple[int, MemoryStore, Meter]]:
    clock, backing = SystemClock(), MemoryStore()
    meter = Meter(time.monotonic, bandwidth=bandwidth)
    log = EventLog(folder / "events.jsonl", clock.now_s)
    run = make_context(MANIFEST, VALIDATOR, backing, meter=meter, clock=clock, log=log)
    runner = web.AppRunner(Inbox(run, backing, lambda: first_head(MANIFEST)).application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1], backing, meter
    finally:
        await runner.cleanup()
        log.close()


def test_an_inbox_full_of_slow_payloads_takes_announcements(tmp_path: Path) -> None:
    """Twenty payloads are half sent and stand still; none of the sixteen places is free."""

    async def body() -> None:
        async with inbox(tmp_path, None) as (port, backing, _):
            keys = f"{MANIFEST.run_id.hex()}/peers/{{}}/payloads/00000001"
            writers = []
            for i in range(1, 21):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                key = keys.format(peer(i).peer.key.hex())
                head = f"PUT /objects/{key} HTTP/1.1\r\nHost: a\r\n"
                writer.write(f"{head}Content-Length: {MANIFEST.payload_bytes}\r\n\r\n".encode())
                writer.write(bytes(MANIFEST.payload_bytes // 2))
                await writer.drain()
                writers.append(writer)
            await asyncio.sleep(0.1)
            alice = peer(1)
            raw = build_announcement(
                alice,
                Announcement(
                    run_id=MANIFEST.run_id,
                    round_id=1,
                    peer_key=alice.peer.key,
                    type=AnnouncementType.ATTENDING,
                    payload_id=b"",
                    num_bytes=0,
                    sequence=1,
                    where=Where(provider=RUN_STORE),
                ),
            )
            name = f"{MANIFEST.run_id.hex()}/rounds/00000001/attending/{alice.peer.key.hex()}"
            async with HttpStore(f"http://127.0.0.1:{port}") as store:
                await store.put(name, raw)
            assert await backing.get(name, max_bytes=len(raw)) == raw
            # The places were really taken: no payload has ended, none has been refused.
            assert not any(writer.transport.is_closing() for writer in writers)
            for writer in writers:
                writer.close()

    asyncio.run(body())


def test_what_an_inbox_serves_is_counted_and_capped(tmp_path: Path) -> None:
    async def body() -> None:
        rate = limit()
        book = MonthlyUse(None, time.time, up_bytes=2 * len(DATA), down_bytes=0)
        async with (
            inbox(tmp_path, Bandwidth(up=rate, book=book)) as (port, backing, meter),
            ShapingProxy("127.0.0.1", port) as proxy,
            HttpStore(proxy.url) as store,
        ):
            key = f"{MANIFEST.run_id.hex()}/copies/{'0' * 64}"
            small = f"{MANIFEST.run_id.hex()}/rounds/00000001/record"
            await backing.put(key, DATA)
            await backing.put(small, b"record")
            gets = [store.get(key, max_bytes=len(DATA)) for _ in range(2)]
            work = asyncio.gather(*gets)
            _, served = await counted(lambda: proxy.num_bytes_down, work, most_of(rate))
            assert served >= 2 * len(DATA)
            totals = meter.totals()["others", "up", "served"]
            assert (totals.num_bytes, totals.num_failed) == (2 * len(DATA), 0)
            # The quota is used up: records still go out, payloads do not.
            with pytest.raises(Exception, match="the server says 503"):
                await store.get(key, max_bytes=len(DATA))
            assert await store.get(small, max_bytes=10) == b"record"

    asyncio.run(body())


def test_a_used_up_upload_quota_stops_payloads_and_no_announcement() -> None:
    async def body() -> None:
        book = MonthlyUse(None, time.time, up_bytes=len(DATA), down_bytes=0)
        async with shelf() as (port, backing), HttpStore(f"http://127.0.0.1:{port}") as http:
            stores = metered(http, Bandwidth(book=book))
            payloads = stores.labelled(peer="own", kind="payload")
            await payloads.put("a", DATA)
            with pytest.raises(QuotaReachedError, match="E_QUOTA the month's upload quota"):
                await payloads.put("b", DATA)
            await stores.labelled(peer="own", kind="announcement").put("c", b"here I am")
            assert await payloads.get("a", max_bytes=len(DATA)) == DATA
            assert (await backing.list("")).keys == ("a", "c")
            assert book.sums().down == len(DATA)

    asyncio.run(body())


def test_a_node_whose_download_quota_is_used_up_does_not_start(
    forge: Forge, tmp_path: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=1)
    folder = run.add_node("peer-0")
    config = folder / "node.toml"
    config.write_text(config.read_text() + "\n[bandwidth]\nmonthly_download_bytes = 1000\n")
    (folder / "state").mkdir(exist_ok=True)
    sums = {"format": "shoal/monthly-use/1", "month": month_of(time.time()), "up": 0, "down": 1000}
    (folder / "state" / FILE_NAME).write_text(json.dumps(sums))
    node = Node(forge, folder, run.manifest_file, "join").start()
    with all_ended(node):
        assert node.wait() == 4
    last = node.output().strip().splitlines()[-1]
    assert last.startswith("shoal: E_QUOTA the month's download quota is used up: 1,000 of 1,000")
    assert "a new month begins at" in last
