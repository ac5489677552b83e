"""Over IPv6 loopback: addresses in brackets, wherever an address may be said."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from shoal.node.buckets import bucket_at, run_bucket
from shoal.node.config import NodeConfig, PayloadsConfig, StoreConfig
from shoal.node.inbox import serving
from shoal.protocol.announcement import Where
from shoal.protocol.manifest import EndpointsSection, ProviderSection
from shoal.storage.http import HttpStore
from shoal.storage.memory import MemoryStore
from shoal.storage.proxy import proxy_address
from shoal.storage.s3 import S3Store
from tests.integration.test_http_inbox import context_of
from tests.support import s3_server
from tests.support.http_proxy import HttpProxy
from tests.support.manifests import first_head, tiny_manifest

pytestmark = pytest.mark.slow

LOCAL = EndpointsSection(
    providers=(ProviderSection(name="local", url="http://[::1]:{port}"),), allow_loopback=True
)


@asynccontextmanager
async def door(port: int) -> AsyncIterator[int]:
    """A way from ::1 to a server on 127.0.0.1; gives its port."""

    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(1 << 16):
            writer.write(block)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))
        finally:
            up_writer.close()
            writer.close()

    async with await asyncio.start_server(serve, "::1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for task in tasks:
            task.cancel()


def test_the_http_service_listens_on_ipv6_and_says_a_url_that_works(tmp_path: Path) -> None:
    async def scenario() -> None:
        memory = MemoryStore()
        run = context_of(tmp_path, memory)
        key = f"{run.keys.run_id.hex()}/manifest"
        await memory.put(key, b"hello")
        async with serving(run, memory, lambda: first_head(run.manifest), "[::1]:0") as url:
            assert url.startswith("http://[::1]:")
            async with HttpStore(url) as store:
                assert await store.get(key, max_bytes=5) == b"hello"
                assert await store.server_time_s() > 0
            async with HttpProxy(host="::1") as proxy:
                assert proxy_address(proxy.url)[0] == "::1"
                async with HttpStore(url, proxy=proxy.url) as store:
                    assert await store.get(key, max_bytes=5) == b"hello"
                assert len(proxy.requests) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("is_proxied", [False, True])
def test_a_real_s3_server_behind_an_ipv6_address(
    request: pytest.FixtureRequest, is_proxied: bool
) -> None:
    server = s3_server.seaweed(request.config)
    writer = server.keys[s3_server.PUBLIC].writer
    data = bytes(range(256)) * 100

    async def scenario() -> None:
        async with (
            door(int(server.endpoint_url.rpartition(":")[2])) as port,
            HttpProxy(host="::1") as proxy,
        ):
            config = NodeConfig(
                key_file="",
                state_dir="",
                store=StoreConfig(
                    kind="s3", endpoint=f"http://[::1]:{port}", bucket=s3_server.PUBLIC
                ),
                payloads=PayloadsConfig(local_port=port),
                proxy=proxy.url if is_proxied else "",
            )
            own = S3Store(run_bucket(config), writer)
            key = f"{s3_server.fresh_prefix()}/six"
            await own.put(key, data)
            # As another node finds it: through the manifest's template, without a key.
            where = Where(provider="local", bucket=s3_server.PUBLIC)
            anybody = S3Store(bucket_at(tiny_manifest(endpoints=LOCAL), config, where), None)
            assert await anybody.get(key, max_bytes=len(data)) == data
            await own.delete(key)
            own.close()
            anybody.close()
            assert set(proxy.tunnels) == ({f"[::1]:{port}"} if is_proxied else set())

    asyncio.run(scenario())
