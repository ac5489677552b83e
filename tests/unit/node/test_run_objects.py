"""A run's objects over a network in memory."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.network.client import NetworkClient
from shoal.node.network.dht_records import PUBLISHED_KIND
from shoal.node.network.downloads import Source
from shoal.node.network.head_pointer import HeadPointer
from shoal.node.network.ledger import Ledger
from shoal.node.network.notice_board import NoticeBoard
from shoal.node.network.object_ids import clock_id, known_peers_id, record_object_id
from shoal.node.network.peer_book import PeerBook
from shoal.node.network.record_finder import RecordFinder
from shoal.node.network.run_keys import RunKeyKind, parse_run_key
from shoal.node.network.run_objects import P2PRunStore
from shoal.node.store_keys import StoreKeys
from shoal.protocol.identity import Identity
from shoal.protocol.payload_header import HEADER_BYTES
from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    StorageError,
    StorageUnavailableError,
)
from shoal.storage.keys import MAX_KEY_CHARS
from tests.support.bodies import body_like
from tests.support.contexts import announcement_for, attending_for, id_of, payload_for
from tests.support.manifests import (
    VALIDATOR,
    first_head,
    layout_of,
    peer,
    tiny_manifest,
    verified_after,
)
from tests.support.network_world import World, WorldClient, source_of

MANIFEST = tiny_manifest()
RUN_ID = MANIFEST.run_id
KEYS = StoreKeys(RUN_ID)
HEAD = first_head(MANIFEST)
ME, OTHER, THIRD = peer(1), peer(2), peer(3)
RECORD = verified_after(HEAD, MANIFEST)
PAYLOAD = payload_for(MANIFEST, HEAD, OTHER, body_like(layout_of(MANIFEST), 1))
BLOB = b"shard" * 20
SHA256 = hashlib.sha256(BLOB).digest()
PUBLISHED = announcement_for(MANIFEST, HEAD, OTHER, PAYLOAD)

Test = Callable[..., Coroutine[Any, Any, None]]


class Desk:
    """One node's store in a world."""

    def __init__(self, world: World, folder: Path, who: Identity = ME) -> None:
        self.now_s = 0.0
        self.client = WorldClient(world, folder, who.peer)
        network: NetworkClient = self.client  # type: ignore[assignment] # the part that is used
        self.book = PeerBook(
            network,
            run_id=RUN_ID,
            me=who.peer,
            validators=(VALIDATOR.peer,),
            roster=frozenset({ME.peer, OTHER.peer, THIRD.peer}),
            now_s=lambda: self.now_s,
        )
        self.board = NoticeBoard(network, self.book, MANIFEST.payload_rules(), 0.0)
        self.ledger = Ledger(folder / "ledger")
        self.records = RecordFinder(
            network, self.book, self.ledger, MANIFEST.record_rules(), 0.0, lambda: self.now_s
        )
        self.head = HeadPointer(network, RUN_ID, who, lambda: 1000.0)
        self.store = P2PRunStore(
            network,
            RUN_ID,
            book=self.book,
            board=self.board,
            records=self.records,
            ledger=self.ledger,
            head=self.head if who == VALIDATOR else None,
            copies_in_folder=False,
        )

    async def get(self, key: str, max_bytes: int = 1 << 20) -> bytes:
        return await self.store.get(key, max_bytes=max_bytes)


@pytest.fixture
def world() -> World:
    found = World()
    for who in (VALIDATOR, OTHER, THIRD):
        found.served[source_of(who.peer)] = {}
    return found


