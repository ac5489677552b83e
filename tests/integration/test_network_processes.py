"""Real network processes on this machine: exchange, kills, restarts, nothing left behind."""

import asyncio
import functools
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from shoal.node.network import signed_records, supervisor
from shoal.node.network.client import NetworkClient
from shoal.node.network.dht_records import ATTENDING_KIND, POINTER_KIND
from shoal.node.network.downloads import Source
from shoal.node.network.errors import PeerUnavailableError, RecordRefusedError, WrongBytesError
from shoal.node.network.messages import Start, Status
from shoal.node.network.p2p_store import P2PStore
from shoal.node.network.signed_records import RecordPointer
from shoal.protocol.announcement import (
    Announcement,
    AnnouncementType,
    Where,
    build_announcement,
)
from shoal.protocol.identity import Identity, from_seed
from shoal.storage.errors import ObjectNotFoundError
from shoal.storage.meter import Meter, MeteredStore

pytestmark = pytest.mark.slow

RUN_ID = bytes(range(32))
ROUND_S = 60
DRAW = random.Random(20_260)  # noqa: S311 - data of tests
MIB = 2**20

# A node that dies: it prints what it started, then waits to be killed.
NODE = """
import asyncio, json, sys
from shoal.node.network.client import NetworkClient
from shoal.node.network.messages import Start
from shoal.protocol.identity import from_seed

async def main():
    options = Start(folder=sys.argv[1], run_id=bytes(32), round_ms=60_000, allow_private=True)
    async with NetworkClient(options, from_seed(bytes(32))) as network:
        status = await network.status()
        print(json.dumps([status.process_id, status.p2pd_process_id]), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def in_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Runs a test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def identity(number: int) -> Identity:
    return from_seed(bytes([number]) * 32)


def options(folder: Path, *seeds: str, **changes: object) -> Start:
    values = {"folder": str(folder), "run_id": RUN_ID, "round_ms": ROUND_S * 1000}
    return Start(**{**values, "seeds": seeds, "allow_private": True, **changes})  # type: ignore[arg-type] # by name


def source_of(status: Status) -> Source:
    return tuple(f"{place}/p2p/{status.peer_id}" for place in status.addresses)


def is_alive(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    ends_at_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends_at_s, "not within the time"
        time.sleep(0.05)


async def until_status(
    network: NetworkClient, condition: Callable[[Status], bool], timeout_s: float = 30.0
) -> Status:
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                status = await network.status()
            except PeerUnavailableError:
                continue  # p2pd has just ended, and its process does not know it yet
            if condition(status):
                return status
            await asyncio.sleep(0.1)


async def until_replaced(network: NetworkClient, before: Status) -> Status:
    """Waits for another process, which must be the same peer, with nothing left of the last one."""
    after = await until_status(network, lambda status: status.process_id != before.process_id, 60)
    assert after.peer_id == before.peer_id
    assert not is_alive(before.process_id)
    assert not is_alive(before.p2pd_process_id)
    return after


async def published(network: NetworkClient, value: bytes) -> None:
    """As a node does: again, while the others have no time for it."""
    async with asyncio.timeout(90):
        while True:
            try:
                await network.publish(value)
            except PeerUnavailableError:
                await asyncio.sleep(0.5)
            else:
                return


@asynccontextmanager
async def swarm(folder: Path, count: int) -> AsyncIterator[list[NetworkClient]]:
    """Starts nodes that all have the first one as their seed, and waits until they know it."""
    # A seed has a port that stays.
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = (f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}",)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            NetworkClient(options(folder / "0", listen=listen), identity(0))
        )
        seeds = source_of(await first.status())
        others = [
            await stack.enter_async_context(
                NetworkClient(options(folder / str(number), *seeds), identity(number))
            )
            for number in range(1, count)
        ]
        for network in others:
            await until_status(network, lambda status: status.routing_table_size > 0)
        yield [first, *others]


def pointer(who: Identity, sequence: int, **changes: object) -> bytes:
    values: dict[str, object] = {
        "run_id": RUN_ID,
        "peer_key": who.peer.key,
        "sequence": sequence,
        "expires_at_s": int(time.time()) + ROUND_S,
        "round_id": 7,
        "record_sha256": bytes(32),
        "num_bytes": 7,
    }
    return signed_records.build(who, RecordPointer(**{**values, **changes}))  # type: ignore[arg-type] # by name


def announcement(who: Identity, sequence: int) -> bytes:
    return build_announcement(
        who,
        Announcement(
            run_id=RUN_ID,
            round_id=3,
            peer_key=who.peer.key,
            type=AnnouncementType.ATTENDING,
            sequence=sequence,
            where=Where(provider="p2p"),
        ),
    )


@in_loop
async def test_records_and_objects_reach_all_and_bad_ones_nobody(tmp_path: Path) -> None:
    data = DRAW.randbytes(8 * MIB)
    object_id = hashlib.sha256(data).digest()
    async with swarm(tmp_path, 3) as nodes:
        first, second, third = nodes

        said = announcement(identity(1), 5)
        await second.publish(said)
        newer = pointer(identity(1), 9)
        await second.publish(newer)
        for network in nodes:
            assert await network.look_up(identity(1).peer, ATTENDING_KIND) == said
            assert await network.look_up(identity(1).peer, POINTER_KIND) == newer

        for value, code in (
            (pointer(identity(1), 10, run_id=bytes(32)), "E_RUN"),
            (pointer(identity(1), 8), "E_ROLLBACK"),
            (pointer(identity(1), 9, round_id=8), "E_EQUIVOCATION"),
            (
                pointer(identity(1), 10, expires_at_s=int(time.time()) + 10 * 365 * 86_400),
                "E_DHT_EXPIRY_FAR",
            ),
        ):
            with pytest.raises(RecordRefusedError, match=f"^{code}"):
                await second.publish(value)
        assert await third.look_up(identity(1).peer, POINTER_KIND) == newer

        # The third one learns from the DHT where the second one is, and fetches from there.
        await second.serve(object_id, data)
        async with asyncio.timeout(20):
            while (found := await third.find_peer(identity(1).peer)) is None:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.2)

        meter = Meter(time.monotonic)

        async def sources(_: bytes) -> list[Source]:
            return [found]

        store = MeteredStore(P2PStore(third, sources), meter).labelled(peer="second", kind="copy")
        key = f"{RUN_ID.hex()}/copies/{object_id.hex()}"
        assert await store.get(key, max_bytes=len(data)) == data
        assert (await store.head(key)).num_bytes == len(data)
        [transfer] = meter.drain()
        assert (transfer.num_bytes, transfer.ok) == (len(data), True)

        # Reading does not serve it; when the third one has checked it and says so, others get it.
        source = source_of(await third.status())
        with pytest.raises(ObjectNotFoundError):
            await first.fetch(object_id, [source], num_bytes=len(data), timeout_s=10)
        await third.serve(object_id, data)
        got = await first.fetch(object_id, [source], num_bytes=len(data), timeout_s=30)
        assert got == data

        with pytest.raises(ObjectNotFoundError):
            await first.fetch(bytes(32), [source], num_bytes=5, timeout_s=10)
        await third.serve(b"\x01" * 32, b"other bytes than its id says")
        with pytest.raises(WrongBytesError):
            await first.fetch(b"\x01" * 32, [source], num_bytes=28, timeout_s=10)


@in_loop
async def test_what_is_killed_is_replaced_and_a_fetch_goes_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DRAW.randbytes(48 * MIB)
    object_id = hashlib.sha256(data).digest()
    killed_after = DRAW.randrange(4 * MIB, 24 * MIB)
    async with swarm(tmp_path, 3) as nodes:
        first, second, third = nodes
        statuses = [await network.status() for network in nodes]
        for network in (first, second):
            await network.serve(object_id, data)

        # The process of a source, in the middle of a fetch.
        room, has_begun = memoryview(bytearray(len(data))), asyncio.Event()

        def arrived(num_bytes: int) -> None:
            if num_bytes >= killed_after:
                has_begun.set()

        sources = [source_of(statuses[0]), source_of(statuses[1])]
        fetching = asyncio.create_task(
            third.fetch_into(object_id, sources, room, arrived, timeout_s=60)
        )
        await has_begun.wait()
        assert not fetching.done()
        os.kill(statuses[0].process_id, signal.SIGKILL)
        await fetching
        assert room == data
        assert 0 < (await second.status()).num_bytes_up < len(data)
        # Chunks that were on their way when it was killed count as well.
        assert (await third.status()).num_bytes_down <= len(data) + MIB

        # It is back as the same peer, and serves what it served before.
        again = await until_replaced(first, statuses[0])
        got = await third.fetch(object_id, [source_of(again)], num_bytes=len(data), timeout_s=30)
        assert got == data

        # The p2pd of the other one, which has published something as well.
        said = pointer(identity(1), 3)
        await published(second, said)
        os.kill(statuses[1].p2pd_process_id, signal.SIGKILL)
        after = await until_replaced(second, statuses[1])
        assert second.num_starts == 2
        async with asyncio.timeout(90):
            # The port is another one, and its new peer record says so.
            while await third.find_peer(identity(1).peer) != source_of(after):  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.2)
        assert await second.look_up(identity(1).peer, POINTER_KIND) == said

        # A p2pd that is there and does not answer.
        monkeypatch.setattr(supervisor, "_PING_EVERY_S", 0.2)
        monkeypatch.setattr(supervisor, "_PING_TIMEOUT_S", 2.0)
        monkeypatch.setattr(supervisor, "STOP_TIMEOUT_S", 1.0)
        os.kill(statuses[2].p2pd_process_id, signal.SIGSTOP)
        await until_replaced(third, statuses[2])
        assert third.last_failure == "2 pings without an answer"


def test_nothing_is_left_when_the_node_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    with subprocess.Popen(
        [sys.executable, "-c", NODE, str(folder)], stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        process_id, p2pd_process_id = json.loads(node.stdout.readline())
        assert is_alive(process_id)
        assert is_alive(p2pd_process_id)
        node.kill()
    wait_for(lambda: not is_alive(process_id))
    wait_for(lambda: not is_alive(p2pd_process_id))
    assert not (folder / "s").exists()


def test_nothing_is_left_when_node_and_process_are_killed_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    with subprocess.Popen(
        [sys.executable, "-c", NODE, str(folder)], stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        process_id, p2pd_process_id = json.loads(node.stdout.readline())
        os.kill(process_id, signal.SIGSTOP)
        node.kill()
        os.kill(process_id, signal.SIGKILL)
    wait_for(lambda: not is_alive(process_id))
    wait_for(lambda: not is_alive(p2pd_process_id))


@in_loop
async def test_without_a_reachable_seed_it_runs_on_and_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = silent.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as closed:
            dead = closed.getsockname()[1]
        peer = "QmSW7TgokpiETjXFxzh9GbEJQeTDfJ5fWr24p7o2fGjdZK"
        seeds = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}" for port in (dead, mute)]
        wanted = options(tmp_path / "alone", *seeds, "/ip4/127.0.0.1/tcp/1", "nonsense")
        async with NetworkClient(wanted, identity(1)) as network:
            status = await until_status(network, lambda status: status.last_error != "", 60)
            assert status.last_error == "none of 2 seeds answered, trying again"
            lines = "\n".join(status.seeds)
            assert f"tcp/{dead}/p2p/{peer}: [Errno 111]" in lines
            assert "nonsense: 'nonsense' is not an address" in lines
            assert "does not end in /p2p/" in lines
            # It is a network of one: what it publishes it finds.
            await network.publish(pointer(identity(1), 1))
            assert await network.look_up(identity(1).peer, POINTER_KIND) is not None
            with pytest.raises(PeerUnavailableError):
                await network.fetch(bytes(32), [(seeds[0],)], num_bytes=9, timeout_s=3)
            assert network.num_starts == 1
            process_ids = status.process_id, status.p2pd_process_id
    assert not any(is_alive(one) for one in process_ids)


@in_loop
async def test_options_that_cannot_be_are_reported_and_tried_again(tmp_path: Path) -> None:
    wanted = options(tmp_path / "node", listen=("/ip4/192.0.2.1/tcp/1",))
    async with NetworkClient(wanted, identity(1)) as network:
        async with asyncio.timeout(60):
            while not network.last_failure:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.05)
        assert "p2pd did not start" in network.last_failure
        with pytest.raises(PeerUnavailableError, match="p2pd did not start"):
            await network.status(timeout_s=0.1)
