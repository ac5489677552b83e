import asyncio
from dataclasses import replace

import pytest

from shoal.node.publisher import attend, publish
from shoal.protocol.announcement import AnnouncementType, Where, read_announcement
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.storage.errors import StorageUnavailableError
from shoal.storage.object_store import ObjectInfo
from tests.support.bodies import body_like
from tests.support.contexts import context_of, id_of, payload_for
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import first_head, layout_of, peer, tiny_manifest

MANIFEST = tiny_manifest()
ME = peer(1)
RAW = payload_for(MANIFEST, first_head(MANIFEST), ME, body_like(layout_of(MANIFEST), 1))


@pytest.fixture
def store():
    return FaultyStore()


@pytest.fixture
def run(store, tmp_path):
    context = context_of(MANIFEST, ME, store, FakeClock(), tmp_path / "log.jsonl")
    yield context
    context.log.close()


def publish_now(run, raw=RAW):
    asyncio.run(publish(run, 1, id_of(raw), raw))


def read(store, key):
    return asyncio.run(store.inner.get(key, max_bytes=1 << 20))


def test_it_uploads_reads_back_and_only_then_announces(run, store):
    publish_now(run)
    payload, announcement = run.keys.payload(1, ME.peer), run.keys.published(1, ME.peer)
    assert store.calls == [("put", payload), ("head", payload), ("put", announcement)]
    assert read(store, payload) == RAW
    verified = read_announcement(read(store, announcement), run.payload_rules, 1)
    assert verified.peer == ME.peer
    assert verified.announcement.payload_id == id_of(RAW)
    assert verified.announcement.num_bytes == len(RAW)


def test_the_same_bytes_again_are_a_success(run, store):
    publish_now(run)
    before = dict(store.inner._objects)
    publish_now(run)
    assert store.inner._objects == before


@pytest.mark.parametrize("num_failures", range(3))
def test_after_a_failure_anywhere_it_can_be_done_again(run, store, num_failures):
    store.fault = lambda verb, key, asked: (
        StorageUnavailableError("503", key) if len(store.calls) == num_failures + 1 else None
    )
    with pytest.raises(StorageUnavailableError):
        publish_now(run)
    announced = run.keys.published(1, ME.peer) in store.inner._objects
    assert not announced
    store.fault = lambda verb, key, asked: None
    publish_now(run)
    assert read(store, run.keys.payload(1, ME.peer)) == RAW


@pytest.mark.parametrize(
    "other", [RAW[:-1], RAW + b"\0", RAW[:-1] + b"\xff", b"", bytes(10 * len(RAW))]
)
def test_other_bytes_under_the_key_are_an_alarm_and_stay(run, store, other):
    key = run.keys.payload(1, ME.peer)
    asyncio.run(store.inner.put(key, other))
    with pytest.raises(RemoteProtocolError) as caught:
        publish_now(run)
    assert caught.value.code is ErrorCode.E_KEY_IN_USE
    assert read(store, key) == other
    assert run.keys.published(1, ME.peer) not in store.inner._objects


def test_what_is_not_there_in_full_is_not_announced(run, store):
    async def short(key):
        return ObjectInfo(key=key, num_bytes=len(RAW) - 1, modified_at_s=0.0)

    store.head = short
    with pytest.raises(StorageUnavailableError, match="read back"):
        publish_now(run)
    assert run.keys.published(1, ME.peer) not in store.inner._objects


def test_attendance_is_a_signed_announcement_without_a_payload(run, store):
    asyncio.run(attend(run, 1))
    asyncio.run(attend(run, 1))
    raw = read(store, run.keys.attending(1, ME.peer))
    verified = read_announcement(raw, run.payload_rules, 1)
    assert verified.announcement.type is AnnouncementType.ATTENDING
    assert verified.announcement.payload_id == b""


def announced_at(run, address, raw=RAW):
    """Publishes with payloads served at an address, as after a start of the network process."""
    where = Where(provider="p2p", address=address)
    asyncio.run(publish(replace(run, own_where=where), 1, id_of(raw), raw))


def test_another_address_after_a_restart_is_the_same_word_and_another_payload_is_not(run, store):
    announced_at(run, "/ip4/127.0.0.1/tcp/1/p2p/Qm1")
    first = read(store, run.keys.published(1, ME.peer))
    announced_at(run, "/ip4/127.0.0.1/tcp/20000/p2p/Qm1")
    assert read(store, run.keys.published(1, ME.peer)) == first
    other = payload_for(MANIFEST, first_head(MANIFEST), ME, body_like(layout_of(MANIFEST), 2))
    with pytest.raises(RemoteProtocolError) as caught:
        announced_at(run, "/ip4/127.0.0.1/tcp/1/p2p/Qm1", other)
    assert caught.value.code is ErrorCode.E_KEY_IN_USE


def test_each_announcement_has_a_higher_sequence(run, store):
    asyncio.run(attend(run, 1))
    publish_now(run)
    asyncio.run(attend(run, 2))
    keys = [run.keys.attending(1, ME.peer), run.keys.published(1, ME.peer)]
    rounds = [1, 1, 2]
    found = [
        read_announcement(read(store, key), run.payload_rules, round_id).announcement.sequence
        for key, round_id in zip([*keys, run.keys.attending(2, ME.peer)], rounds, strict=True)
    ]
    assert found == [2, 3, 4]
