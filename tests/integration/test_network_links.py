"""Real network processes and the links between them: ones that break, ones that are capped."""

import asyncio
import hashlib
import random
import socket
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.node.network.client import NetworkClient
from shoal.node.network.downloads import Source
from shoal.node.network.messages import Start
from shoal.node.network.p2p_store import P2PStore
from shoal.protocol.identity import from_seed
from shoal.storage.pacing import RateLimit
from tests.support.shaping_proxy import ShapingProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LARGEST_READ_BYTES = 64 * 1024
"""What the fetching side hands on before it waits for its own cap."""
NOBODIES = [
    f"QmSW7TgokpiETjXFxzh9GbEJQeTDfJ5fWr24p7o2fGjd{end}" for end in ("ZK", "ZL", "ZM", "ZN")
]
RUN_ID = bytes(range(32))
LOCAL_DIAL_S = 5.0
"""What libp2p gives one dial to an address of this machine; others have three times as long."""
DRAW = random.Random(40_960)  # noqa: S311 - data of tests
KIB = 1024


def options(folder: Path, **changes: object) -> Start:
    values = {"folder": str(folder), "run_id": RUN_ID, "round_ms": 60_000, "allow_private": True}
    return Start(**{**values, **changes})  # type: ignore[arg-type] # by name


@dataclass
class Pair:
    """One that serves, one that fetches, and the only way between them."""

    server: NetworkClient
    fetcher: NetworkClient
    source: Source
    proxy: ShapingProxy


@asynccontextmanager
async def pair(folder: Path, *, up: int = 0, down: int = 0) -> AsyncIterator[Pair]:
    """Starts both; `up` caps what the one sends, `down` what the other takes, bytes per second."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with ShapingProxy("127.0.0.1", port) as proxy:
        place = f"/ip4/127.0.0.1/tcp/{proxy.port}"
        serves = options(
            folder / "server",
            listen=(f"/ip4/127.0.0.1/tcp/{port}",),
            announce=(place,),
            upload_bytes_per_s=up,
        )
        fetches = options(folder / "fetcher", client_mode=True, download_bytes_per_s=down)
        async with (
            NetworkClient(serves, from_seed(b"s" * 32)) as server,
            NetworkClient(fetches, from_seed(b"f" * 32)) as fetcher,
        ):
            peer_id = (await server.status()).peer_id
            await fetcher.status()
            yield Pair(server, fetcher, (f"{place}/p2p/{peer_id}",), proxy)


# As few as a handshake, one chunk and what is lost behind it take.
@pytest.mark.parametrize("reset_bytes", [64 * KIB, 32 * KIB])
def test_a_link_that_is_reset_again_and_again_delivers_by_resuming(
    tmp_path: Path, reset_bytes: int
) -> None:
    data = DRAW.randbytes(400 * KIB)
    object_id = hashlib.sha256(data).digest()

    async def run() -> None:
        async with pair(tmp_path) as both:
            await both.server.serve(object_id, data)
            both.proxy.link.drop_after_bytes = reset_bytes
            arrived: list[int] = []
            room = memoryview(bytearray(len(data)))
            await both.fetcher.fetch_into(
                object_id, [both.source], room, arrived.append, timeout_s=120
            )
            assert room == data
            # No connection has carried more: so many at least were broken before the last one.
            assert both.proxy.num_dropped >= len(data) // reset_bytes
            # What had come stayed, and was not sent again.
            assert arrived == sorted(arrived)
            assert (await both.fetcher.status()).num_bytes_down == len(data)

    asyncio.run(run())


@contextmanager
def swallowing_port() -> Iterator[int]:
    """A port of this machine that answers no SYN: its queue is full and stays so."""
    with ExitStack() as held:
        server = held.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(server.getsockname())
        yield server.getsockname()[1]


def check_that_it_swallows(port: int) -> None:
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=1.0)


def test_addresses_that_swallow_packets_are_not_waited_for(tmp_path: Path) -> None:
    data = DRAW.randbytes(300 * KIB)
    object_id = hashlib.sha256(data).digest()
    key = f"{RUN_ID.hex()}/copies/{object_id.hex()}"

    async def run(port: int) -> None:
        async with pair(tmp_path) as both:
            await both.server.serve(object_id, data)
            place = f"/ip4/127.0.0.1/tcp/{port}"
            dead: list[Source] = [(f"{place}/p2p/{one}",) for one in NOBODIES]

            async def author(_: bytes) -> list[Source]:
                return dead

            async def others(_: bytes) -> list[Source]:
                return [both.source]

            store = P2PStore(both.fetcher, author, named_by_hash=False, find_more=others)
            begin_s = time.monotonic()
            assert await store.get(key, max_bytes=len(data)) == data
            assert time.monotonic() - begin_s < LOCAL_DIAL_S

            # Among several sources of one object, and among several addresses of one peer.
            both.proxy.drop_all()
            num_connections = both.proxy.num_connections
            peer_id = both.source[0].rpartition("/")[2]
            sources = [*dead, (f"{place}/p2p/{peer_id}", *both.source)]
            begin_s = time.monotonic()
            got = await both.fetcher.fetch(object_id, sources, num_bytes=len(data), timeout_s=60)
            assert got == data
            assert time.monotonic() - begin_s < len(dead) * LOCAL_DIAL_S / 2
            assert both.proxy.num_connections > num_connections

    with swallowing_port() as port:
        check_that_it_swallows(port)
        asyncio.run(run(port))
        check_that_it_swallows(port)


@pytest.mark.parametrize("capped", ["up", "down"])
def test_a_capped_transfer_keeps_its_rate_and_lets_records_through(
    tmp_path: Path, capped: str
) -> None:
    cap_bytes_per_s = 512 * KIB
    data, record = DRAW.randbytes(2048 * KIB), DRAW.randbytes(32 * KIB)
    data_id, record_id = hashlib.sha256(data).digest(), hashlib.sha256(record).digest()

    async def run() -> None:
        async with pair(tmp_path, **{capped: cap_bytes_per_s}) as both:
            await both.server.serve(data_id, data)
            await both.server.serve(record_id, record)
            await both.fetcher.connect(both.source)
            arrived: list[tuple[float, int]] = []
            begin_s = time.monotonic()

            def note(num_bytes: int) -> None:
                arrived.append((time.monotonic() - begin_s, num_bytes))

            room = memoryview(bytearray(len(data)))
            fetching = asyncio.create_task(
                both.fetcher.fetch_into(data_id, [both.source], room, note, timeout_s=120)
            )
            records_s = []
            while not fetching.done():
                asked_s = time.monotonic()
                got = await both.fetcher.fetch(
                    record_id, [both.source], num_bytes=len(record), timeout_s=60
                )
                assert got == record
                if not fetching.done():
                    records_s.append(time.monotonic() - asked_s)
                await asyncio.wait((fetching,), timeout=0.5)
            await fetching
            took_s = time.monotonic() - begin_s
            assert room == data
            burst_bytes = RateLimit(cap_bytes_per_s, now_s=time.monotonic).burst_bytes
            at_once = burst_bytes + LARGEST_READ_BYTES
            assert all(
                num_bytes <= cap_bytes_per_s * at_s + at_once for at_s, num_bytes in arrived
            ), arrived
            assert took_s >= (len(data) - at_once) / cap_bytes_per_s
            # Whatever else runs on this machine.
            assert took_s < 5 * len(data) / cap_bytes_per_s
            assert len(records_s) >= 3
            assert statistics.median(records_s) < took_s / 4, records_s

    asyncio.run(run())
