"""A validator's and a peer's stores joined with a network in memory; look-ups that polls share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.node.config import NodeConfig, StoreConfig
from shoal.node.errors import ConfigError
from shoal.node.network import signed_records
from shoal.node.network.client import NetworkClient
from shoal.node.network.dht_records import POINTER_KIND, PUBLISHED_KIND
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.look_ups import LookUps
from shoal.node.network.object_ids import record_object_id
from shoal.node.network.signed_records import RecordPointer
from shoal.node.role import check_role
from shoal.node.run_network import RunNetwork, publishers, run_network, served_folders
from shoal.node.store_keys import StoreKeys
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import AdmissionSection
from shoal.protocol.record import build_record, check_certified
from shoal.storage.errors import StorageUnavailableError
from shoal.storage.memory import MemoryStore
from tests.support.bodies import body_like
from tests.support.contexts import announcement_for, payload_for
from tests.support.manifests import (
    VALIDATOR,
    first_head,
    layout_of,
    peer,
    record_after,
    tiny_manifest,
    verified_after,
)
from tests.support.network_world import World, WorldClient, source_of

ME, OTHER = peer(1), peer(2)
MANIFEST = tiny_manifest(
    admission=AdmissionSection(mode="roster", peers=(ME.peer.key, OTHER.peer.key))
)
RUN_ID = MANIFEST.run_id
KEYS = StoreKeys(RUN_ID)
HEAD = first_head(MANIFEST)
FIRST = verified_after(HEAD, MANIFEST)
SECOND = verified_after(FIRST.head, MANIFEST)


def announced(who: Identity) -> bytes:
    payload = payload_for(MANIFEST, HEAD, who, body_like(layout_of(MANIFEST), 1))
    return announcement_for(MANIFEST, HEAD, who, payload)


def config_of(folder: Path, kind: str = "http") -> NodeConfig:
    store = StoreConfig(kind=kind, path=str(folder / "store"), url="http://127.0.0.1:1")
    return NodeConfig(key_file="key.pem", state_dir=str(folder / "state"), store=store)


@asynccontextmanager
async def opened(
    world: World, folder: Path, who: Identity, store: MemoryStore | None
) -> AsyncIterator[tuple[RunNetwork, WorldClient]]:
    client = WorldClient(world, folder, who.peer)
    world.served.setdefault(source_of(who.peer), {})
    network: NetworkClient = client  # type: ignore[assignment] # the part that is used
    async with run_network(MANIFEST, config_of(folder), who, network, store) as found:
        yield found, client


async def until(world: World, who: Identity, kind: str) -> bytes:
    async with asyncio.timeout(20):
        while (who.peer, kind) not in world.records:  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.001)
    return world.records[who.peer, kind]


def test_a_validator_serves_the_records_of_before_and_points_to_the_last(tmp_path: Path) -> None:
    async def run() -> None:
        world, store = World(), MemoryStore()
        for round_id, record in enumerate((FIRST, SECOND), start=1):
            await store.put(KEYS.record(round_id), record.raw)
        async with opened(world, tmp_path, VALIDATOR, store):
            raw = b""
            while not raw or _round_of(raw) < 2:
                raw = await until(world, VALIDATOR, POINTER_KIND)
                await asyncio.sleep(0.001)
        ledger = tmp_path / "state" / "network" / "ledger"
        served = {path.name: path.read_bytes() for path in ledger.iterdir()}
        assert served == {
            record_object_id(RUN_ID, 1).hex(): FIRST.raw,
            record_object_id(RUN_ID, 2).hex(): SECOND.raw,
        }

    def _round_of(raw: bytes) -> int:
        statement = signed_records.read(raw).statement
        assert isinstance(statement, RecordPointer)
        return statement.round_id

    asyncio.run(run())


def test_announcements_of_either_side_reach_the_other_by_way_of_a_validator(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        world, store = World(), MemoryStore()
        # One came through the validator's inbox, the other one is in the DHT only.
        await store.put(KEYS.published(1, ME.peer), announced(ME))
        world.publish(announced(OTHER))
        async with opened(world, tmp_path, VALIDATOR, store) as (found, _):
            keys = (await found.run.list(KEYS.published_prefix(1))).keys
            assert set(keys) == {KEYS.published(1, who.peer) for who in (ME, OTHER)}
            assert await until(world, ME, PUBLISHED_KIND) == announced(ME)
            async with asyncio.timeout(20):
                while len((await store.list(KEYS.published_prefix(1))).keys) < 2:  # noqa: ASYNC110 - polls
                    await asyncio.sleep(0.001)

    asyncio.run(run())


def test_a_peer_with_both_announces_in_both_and_one_without_a_store_in_the_dht(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        for name, store in (("both", MemoryStore()), ("alone", None)):
            world, key = World(), KEYS.published(1, ME.peer)
            async with opened(world, tmp_path / name, ME, store) as (found, _):
                await found.run.put(key, announced(ME))
            assert world.records[ME.peer, PUBLISHED_KIND] == announced(ME)
            if store is not None:
                assert await store.get(key, max_bytes=1024) == announced(ME)

    asyncio.run(run())


def test_validators_may_publish_and_their_folders_are_served(tmp_path: Path) -> None:
    assert publishers(tiny_manifest()) == ()
    wanted = sorted(who.peer.key.hex() for who in (ME, OTHER, VALIDATOR))
    assert list(publishers(MANIFEST)) == wanted
    state, run = tmp_path / "state", tmp_path / "store" / RUN_ID.hex()
    common = (str(state / "network" / "ledger"), str(state / "blobs"))
    assert served_folders(MANIFEST, config_of(tmp_path)) == common
    found = served_folders(MANIFEST, config_of(tmp_path, "directory"))
    assert found == (*common, str(run / "blobs"), str(run / "copies"))


def test_a_validator_without_a_store_of_its_own_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, "p2p")
    check_role(MANIFEST, config, ME, validates=False)
    with pytest.raises(ConfigError, match=r"store\.kind"):
        check_role(MANIFEST, config, VALIDATOR, validates=True)


def test_only_a_record_that_enough_validators_signed_is_handed_on() -> None:
    rules = MANIFEST.record_rules()
    assert check_certified(SECOND.raw, rules, 2) == SECOND.record_id
    unsigned = build_record(record_after(HEAD, MANIFEST, ()), (ME,))
    other_run = build_record(record_after(HEAD, MANIFEST, (), run_id=bytes(32)), (VALIDATOR,))
    for raw, round_id, code in (
        (SECOND.raw, 1, ErrorCode.E_GAP),
        (FIRST.raw, 2, ErrorCode.E_ROLLBACK),
        (unsigned, 1, ErrorCode.E_PEER_UNKNOWN),
        (other_run, 1, ErrorCode.E_RUN),
        (FIRST.raw[:-1], 1, ErrorCode.E_LEN),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            check_certified(raw, rules, round_id)
        assert caught.value.code == code


def test_look_ups_are_shared_paused_and_waited_for_a_little() -> None:
    async def run() -> None:
        now_s, looked = 0.0, []
        hangs = asyncio.Event()

        async def look(name: str) -> None:
            looked.append(name)
            if name == "hangs":
                await hangs.wait()
            if name == "fails":
                raise PeerUnavailableError("away", "")

        look_ups = LookUps(look, 5.0, lambda: now_s)
        done = await asyncio.gather(*(look_ups.refresh("ab", 1.0) for _ in range(4)))
        assert done == [True] * 4
        assert sorted(looked) == ["a", "b"], "each once"
        assert await look_ups.refresh("a", 1.0), "known from within its pause"
        now_s = 5.0
        await look_ups.refresh("a", 1.0)
        assert sorted(looked) == ["a", "a", "b"]
        assert not await look_ups.refresh(["fails"], 1.0)
        assert not await look_ups.refresh(["hangs"], 0.0), "it goes on for the next one"
        hangs.set()
        assert await look_ups.refresh(["hangs"], 1.0)
        assert looked.count("hangs") == 1
        look_ups.close()

    asyncio.run(run())


def test_a_clock_comes_from_the_network_where_nothing_else_answers(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(World(), tmp_path, ME, None) as (found, _):
            with pytest.raises(StorageUnavailableError):
                await found.clock_s(RUN_ID)

    asyncio.run(run())
