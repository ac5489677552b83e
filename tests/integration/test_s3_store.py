"""The S3 store against a real server: races, keys, large objects, bad links, kills."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageUnavailableError,
)
from shoal.storage.progress import Progress, keeping
from shoal.storage.s3 import S3Credentials, S3Limits, S3Store
from shoal.storage.seaweed import BucketKeys, SeaweedServer, SeaweedStartError
from shoal.storage.seaweed_process import find_program, free_ports
from tests.support import s3_server
from tests.support.s3_bad_server import noise, until
from tests.support.shaping_proxy import Link, ShapingProxy

pytestmark = pytest.mark.slow

MIB = 1 << 20
LIMITS = S3Limits(deadline_s=60.0, read_timeout_s=5.0, first_wait_s=0.05, part_bytes=5 * MIB)
LARGE = noise(11, 12 * MIB + 17)


class Stores:
    """Stores of one fresh folder of a bucket, for whoever asks."""

    def __init__(self, server: SeaweedServer, bucket: str) -> None:
        self.server = server
        self.config = server.config(bucket, prefix=s3_server.fresh_prefix())
        self.keys = server.keys[bucket]
        self._opened: list[S3Store] = []

    def open(self, credentials: S3Credentials | None, *, port: int = 0) -> S3Store:
        config = self.config
        if port:
            config = replace(config, endpoint_url=f"http://127.0.0.1:{port}")
        self._opened.append(S3Store(config, credentials, limits=LIMITS))
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture
def public(request) -> Iterator[Stores]:
    stores = Stores(s3_server.seaweed(request.config), s3_server.PUBLIC)
    yield stores
    stores.close()


@pytest.fixture
def private(request) -> Iterator[Stores]:
    stores = Stores(s3_server.seaweed(request.config), s3_server.PRIVATE)
    yield stores
    stores.close()


def has_moved(proxy: ShapingProxy, num_bytes: int) -> bool:
    return proxy.num_bytes_down > num_bytes


async def num_uploads(store: S3Store) -> int:
    return len((await store.request("list_multipart_uploads", "")).get("Uploads", ()))


@pytest.mark.parametrize(("num_racers", "num_bytes"), [(16, 1000), (6, 5 * MIB + 1)])
def test_of_racing_stores_exactly_one_creates_the_key(private, num_racers, num_bytes):
    racers = [private.open(private.keys.writer) for _ in range(num_racers)]

    async def race() -> list[object]:
        calls = [
            store.put("rounds/7/record", bytes([number]) * num_bytes)
            for number, store in enumerate(racers)
        ]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    async def scenario() -> None:
        outcomes = await race()
        assert outcomes.count(None) == 1
        assert sum(isinstance(outcome, ObjectExistsError) for outcome in outcomes) == num_racers - 1
        found = await racers[0].get("rounds/7/record", max_bytes=num_bytes)
        assert found == bytes([outcomes.index(None)]) * num_bytes

    asyncio.run(scenario())


def test_a_version_is_overwritten_only_by_whoever_knows_it(private):
    store = private.open(private.keys.writer)

    async def scenario() -> None:
        await store.put("a", b"1")
        etag = (await store.request("head_object", "a"))["ETag"]
        await store.request("put_object", "a", Body=b"2", IfMatch=etag)
        with pytest.raises(ObjectExistsError):
            await store.request("put_object", "a", Body=b"3", IfMatch=etag)
        assert await store.get("a", max_bytes=1) == b"2"

    asyncio.run(scenario())


def test_a_large_object_travels_in_parts_and_comes_back(public):
    writer, anybody = public.open(public.keys.writer), public.open(None)
    up, down = Progress(time.monotonic), Progress(time.monotonic)

    async def scenario() -> None:
        with keeping(up):
            await writer.put("a", LARGE, overwrite=True)
        with keeping(down):
            assert await anybody.get("a", max_bytes=len(LARGE)) == LARGE
        part = await anybody.get("a", max_bytes=12 * MIB, start=7, length=11 * MIB)
        assert part == LARGE[7 : 7 + 11 * MIB]
        with pytest.raises(ObjectExistsError):
            await writer.put("a", LARGE)
        await writer.put("b", LARGE)
        assert await anybody.get("b", max_bytes=len(LARGE)) == LARGE
        assert await num_uploads(writer) == 0

    asyncio.run(scenario())
    assert (up.num_bytes, down.num_bytes) == (len(LARGE), len(LARGE))
    assert (up.num_retries, down.num_retries) == (0, 0)


def test_a_large_upload_over_a_bad_link_sends_no_finished_part_again(private):
    async def scenario() -> None:
        port = int(private.server.endpoint_url.rsplit(":", 1)[1])
        link = Link(drop_up_after_bytes=3 * MIB, num_drops=2)
        async with ShapingProxy("127.0.0.1", port, link) as proxy:
            store = private.open(private.keys.writer, port=proxy.port)
            await store.put("a", LARGE, overwrite=True)
            assert proxy.num_dropped == 2
            # Each drop costs at most the part that it has hit.
            assert proxy.num_bytes_up < len(LARGE) + proxy.num_dropped * 4 * MIB
        assert await private.open(private.keys.writer).get("a", max_bytes=len(LARGE)) == LARGE

    asyncio.run(scenario())


def test_a_large_download_over_a_bad_link_reads_hardly_a_byte_twice(public):
    async def scenario() -> None:
        await public.open(public.keys.writer).put("a", LARGE)
        port = int(public.server.endpoint_url.rsplit(":", 1)[1])
        link = Link(drop_after_bytes=2 * MIB, num_drops=4)
        async with ShapingProxy("127.0.0.1", port, link) as proxy:
            store = public.open(None, port=proxy.port)
            assert await store.get("a", max_bytes=len(LARGE)) == LARGE
            assert proxy.num_dropped == 4
            assert proxy.num_bytes_down < len(LARGE) + 4 * MIB

    asyncio.run(scenario())


def test_a_link_that_breaks_for_a_while_costs_time_only(public):
    async def scenario() -> None:
        writer = public.open(public.keys.writer)
        await writer.put("a", LARGE[: 4 * MIB])
        port = int(public.server.endpoint_url.rsplit(":", 1)[1])
        link = Link(bytes_per_s=8 * MIB)
        async with ShapingProxy("127.0.0.1", port, link) as proxy:
            store = public.open(None, port=proxy.port)
            reading = asyncio.create_task(store.get("a", max_bytes=4 * MIB))
            await until(lambda: proxy.num_bytes_down > MIB)
            proxy.link.is_cut = True
            await asyncio.sleep(0.2)
            proxy.link.is_cut = False
            assert await reading == LARGE[: 4 * MIB]

    asyncio.run(scenario())


def test_wrong_keys_are_refused_and_shown_to_nobody(private):
    good = private.keys.writer
    wrong = [
        S3Credentials(access_key=good.access_key, secret_key="canary" * 5),
        S3Credentials(access_key="unknown", secret_key=good.secret_key),
    ]

    async def scenario() -> None:
        for credentials in wrong:
            store = private.open(credentials)
            for call in (
                store.put("a", b"x"),
                store.get("a", max_bytes=1),
                store.head("a"),
                store.list(""),
                store.delete("a"),
            ):
                with pytest.raises(AccessDeniedError) as caught:
                    await call
                assert "canary" not in str(caught.value)
                assert good.secret_key not in str(caught.value)

    asyncio.run(scenario())


def test_a_public_bucket_is_read_by_anybody_and_written_by_its_owner(public, private):
    async def scenario() -> None:
        await public.open(public.keys.writer).put("a", b"hello")
        await private.open(private.keys.writer).put("a", b"hello")
        anybody = public.open(None)
        assert await anybody.get("a", max_bytes=5) == b"hello"
        assert (await anybody.head("a")).num_bytes == 5
        assert (await anybody.list("")).keys == ("a",)
        for call in (anybody.put("b", b"x"), anybody.delete("a")):
            with pytest.raises(AccessDeniedError):
                await call
        closed = private.open(None)
        for call in (closed.get("a", max_bytes=5), closed.head("a"), closed.list("")):
            with pytest.raises(AccessDeniedError):
                await call
        assert await anybody.get("a", max_bytes=5) == b"hello"

    asyncio.run(scenario())


def test_a_read_only_key_reads_its_bucket_and_no_other(public, private):
    async def scenario() -> None:
        await private.open(private.keys.writer).put("a", b"hello")
        reader = private.open(private.keys.reader)
        assert await reader.get("a", max_bytes=5) == b"hello"
        for call in (reader.put("b", b"x"), reader.put("a", b"x", overwrite=True)):
            with pytest.raises(AccessDeniedError):
                await call
        with pytest.raises(AccessDeniedError):
            await reader.delete("a")
        for foreign in (public.keys.writer, public.keys.reader):
            with pytest.raises(AccessDeniedError):
                await private.open(foreign).get("a", max_bytes=5)

    asyncio.run(scenario())


def test_a_bucket_that_is_not_there_is_an_error_that_says_so(private):
    private.config = replace(private.config, bucket="no-such-bucket")

    async def scenario() -> None:
        store = private.open(private.server.admin)
        for call in (store.put("a", b"x"), store.list("")):
            with pytest.raises(AccessDeniedError, match="bucket is not there"):
                await call

    asyncio.run(scenario())


def test_an_object_deleted_or_replaced_while_it_is_read_is_never_a_mixture(public):
    writer = public.open(public.keys.writer)
    new = bytes(len(LARGE))

    async def scenario() -> None:
        port = int(public.server.endpoint_url.rsplit(":", 1)[1])
        for replaced in (True, False):
            await writer.put("a", LARGE, overwrite=True)
            async with ShapingProxy("127.0.0.1", port, Link(bytes_per_s=16 * MIB)) as proxy:
                store = public.open(None, port=proxy.port)
                reading = asyncio.create_task(store.get("a", max_bytes=len(LARGE)))
                await until(partial(has_moved, proxy, 2 * MIB))
                if replaced:
                    await writer.put("a", new, overwrite=True)
                    proxy.link.bytes_per_s = 0
                    assert await reading in (LARGE, new)
                else:
                    await writer.delete("a")
                    proxy.link.is_cut = True
                    await asyncio.sleep(0.05)
                    proxy.link.is_cut = False
                    with pytest.raises(ObjectNotFoundError):
                        await reading

    asyncio.run(scenario())


def test_a_server_that_is_killed_is_unavailable_and_has_kept_what_it_confirmed(tmp_path):
    keys = BucketKeys.random()

    async def scenario() -> None:
        async with SeaweedServer.start(tmp_path, {"bucket": keys}) as server:
            store = S3Store(
                server.config("bucket"), keys.writer, limits=replace(LIMITS, deadline_s=3.0)
            )
            await store.put("a", LARGE[: 6 * MIB])
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(StorageUnavailableError):
                await store.get("a", max_bytes=6 * MIB)
            store.close()
        async with SeaweedServer.start(tmp_path, {"bucket": keys}) as server:
            store = S3Store(server.config("bucket"), keys.writer, limits=LIMITS)
            assert await store.get("a", max_bytes=6 * MIB) == LARGE[: 6 * MIB]
            store.close()

    asyncio.run(scenario())


STARTER = """
import asyncio, os, sys
from pathlib import Path
from shoal.storage.seaweed import BucketKeys, SeaweedServer