def test_announcements_of_others_are_listed_read_and_looked_up_once(
    world: World, tmp_path: Path
) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        prefix = KEYS.published_prefix(1)
        assert (await desk.store.list(prefix)).keys == ()
        world.publish(PUBLISHED)
        world.publish(attending_for(MANIFEST, HEAD, OTHER))
        key = KEYS.published(1, OTHER.peer)
        for _ in range(3):
            assert (await desk.store.list(prefix)).keys == (key,)
        looked = world.num_looked[OTHER.peer, PUBLISHED_KIND]
        assert await desk.get(key) == PUBLISHED
        assert (await desk.store.head(key)).num_bytes == len(PUBLISHED)
        assert world.num_looked[OTHER.peer, PUBLISHED_KIND] == looked
        # What was seen stays for its round, also when the DHT has lost it.
        world.records.clear()
        assert await desk.get(key) == PUBLISHED
        assert (await desk.store.list(KEYS.attending_prefix(1))).keys == ()
        assert (await desk.store.list(f"{RUN_ID.hex()}/copies/")).keys == ()

    asyncio.run(run())


def test_an_own_announcement_is_published_and_another_one_is_an_alarm(
    world: World, tmp_path: Path
) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        payload = payload_for(MANIFEST, HEAD, ME, body_like(layout_of(MANIFEST), 2))
        mine = announcement_for(MANIFEST, HEAD, ME, payload)
        key = KEYS.published(1, ME.peer)
        await desk.store.put(key, mine)
        await desk.store.put(key, mine)
        assert world.records[ME.peer, PUBLISHED_KIND] == mine
        other = payload_for(MANIFEST, HEAD, ME, body_like(layout_of(MANIFEST), 3))
        with pytest.raises(ObjectExistsError):
            await desk.store.put(key, announcement_for(MANIFEST, HEAD, ME, other))
        # Somebody else's, or of another round, under this key is never published.
        for raw, name in ((PUBLISHED, key), (mine, KEYS.published(2, ME.peer)), (b"x", key)):
            with pytest.raises(AccessDeniedError):
                await desk.store.put(name, raw, overwrite=True)
        assert world.records[ME.peer, PUBLISHED_KIND] == mine

    asyncio.run(run())


def test_what_is_no_announcement_of_the_round_is_not_shown(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        world.publish(announcement_for(MANIFEST, HEAD, OTHER, PAYLOAD, round_id=7))
        assert (await desk.store.list(KEYS.published_prefix(1))).keys == ()
        with pytest.raises(ObjectNotFoundError):
            await desk.get(KEYS.published(1, OTHER.peer))

    asyncio.run(run())


def test_a_payload_is_found_by_its_announcement_at_whoever_has_it(
    world: World, tmp_path: Path
) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        key = KEYS.payload(1, OTHER.peer)
        with pytest.raises(ObjectNotFoundError):
            await desk.get(key)
        world.publish(PUBLISHED)
        # The author is away; another peer serves again what it has fetched.
        world.away.add(source_of(OTHER.peer))
        world.serve(THIRD.peer, id_of(PAYLOAD), PAYLOAD)
        assert await desk.get(key) == PAYLOAD
        await desk.store.serve_again(id_of(PAYLOAD), PAYLOAD)
        assert await desk.get(KEYS.copy(id_of(PAYLOAD))) == PAYLOAD
        assert desk.client.num_fetched == 1, "the second time from its own files"
        assert world.served[source_of(ME.peer)][id_of(PAYLOAD)] == PAYLOAD

    asyncio.run(run())


def test_only_a_verified_payload_is_passed_on_and_bad_bytes_are_asked_for_again(
    world: World, tmp_path: Path
) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        payload = payload_for(MANIFEST, HEAD, OTHER, body_like(layout_of(MANIFEST), 1))
        name = id_of(payload)
        room = memoryview(bytearray(len(payload)))
        told: list[int] = []
        # Which error it is depends on who is asked last, and the order is drawn.
        # In the header, the signature and the body: its author is not to blame for what another
        # one serves, and nobody gets to see it.
        for at in (0, 100, HEADER_BYTES + 1, len(payload) - 1):
            bad = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]
            world.serve(OTHER.peer, name, bad)
            with pytest.raises(StorageError):
                await desk.store.get_into(KEYS.copy(name), room, told.append)
        with pytest.raises(StorageError):
            await desk.get(KEYS.copy(name))
        assert max(told, default=0) == 0
        # Nothing of it was kept: the next one who is asked may have the right bytes.
        assert desk.client.kept(name) is None
        world.serve(OTHER.peer, name, payload)
        await desk.store.get_into(KEYS.copy(name), room, told.append)
        assert bytes(room) == payload
        assert told[-1] == len(payload)
        assert desk.client.kept(name) is None
        await desk.store.serve_again(name, room)
        assert world.served[source_of(ME.peer)][name] == payload
        world.served[source_of(ME.peer)].clear()
        desk.client.objects.drop(name)
        with pytest.raises(StorageError):
            await desk.store.get_into(KEYS.copy(name), room[:-1], told.append)

    asyncio.run(run())


