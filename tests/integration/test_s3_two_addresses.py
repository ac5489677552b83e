"""A server with two addresses, one of which is dead in one of the ways of the real world.

The dead address is ::1: nobody listens there; or somebody does whose queue is full, so that the
system swallows what comes, as a broken route does; or it takes connections and says nothing.
"""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from shoal.storage.dialling import begin_dial
from shoal.storage.errors import StorageUnavailableError
from shoal.storage.http import HttpStore
from shoal.storage.s3 import S3Config, S3Limits, S3Store
from tests.integration.test_s3_connection import HOST, certificate
from tests.support.http_proxy import HttpProxy
from tests.support.s3_bad_server import BadServer, Bucket, Exchange, Stored


def has_six() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_six(), reason="this machine has no ::1")

LIMITS = S3Limits(deadline_s=60.0, connect_timeout_s=6.0, first_wait_s=0.01)
MAX_DETOURS = 2
"""On a machine under load the good address may be taken for a slow one now and then."""
OBJECTS = {"/bucket/a": Stored(b"hello", {})}
linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems refuse where a queue is full"
)


@contextmanager
def silent_on_six(port: int) -> Iterator[socket.socket]:
    """Takes connections at [::1]:port and never says a word."""
    with socket.create_server(("::1", port), family=socket.AF_INET6) as listener:
        yield listener


@contextmanager
def swallowing_on_six(port: int) -> Iterator[socket.socket]:
    """What is sent to [::1]:port vanishes: the queue of whoever listens there is full."""
    with ExitStack() as held:
        listener = held.enter_context(
            socket.create_server(("::1", port), family=socket.AF_INET6, backlog=0)
        )
        for _ in range(50):
            filler = held.enter_context(socket.socket(socket.AF_INET6))
            filler.settimeout(0.3)
            try:
                filler.connect(("::1", port))
            except TimeoutError:
                break
        else:
            pytest.fail("the queue does not fill")
        yield listener