async def main():
    async with SeaweedServer.start(Path(sys.argv[1]), {"bucket": BucketKeys.random()}) as server:
        print(server.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_the_server_dies_with_the_process_that_started_it(tmp_path):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert is_running(pid)
    starter.kill()
    starter.communicate()
    ends_at_s = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < ends_at_s:
        time.sleep(0.05)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_server_listens_on_this_machine_only_and_its_secrets_are_private(request):
    server = s3_server.seaweed(request.config)
    listening = "0A"
    sockets = {
        os.readlink(link)  # noqa: PTH115 - sockets are no paths
        for link in Path(f"/proc/{server.pid}/fd").iterdir()
    }
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    own = [row for row in rows if row[3] == listening and f"socket:[{row[9]}]" in sockets]
    assert len(own) >= 5
    assert {row[1].split(":")[0] for row in own} == {"0100007F"}
    assert (server.log.parent / "s3.json").stat().st_mode & 0o077 == 0
    command = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{server.pid}/environ").read_bytes()
    for keys in (*server.keys.values(),):
        for key in (keys.writer, keys.reader):
            assert key.secret_key.encode() not in command + environment
            assert key.secret_key not in server.log.read_text(errors="replace")
    assert b"AWS" not in environment


def test_a_server_that_is_not_installed_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr("shoal.storage.seaweed_process._PACKAGE", "no-such-package")
    with pytest.raises(SeaweedStartError, match="pip install"):
        find_program()


def test_no_free_port_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr("shoal.storage.seaweed_process._is_free", lambda _: False)
    with pytest.raises(SeaweedStartError, match="free ports"):
        free_ports(5)


def test_a_server_that_ends_at_once_names_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.storage.seaweed.find_program", lambda: Path("/bin/false"))

    async def scenario() -> None:
        with pytest.raises(SeaweedStartError, match=r"weed\.log"):
            async with SeaweedServer.start(tmp_path, {"bucket": BucketKeys.random()}):
                pass

    asyncio.run(scenario())
