"""The network as an object store, over a network in memory."""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.node.network.client import NetworkClient
from shoal.node.network.downloads import Source
from shoal.node.network.errors import PeerUnavailableError, WrongBytesError
from shoal.node.network.kept_objects import KeptObject, KeptObjects
from shoal.node.network.p2p_store import P2PStore
from shoal.storage.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectSizeError,
    ObjectTooLargeError,
    StorageUnavailableError,
)

HERE, THERE = b"here " * 100, b"there " * 100
SOURCES: tuple[Source, ...] = (("away",), ("empty",), ("good",))


def key_of(data: bytes) -> str:
    return f"run/copies/{hashlib.sha256(data).hexdigest()}"


class Network:
    """What the store uses of a client; one source is away, one has nothing, one has THERE."""

    def __init__(self, folder: Path) -> None:
        self.objects = KeptObjects(folder / "objects", 10_000)
        self.num_fetched = 0

    def kept(self, object_id: bytes) -> KeptObject | None:
        return self.objects.find(object_id)

    async def serve(self, object_id: bytes, data: bytes) -> None:
        self.objects.add(object_id, self.objects.write(object_id, data))

    def queue_s(self, _: int) -> float:
        return 0.0

    async def withdraw(self, object_id: bytes) -> None:
        self.objects.drop(object_id)

    async def ask_size(self, object_id: bytes, source: Source, timeout_s: float) -> int:
        if source == ("away",):
            raise PeerUnavailableError("away", "")
        if source == ("empty",) or object_id != hashlib.sha256(THERE).digest():
            raise ObjectNotFoundError("empty", "")
        return len(THERE)

    async def fetch(self, object_id: bytes, sources: Sequence[Source], **how: object) -> bytes:
        assert how["num_bytes"] == len(THERE)
        self.num_fetched += 1
        return THERE


def store_of(folder: Path, sources: tuple[Source, ...] = SOURCES) -> tuple[P2PStore, Network]:
    network = Network(folder)

    async def find(_: bytes) -> tuple[Source, ...]:
        return sources

    client: NetworkClient = network  # type: ignore[assignment] # the part that is used
    return P2PStore(client, find), network


def test_what_is_put_is_read_listed_and_deleted_here(tmp_path: Path) -> None:
    store, network = store_of(tmp_path, (("empty",),))
    key = key_of(HERE)

    async def run() -> None:
        await store.put(key, HERE)
        with pytest.raises(ObjectExistsError):
            await store.put(key, HERE)
        await store.put(key, HERE, overwrite=True)
        assert await store.get(key, max_bytes=500) == HERE
        assert await store.get(key, max_bytes=4, start=5, length=4) == b"here"
        assert (await store.head(key)).num_bytes == 500
        with pytest.raises(ObjectTooLargeError):
            await store.get(key, max_bytes=499)
        with pytest.raises(ObjectSizeError):
            await store.get(key, max_bytes=500, start=501)
        assert (await store.list("run/")).keys == (key,)
        assert (await store.list("other/")).keys == ()
        await store.delete(key)
        await store.delete(key)
        assert (await store.list("")).keys == ()
        with pytest.raises(ObjectNotFoundError):
            await store.head(key)

    asyncio.run(run())
    assert network.num_fetched == 0


def test_what_is_elsewhere_comes_whole_and_once(tmp_path: Path) -> None:
    store, network = store_of(tmp_path)
    key = key_of(THERE)

    async def run() -> None:
        assert (await store.head(key)).num_bytes == len(THERE)
        with pytest.raises(AccessDeniedError):
            await store.get(key, max_bytes=600, start=1)
        with pytest.raises(ObjectTooLargeError):
            await store.get(key, max_bytes=len(THERE) - 1)
        assert network.num_fetched == 0
        assert await store.get(key, max_bytes=len(THERE)) == THERE
        assert (await store.list("run/")).keys == ()
        assert network.num_fetched == 1
        await store.put(key, THERE)
        assert await store.get(key, max_bytes=9, start=6, length=5) == b"there"
        assert (await store.list("run/")).keys == (key,)

    asyncio.run(run())
    assert network.num_fetched == 1


def test_nobody_has_it_differs_from_nobody_answers(tmp_path: Path) -> None:
    for sources, error in (
        ((), ObjectNotFoundError),
        ((("empty",),), ObjectNotFoundError),
        ((("away",), ("empty",)), StorageUnavailableError),
    ):
        store, _ = store_of(tmp_path, sources)
        with pytest.raises(error):
            asyncio.run(store.head(key_of(THERE)))


def test_a_key_must_be_the_hash_of_its_bytes(tmp_path: Path) -> None:
    store, _ = store_of(tmp_path)
    with pytest.raises(WrongBytesError):
        asyncio.run(store.put(key_of(HERE), THERE))
    with pytest.raises(InvalidKeyError):
        asyncio.run(store.put("run/peers/1/hello", HERE))


def test_when_the_first_do_not_give_it_the_others_are_asked(tmp_path: Path) -> None:
    async def run() -> None:
        for first in ((), (("away",),), (("empty",),)):
            _, network = store_of(tmp_path / str(first))
            asked: list[str] = []

            async def find(_: bytes, first: tuple[Source, ...] = first) -> tuple[Source, ...]:
                return first

            async def more(_: bytes, asked: list[str] = asked) -> tuple[Source, ...]:
                asked.append("more")
                return (("good",),)

            client: NetworkClient = network  # type: ignore[assignment] # the part that is used
            store = P2PStore(client, find, find_more=more)
            assert (await store.head(key_of(THERE))).num_bytes == len(THERE)
            assert await store.get(key_of(THERE), max_bytes=len(THERE)) == THERE
            assert asked
            assert (await store.list("")).keys == (), "not kept"
            is_away = first == (("away",),)
            with pytest.raises(StorageUnavailableError if is_away else ObjectNotFoundError):
                await store.head(key_of(b"what nobody has"))

    asyncio.run(run())