def both(host: str, port: int, **_: object):
    """A resolver that prefers IPv6, as systems do."""
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
    return [six, (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


async def closing(exchange: Exchange) -> None:
    await Bucket(objects=dict(OBJECTS))(exchange)
    exchange.close()


def store_of(server: BadServer, scheme: str = "http", **options) -> S3Store:
    config = S3Config(
        endpoint_url=f"{scheme}://{HOST}:{server.port}", bucket="bucket", allow_loopback=True
    )
    return S3Store(config, None, **{"limits": LIMITS, "getaddrinfo": both, **options})


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Dialler:
    """Begins to connect, and remembers where to."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def __call__(self, address: str, port: int) -> socket.socket:
        self.addresses.append(address)
        return begin_dial(address, port)

    @property
    def num_detours(self) -> int:
        """Connections that began with the dead address after one had been made."""
        return self.addresses[2:].count("::1")


async def times_of(store: S3Store, num_reads: int) -> list[float]:
    """How long each read takes; every one needs a connection of its own."""
    found = []
    for _ in range(num_reads):
        began_at_s = time.monotonic()
        assert await store.get("a", max_bytes=5) == b"hello"
        found.append(time.monotonic() - began_at_s)
    return found


def test_an_address_where_nobody_listens_costs_nothing() -> None:
    async def scenario() -> None:
        async with BadServer(closing) as server:
            store = store_of(server)
            await times_of(store, 3)
            store.close()
            assert server.num_connections == 3

    asyncio.run(scenario())


@linux_only
def test_an_address_that_swallows_everything_is_paid_for_once_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with BadServer(closing) as server:
            with swallowing_on_six(server.port):
                dialler = Dialler()
                store = store_of(server, dial=dialler)
                times = await times_of(store, 1)
                num_files, num_threads = num_open_files(), threading.active_count()
                times += await times_of(store, 20)
                store.close()
                assert num_open_files() <= num_files + 2
                assert threading.active_count() <= num_threads + LIMITS.num_threads
        # It could not be faster, and is not much slower; the connect limit is never used up.
        assert 0.25 <= times[0] < LIMITS.connect_timeout_s / 2
        assert dialler.addresses[:3] == ["::1", "127.0.0.1", "127.0.0.1"]
        assert dialler.num_detours <= MAX_DETOURS
        assert server.num_connections == 21

    asyncio.run(scenario())


@linux_only
def test_a_server_that_cannot_be_reached_at_all_takes_the_connect_limit() -> None:
    async def scenario() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with swallowing_on_six(port):
            config = S3Config(
                endpoint_url=f"http://{HOST}:{port}", bucket="bucket", allow_loopback=True
            )
            limits = S3Limits(deadline_s=20.0, connect_timeout_s=1.0, num_attempts=2)
            store = S3Store(config, None, limits=limits, getaddrinfo=both)
            began_at_s, num_files = time.monotonic(), num_open_files()
            with pytest.raises(StorageUnavailableError, match="TimeoutError"):
                await store.get("a", max_bytes=5)
            store.close()
            assert 2.0 <= time.monotonic() - began_at_s < 15.0
            assert num_open_files() <= num_files + 1

    asyncio.run(scenario())


def test_an_address_that_connects_and_then_stalls_is_paid_for_once(tmp_path: Path) -> None:
    server_tls, tls = certificate(tmp_path, HOST)

    async def scenario() -> None:
        async with BadServer(closing, tls=server_tls) as server:
            with silent_on_six(server.port):
                limits = S3Limits(deadline_s=60.0, connect_timeout_s=1.0, first_wait_s=0.01)
                dialler = Dialler()
                store = store_of(server, "https", tls=tls, limits=limits, dial=dialler)
                times = await times_of(store, 6)
                store.close()
        assert times[0] >= 1.0
        assert dialler.addresses[:2] == ["::1", "127.0.0.1"]
        assert dialler.num_detours <= MAX_DETOURS
        assert server.num_connections == 6

    asyncio.run(scenario())


@linux_only
def test_a_proxy_with_an_address_that_swallows_everything() -> None:
    async def scenario() -> None:
        async with BadServer(closing) as server, HttpProxy() as proxy:
            proxy_port = int(proxy.url.rpartition(":")[2])
            with swallowing_on_six(proxy_port):
                config = S3Config(
                    endpoint_url=f"http://127.0.0.1:{server.port}",
                    bucket="bucket",
                    allow_loopback=True,
                    proxy=f"http://proxy.example.com:{proxy_port}",
                )
                dialler = Dialler()
                store = S3Store(config, None, limits=LIMITS, getaddrinfo=both, dial=dialler)
                times = await times_of(store, 5)
                store.close()
            assert proxy.tunnels == [f"127.0.0.1:{server.port}"] * 5
        assert 0.25 <= times[0] < LIMITS.connect_timeout_s / 2
        assert dialler.num_detours <= MAX_DETOURS

    asyncio.run(scenario())


def test_a_proxy_that_cannot_reach_one_of_the_addresses_is_asked_for_the_other() -> None:
    async def scenario() -> None:
        async with BadServer(closing) as server, HttpProxy() as proxy:
            config = S3Config(
                endpoint_url=f"http://{HOST}:{server.port}",
                bucket="bucket",
                allow_loopback=True,
                proxy=proxy.url,
            )
            store = S3Store(config, None, limits=LIMITS, getaddrinfo=both)
            await times_of(store, 3)
            store.close()
            four = f"127.0.0.1:{server.port}"
            assert proxy.tunnels == [f"[::1]:{server.port}", four, four, four]

    asyncio.run(scenario())


@linux_only
def test_the_http_store_goes_round_a_dead_address_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo

        async def resolver(host, port, **options):
            if host == HOST:
                return both(host, port)
            return await real(host, port, **options)

        monkeypatch.setattr(loop, "getaddrinfo", resolver)
        objects = {"/objects/a": Stored(b"hello", {})}
        async with BadServer(Bucket(objects=objects)) as server:
            with swallowing_on_six(server.port), suppress(asyncio.CancelledError):
                async with HttpStore(f"http://{HOST}:{server.port}") as store:
                    began_at_s = time.monotonic()
                    assert await store.get("a", max_bytes=5) == b"hello"
                    assert 0.25 <= time.monotonic() - began_at_s < 5.0

    asyncio.run(scenario())