def test_what_its_author_gives_is_for_the_reader_to_judge(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        world.publish(PUBLISHED)
        bad = PAYLOAD[:-1] + bytes([PAYLOAD[-1] ^ 1])
        world.serve(OTHER.peer, id_of(PAYLOAD), bad)
        key = KEYS.payload(1, OTHER.peer)
        assert await desk.get(key) == bad
        room = memoryview(bytearray(len(bad)))
        with pytest.raises(ObjectTooLargeError):
            await desk.store.get_into(key, room[:-1], lambda _: None)

    asyncio.run(run())


def test_an_own_payload_is_served_by_its_id(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        await desk.store.put(KEYS.payload(1, ME.peer), PAYLOAD)
        assert world.served[source_of(ME.peer)] == {id_of(PAYLOAD): PAYLOAD}
        with pytest.raises(AccessDeniedError):
            await desk.store.put(KEYS.payload(1, ME.peer), b"short")

    asyncio.run(run())


def test_blobs_are_checked_by_their_hash_and_a_missing_one_is_only_away(
    world: World, tmp_path: Path
) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        key = KEYS.blob(SHA256)
        with pytest.raises(StorageUnavailableError):
            await desk.get(key)
        world.serve(OTHER.peer, SHA256, b"wrong" * 20)
        world.serve(VALIDATOR.peer, SHA256, BLOB)
        assert await desk.get(key) == BLOB
        assert await desk.store.get(key, max_bytes=9, start=3, length=6) == BLOB[3:9]
        with pytest.raises(ObjectTooLargeError):
            await desk.get(key, max_bytes=len(BLOB) - 1)

    asyncio.run(run())


def test_a_record_is_found_by_the_pointer_and_by_its_round(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        key, object_id = KEYS.record(1), record_object_id(RUN_ID, 1)
        with pytest.raises(ObjectNotFoundError):
            await desk.get(key)
        world.point(VALIDATOR, RUN_ID, 1, RECORD.raw)
        # Pointed to, but nobody gives it or what they give is none: not "open" any more.
        world.serve(OTHER.peer, object_id, b"x" * len(RECORD.raw))
        with pytest.raises(StorageUnavailableError):
            await desk.get(key)
        world.serve(THIRD.peer, object_id, RECORD.raw)
        assert await desk.get(key) == RECORD.raw
        # It stays here, and a late one finds it by its round alone, far behind the pointer.
        world.served = {source_of(ME.peer): {object_id: await kept(desk, object_id)}}
        world.point(VALIDATOR, RUN_ID, 9, b"r" * 9)
        assert await desk.get(key) == RECORD.raw
        late = Desk(world, tmp_path / "late", THIRD)
        assert await late.get(key) == RECORD.raw

    async def kept(desk: Desk, object_id: bytes) -> bytes:
        found = await desk.ledger.read(object_id, 1 << 20)
        assert found is not None
        return found

    asyncio.run(run())


def test_asking_for_an_open_round_does_not_flood_the_peers(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        for _ in range(5):
            with pytest.raises(ObjectNotFoundError):
                await desk.get(KEYS.record(1))
        # Without a pointer, but a validator has it: found once it is time to ask again.
        world.serve(VALIDATOR.peer, record_object_id(RUN_ID, 1), RECORD.raw)
        with pytest.raises(ObjectNotFoundError):
            await desk.get(KEYS.record(1))
        desk.now_s += 60
        assert await desk.get(KEYS.record(1)) == RECORD.raw

    asyncio.run(run())


def test_a_source_that_hangs_is_asked_last_the_next_time(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        asked: list[Source] = []
        ask_size = desk.client.ask_size

        async def ask(object_id: bytes, source: Source, timeout_s: float) -> int:
            asked.append(source)
            if source == source_of(VALIDATOR.peer):
                await asyncio.sleep(3600)
            return await ask_size(object_id, source, timeout_s)

        desk.client.ask_size = ask  # type: ignore[method-assign, assignment] # one source hangs
        world.serve(OTHER.peer, record_object_id(RUN_ID, 1), RECORD.raw)
        world.point(VALIDATOR, RUN_ID, 9, b"r" * 9)
        reading = asyncio.create_task(desk.get(KEYS.record(1)))
        async with asyncio.timeout(20):
            while not asked:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.001)
        reading.cancel()
        assert asked == [source_of(VALIDATOR.peer)]
        assert await desk.get(KEYS.record(1)) == RECORD.raw
        assert source_of(VALIDATOR.peer) not in asked[1:]

    asyncio.run(run())


def test_another_record_that_a_validator_points_to_is_shown(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        object_id = record_object_id(RUN_ID, 1)
        world.point(VALIDATOR, RUN_ID, 1, RECORD.raw)
        world.serve(VALIDATOR.peer, object_id, RECORD.raw)
        assert await desk.get(KEYS.record(1)) == RECORD.raw
        fork = verified_after(HEAD, MANIFEST, closed_at_ms=2000)
        world.point(VALIDATOR, RUN_ID, 1, fork.raw)
        world.serve(VALIDATOR.peer, object_id, fork.raw)
        assert await desk.get(KEYS.record(1)) == fork.raw
        # What is no record proves nothing.
        world.point(VALIDATOR, RUN_ID, 1, b"x" * 9)
        assert await desk.get(KEYS.record(1)) == RECORD.raw

    asyncio.run(run())


def test_without_a_network_process_nothing_counts_as_missing(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        world.is_down = True
        for key in (KEYS.record(1), KEYS.blob(SHA256), KEYS.copy(SHA256)):
            with pytest.raises(StorageUnavailableError):
                await desk.get(key)
        with pytest.raises(StorageUnavailableError):
            await desk.store.put(KEYS.published(1, OTHER.peer), PUBLISHED)

    asyncio.run(run())


def test_only_a_validator_writes_records_and_points_to_the_last(
    world: World, tmp_path: Path
) -> None:
    async def run() -> None:
        with pytest.raises(AccessDeniedError):
            await Desk(world, tmp_path).store.put(KEYS.record(1), RECORD.raw)
        desk = Desk(world, tmp_path / "validator", VALIDATOR)
        pointing = asyncio.create_task(desk.head.run())
        await desk.store.put(KEYS.record(1), RECORD.raw)
        await desk.store.keep_record(1, RECORD.raw)
        with pytest.raises(ObjectExistsError):
            await desk.store.put(KEYS.record(1), b"another one")
        await asyncio.sleep(0.01)
        pointing.cancel()
        world.serve(
            VALIDATOR.peer,
            record_object_id(RUN_ID, 1),
            await desk.get(KEYS.record(1)),
        )
        assert await Desk(world, tmp_path / "reader", THIRD).get(KEYS.record(1)) == RECORD.raw
        await desk.store.delete(KEYS.record(1))
        assert await desk.records.kept(1) is None

    asyncio.run(run())


def test_the_manifest_is_that_of_the_run(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        world.serve(OTHER.peer, RUN_ID, tiny_manifest(outer=MANIFEST.outer).to_bytes()[:-1] + b" ")
        with pytest.raises(StorageUnavailableError):
            await desk.get(KEYS.manifest)
        world.served[source_of(OTHER.peer)] = {}
        world.serve(VALIDATOR.peer, RUN_ID, MANIFEST.to_bytes())
        assert await desk.get(KEYS.manifest) == MANIFEST.to_bytes()

    asyncio.run(run())


def test_the_time_is_a_validators(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk(world, tmp_path)
        with pytest.raises(StorageUnavailableError):
            await desk.store.clock_s(clock_id(RUN_ID))
        world.serve(VALIDATOR.peer, clock_id(RUN_ID), bytes(5000))
        assert await desk.store.clock_s(clock_id(RUN_ID)) == 5.0

    asyncio.run(run())


def test_in_an_open_run_a_newcomer_shows_itself_and_learns_whom_a_validator_knows(
    world: World, tmp_path: Path
) -> None:
    async def run() -> None:
        def book(who: Identity, client: WorldClient) -> PeerBook:
            network: NetworkClient = client  # type: ignore[assignment] # the part that is used
            return PeerBook(
                network, run_id=RUN_ID, me=who.peer, validators=(VALIDATOR.peer,), roster=None
            )

        validator = WorldClient(world, tmp_path / "validator", VALIDATOR.peer)
        validator.known = (OTHER.peer, ME.peer)
        theirs = asyncio.create_task(book(VALIDATOR, validator).learn_for_ever(60.0))
        client = WorldClient(world, tmp_path / "me", ME.peer)
        mine = book(ME, client)
        await asyncio.sleep(0)
        assert list(mine.known) == [VALIDATOR.peer]
        learning = asyncio.create_task(mine.learn_for_ever(60.0))
        async with asyncio.timeout(5):
            while OTHER.peer not in mine.known:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.001)
        assert client.introduced == [source_of(VALIDATOR.peer)]
        assert list(mine.known) == [VALIDATOR.peer, OTHER.peer]
        theirs.cancel()
        learning.cancel()
        # A list that is too long or holds what are no keys adds nobody.
        world.serve(VALIDATOR.peer, known_peers_id(RUN_ID), bytes(32) * 2)
        again = book(ME, client)
        await again._learn()
        assert again.known == (VALIDATOR.peer,)

    asyncio.run(run())


@given(st.text(max_size=MAX_KEY_CHARS))
def test_any_text_is_a_key_of_the_run_or_nothing(text: str) -> None:
    assert parse_run_key(RUN_ID, text) is None


@given(st.integers(0, 99_999_999), st.binary(min_size=32, max_size=32))
def test_keys_come_back_as_they_were_made(round_id: int, digest: bytes) -> None:
    who = ME.peer
    for key, kind in (
        (KEYS.manifest, RunKeyKind.MANIFEST),
        (KEYS.blob(digest), RunKeyKind.BLOB),
        (KEYS.copy(digest), RunKeyKind.COPY),
        (KEYS.payload(round_id, who), RunKeyKind.PAYLOAD),
        (KEYS.record(round_id), RunKeyKind.RECORD),
        (KEYS.attending(round_id, who), RunKeyKind.ATTENDING),
        (KEYS.published(round_id, who), RunKeyKind.PUBLISHED),
        (KEYS.published_prefix(round_id), RunKeyKind.PUBLISHED),
    ):
        found = parse_run_key(RUN_ID, key)
        assert found is not None
        assert found.kind is kind
        assert found.round_id in (0, round_id)
        assert found.peer in (None, who)
    for other in (KEYS.hello(who), KEYS.probe("00"), StoreKeys(bytes(32)).record(1)):
        assert parse_run_key(RUN_ID, other) is None
