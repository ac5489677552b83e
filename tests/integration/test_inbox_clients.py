"""Clients of the validator's HTTP service that go away, do not read, or only take places."""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shoal.node import inbox_bodies, listening
from shoal.node.inbox import serving
from shoal.node.run_context import RunContext
from shoal.storage.errors import StorageError, StorageUnavailableError
from shoal.storage.http import HttpLimits, HttpStore
from shoal.storage.memory import MemoryStore
from tests.integration.test_http_inbox import ALICE, MANIFEST, context_of
from tests.support.manifests import first_head

BLOB = bytes(range(256)) * (36 * 1024)
"""9 MiB: nine reads of the store."""
LIMITS = HttpLimits(total_s=60.0)


class _CountingStore(MemoryStore):
    """Notes how much is read at once; can fail from some place on."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []
        self.fails_from: int | None = None

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        self.lengths.append(length or max_bytes)
        if self.fails_from is not None and start >= self.fails_from:
            raise StorageUnavailableError("the disk is gone", key)
        return await super().get(key, max_bytes=max_bytes, start=start, length=length)


@asynccontextmanager
async def _service(folder: Path, store: MemoryStore) -> AsyncIterator[tuple[str, RunContext]]:
    run = context_of(folder, store)
    async with serving(run, store, lambda: first_head(MANIFEST), "127.0.0.1:0") as url:
        yield url, run
    run.log.close()


@asynccontextmanager
async def _closing(*writers: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    sock = socket.socket()
    # A small room, so that a reader that does not read is soon noticed.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
    return await asyncio.open_connection(sock=sock, limit=4096)


async def _ended(reader: asyncio.StreamReader) -> bool:
    with suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass
    return True


async def _get_begun(url: str, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await _connect(url)
    writer.write(f"GET /objects/{key} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await writer.drain()
    assert b"200" in await reader.readline()
    return reader, writer


def test_a_client_that_goes_away_in_the_middle_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        store = MemoryStore()
        async with _service(tmp_path, store) as (url, run):
            await store.put(run.keys.manifest, BLOB)
            payload_key = run.keys.payload(1, ALICE.peer)
            num_gone = 0
            for how in ("reset while reading", "reset while sending", "never sent"):
                if how == "reset while reading":
                    _, writer = await _get_begun(url, run.keys.manifest)
                else:
                    _, writer = await _connect(url)
                    head = f"PUT /objects/{payload_key} HTTP/1.1\r\nHost: x\r\n"
                    writer.write(f"{head}Content-Length: {MANIFEST.payload_bytes}\r\n\r\n".encode())
                    writer.write(b"x" * (10 if how == "reset while sending" else 0))
                    await writer.drain()
                    await asyncio.sleep(0.1)
                writer.transport.abort()
                num_gone += 1
            async with HttpStore(url, LIMITS) as client:
                assert await client.get(run.keys.manifest, max_bytes=len(BLOB)) == BLOB
            assert num_gone == 3
            assert (await store.list(run.keys.payload(1, ALICE.peer))).keys == ()

    with caplog.at_level(logging.INFO):
        asyncio.run(body())
    assert caplog.text.count("did not get all of it") == 1
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR or r.exc_info], caplog.text


def test_what_is_read_is_never_whole_in_memory(tmp_path: Path) -> None:
    async def body() -> None:
        store = _CountingStore()
        async with _service(tmp_path, store) as (url, run):
            await store.put(run.keys.manifest, BLOB)
            async with HttpStore(url, LIMITS) as client:
                assert await client.get(run.keys.manifest, max_bytes=len(BLOB)) == BLOB
                part = await client.get(run.keys.manifest, max_bytes=len(BLOB), start=3, length=5)
            assert part == BLOB[3:8]
        assert store.lengths == [1 << 20] * 9 + [5]

    asyncio.run(body())


def test_a_store_that_fails_in_the_middle_gives_no_whole_answer(tmp_path: Path) -> None:
    async def body() -> None:
        store = _CountingStore()
        async with _service(tmp_path, store) as (url, run):
            await store.put(run.keys.manifest, BLOB)
            for fails_from in (0, 4 << 20):
                store.fails_from = fails_from
                async with HttpStore(url, LIMITS) as client:
                    with pytest.raises(StorageError):
                        await client.get(run.keys.manifest, max_bytes=len(BLOB))
            store.fails_from = None
            async with HttpStore(url, LIMITS) as client:
                assert await client.get(run.keys.manifest, max_bytes=len(BLOB)) == BLOB

    asyncio.run(body())


def test_a_reader_that_does_not_read_loses_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_bodies, "_WRITE_S", 0.5)

    async def body() -> None:
        store = MemoryStore()
        async with _service(tmp_path, store) as (url, run):
            await store.put(run.keys.manifest, BLOB)
            reader, writer = await _get_begun(url, run.keys.manifest)
            async with _closing(writer), asyncio.timeout(60):
                while not (transfers := run.meter.drain()):  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.02)
                assert await _ended(reader)
            assert not transfers[0].ok
            assert transfers[0].num_bytes < len(BLOB)

    asyncio.run(body())


def test_idle_connections_do_not_keep_others_out_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(listening, "IDLE_S", 1.0)

    async def body() -> None:
        store = MemoryStore()
        async with _service(tmp_path, store) as (url, run):
            await store.put(run.keys.manifest, b"0123456789")
            crowd = [await _connect(url) for _ in range(30)]
            # Half a head each, and then nothing more.
            for _, writer in crowd:
                writer.write(b"GET / HTTP/1.1\r\nHost:")
            async with _closing(*(writer for _, writer in crowd)), asyncio.timeout(60):
                assert all(await asyncio.gather(*(_ended(reader) for reader, _ in crowd)))
                async with HttpStore(url, LIMITS) as client:
                    assert await client.get(run.keys.manifest, max_bytes=10) == b"0123456789"

    asyncio.run(body())


def test_lack_of_descriptors_delays_a_connection_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        store = MemoryStore()
        async with _service(tmp_path, store) as (url, run):
            await store.put(run.keys.manifest, b"0123456789")
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            sock = socket.socket()
            sock.setblocking(False)
            lowest_free = os.dup(sock.fileno())
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
            try:
                parts = urlsplit(url)
                await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
                async with asyncio.timeout(60):
                    while "no new connection for now" not in caplog.text:  # noqa: ASYNC110 - a log
                        await asyncio.sleep(0.02)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            reader, writer = await asyncio.open_connection(sock=sock)
            async with _closing(writer), asyncio.timeout(60):
                writer.write(
                    f"GET /objects/{run.keys.manifest} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
                )
                assert b"200" in await reader.readline()

    with caplog.at_level(logging.WARNING):
        asyncio.run(body())
