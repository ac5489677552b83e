"""Twenty payloads, one of them bad in every way that a key in the roster allows."""

import asyncio
import gc
import json
import struct
import types
import weakref
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shoal.compression import check_body
from shoal.node import receiving
from shoal.node.errors import ResourceError
from shoal.node.gatherer import RoundGather
from shoal.protocol.announcement import AnnouncementType
from shoal.protocol.errors import ErrorCode
from shoal.protocol.manifest import AdmissionSection
from shoal.protocol.payload_header import HEADER_BYTES, PAYLOAD_PREFIX_BYTES
from shoal.protocol.record import build_record
from shoal.protocol.record_body import CountedPayload
from shoal.protocol.signing import Domain, sign
from shoal.storage.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    ObjectSizeError,
    StorageFullError,
    StorageUnavailableError,
)
from shoal.storage.filling import read_into
from shoal.storage.memory import MemoryStore
from tests.support.contexts import (
    announcement_for,
    attending_for,
    context_of,
    header_for,
    id_of,
    payload_for,
)
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import (
    VALIDATOR,
    first_head,
    layout_of,
    peer,
    record_after,
    tiny_manifest,
)
from tests.support.virtual_time import run_virtual
from tests.unit.compression.bodies import packed_chunk
from tests.unit.protocol.wire_builders import IDENTITY_POINT

PEERS = [peer(i) for i in range(20)]
STRANGER = peer(99)
BAD = PEERS[7]
MANIFEST = tiny_manifest(
    admission=AdmissionSection(mode="roster", peers=tuple(p.peer.key for p in PEERS))
)
HEAD = first_head(MANIFEST)
LAYOUT = layout_of(MANIFEST)
ME = VALIDATOR


def body_with(first_chunk=None, scale=0x3800):
    """A valid body, or one whose first chunk is something else."""
    spec = LAYOUT.spec
    chunks = [packed_chunk(spec, n, scales=(scale, scale)) for n in (16, 16, 16, 16, 10)]
    if first_chunk is not None:
        chunks[0] = first_chunk
    return b"".join(chunks)


def chunk(**fields):
    return packed_chunk(LAYOUT.spec, 16, **fields)


def good_payload(identity):
    return payload_for(MANIFEST, HEAD, identity, body_with(scale=0x3800 + PEERS.index(identity)))


def with_body(body):
    return lambda: payload_for(MANIFEST, HEAD, BAD, body)


def with_header(**changes):
    return lambda: payload_for(MANIFEST, HEAD, BAD, body_with(), **changes)


def bytes_of(change):
    return lambda: change(bytearray(good_payload(BAD)))


def flipped(raw, position):
    raw[position] ^= 1
    return bytes(raw)


def signed_for_another_purpose():
    header = header_for(MANIFEST, HEAD, BAD, body_with()).pack()
    return header + sign(BAD, Domain.RECORD, header) + body_with()


def pickled():
    evil = b"cos\nsystem\n(S'true'\ntR."
    return evil + bytes(MANIFEST.payload_bytes - len(evil))


E = ErrorCode
BAD_PAYLOADS = {
    "cut by a byte": (bytes_of(lambda raw: bytes(raw[:-1])), E.E_LEN),
    "longer by a byte": (bytes_of(lambda raw: bytes(raw) + b"\0"), E.E_LEN),
    "longer by a mebibyte": (bytes_of(lambda raw: bytes(raw) + bytes(1 << 20)), E.E_LEN),
    "empty": (lambda: b"", E.E_LEN),
    "a pickle of the right length": (pickled, E.E_MAGIC),
    "another version": (with_header(version=2), E.E_VERSION),
    "a flag": (with_header(flags=1), E.E_FLAGS),
    "a reserved field": (with_header(reserved2=1), E.E_FLAGS),
    "more inner steps than the run has": (with_header(inner_steps=4), E.E_FLAGS),
    "another run": (with_header(run_id=bytes(32)), E.E_RUN),
    "another manifest": (with_header(manifest_hash=bytes(32)), E.E_MANIFEST),
    "the round before": (with_header(round_id=0), E.E_ROUND_OLD),
    "the round after": (with_header(round_id=2), E.E_ROUND_FUTURE),
    "a weak key": (with_header(peer_key=IDENTITY_POINT), E.E_KEY_WEAK),
    "a key that is not in the roster": (
        with_header(peer_key=STRANGER.peer.key),
        E.E_PEER_UNKNOWN,
    ),
    "another base state": (with_header(base_state=bytes(32)), E.E_PARENT),
    "a body length of 2^63": (with_header(body_len=2**63), E.E_BODY_LEN),
    "another peer's key": (with_header(peer_key=PEERS[8].peer.key), E.E_SIG),
    "signed for another purpose": (signed_for_another_purpose, E.E_SIG),
    "a flipped signature bit": (bytes_of(lambda r: flipped(r, HEADER_BYTES + 3)), E.E_SIG),
    "a flipped body bit": (bytes_of(lambda r: flipped(r, PAYLOAD_PREFIX_BYTES)), E.E_BODY_HASH),
    "a scale that is NaN": (
        with_body(body_with(chunk(scales=(0x7E00, 0x7E00)))),
        E.E_SCALE_NONFINITE,
    ),
    "a scale that is infinite": (
        with_body(body_with(chunk(scales=(0x3C00, 0x7C00)))),
        E.E_SCALE_NONFINITE,
    ),
    "a negative scale": (with_body(body_with(chunk(scales=(0xBC00, 0x3C00)))), E.E_SCALE_SIGN),
    "a subnormal scale": (
        with_body(body_with(chunk(scales=(0x0001, 0x0001)))),
        E.E_SCALE_SUBNORMAL,
    ),
    "a scale that is too large": (
        with_body(body_with(chunk(scales=(0x3C01, 0x3C01)))),
        E.E_SCALE_RANGE,
    ),
    "scales the wrong way round": (
        with_body(body_with(chunk(scales=(0x3C00, 0x3800), codes=2))),
        E.E_SCALE_ORDER,
    ),
    "an empty chunk with codes": (
        with_body(body_with(chunk(scales=(0, 0), codes=1))),
        E.E_EMPTY_CHUNK,
    ),
    "an index code beyond all sets": (
        with_body(body_with(chunk(number=1820, scales=(0x3800, 0x3800)))),
        E.E_INDEX_RANGE,
    ),
    "padding bits": (
        with_body(body_with()[:-6] + b"\0" + b"\x40" + struct.pack("<2H", 0x3800, 0x3800)),
        E.E_PADDING,
    ),
    "nothing in it": (with_body(bytes(LAYOUT.body_bytes)), E.E_ALL_ZERO),
    "another payload than announced": (
        with_body(body_with(scale=0x3000)),
        E.E_EQUIVOCATION,
    ),
}


# Those refused by their announcement, before a payload is read.
def announce(**changes):
    return lambda: announcement_for(MANIFEST, HEAD, BAD, good_payload(BAD), **changes)


def someone_elses():
    return announcement_for(MANIFEST, HEAD, PEERS[8], good_payload(PEERS[8]))


def announcement_bytes(change):
    return lambda: change(bytearray(announce()()))


BAD_ANNOUNCEMENTS = {
    "somebody else's": (someone_elses, E.E_OBJECT_KEY),
    "says attending": (lambda: attending_for(MANIFEST, HEAD, BAD), E.E_OBJECT_KEY),
    "a flipped signature bit": (announcement_bytes(lambda r: flipped(r, 60)), E.E_SIG),
    "cut": (announcement_bytes(lambda r: bytes(r[:100])), E.E_LEN),
    "longer than any": (announcement_bytes(lambda r: bytes(r) + bytes(2000)), E.E_LEN),
    "no envelope": (lambda: b"{}" + bytes(200), E.E_MAGIC),
    "another run": (announce(run_id=bytes(32)), E.E_RUN),
    "the round after": (announce(round_id=2), E.E_ROUND_FUTURE),
    "another length": (announce(num_bytes=MANIFEST.payload_bytes + 1), E.E_LEN),
}


async def fill(store, run, *, payloads=None, announcements=None, peers=PEERS):
    """Everybody's payload and announcement, `BAD`'s as given."""
    for identity in peers:
        good = good_payload(identity)
        payload = (payloads or {}).get(identity.peer, good)
        announced = payload if len(payload) >= HEADER_BYTES else good
        announcement = (announcements or {}).get(
            identity.peer, announcement_for(MANIFEST, HEAD, identity, announced)
        )
        await store.put(run.keys.payload(1, identity.peer), payload)
        await store.put(run.keys.published(1, identity.peer), announcement)


@pytest.fixture
def gathering(tmp_path):
    """Makes context and gather over a store; closes the log at the end."""
    contexts = []

    def make(loop, store, *, manifest=MANIFEST, **options):
        run = context_of(manifest, ME, store, loop, tmp_path / "events.jsonl")
        contexts.append(run)
        return run, RoundGather(run, first_head(manifest), **options)

    make.log = tmp_path / "events.jsonl"  # type: ignore[attr-defined]
    yield make
    for run in contexts:
        run.log.close()


def events(gathering, name):
    lines = gathering.log.read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["event"] == name]


async def poll_for(gather, seconds=3.0):
    """Polls for so long, in virtual time; the gather must still be going on, or be at its end."""
    task = asyncio.create_task(gather.poll())
    await asyncio.wait({task}, timeout=seconds)
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def assert_only_bad_was_refused(gathering, gather, code):
    assert {r.code for r in gather.rejected.values()} == {code}
    assert set(gather.rejected) == {BAD.peer.key.hex()}
    assert gather.failed_peers() == {BAD.peer}
    assert set(gather.accepted) == {p.peer for p in PEERS if p is not BAD}
    for identity in PEERS:
        if identity is not BAD:
            found = gather.accepted[identity.peer]
            raw = found.payload.signed_header + found.payload.body.body
            assert raw == good_payload(identity)
            assert found.payload.payload_id == id_of(raw)
    (refusal,) = events(gathering, "payload-rejected")
    assert (refusal["peer"], refusal["code"]) == (BAD.peer.key.hex(), code)
    assert len(events(gathering, "payload-accepted")) == 19


@pytest.mark.parametrize("kind", BAD_PAYLOADS)
def test_one_bad_payload_costs_that_peer_only(gathering, kind):
    make, code = BAD_PAYLOADS[kind]

    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        raw = make()
        announcements = {}
        if len(raw) < HEADER_BYTES or code is E.E_EQUIVOCATION:
            announcements[BAD.peer] = announce()()
        await fill(store, run, payloads={BAD.peer: raw}, announcements=announcements)
        await poll_for(gather)
        assert_only_bad_was_refused(gathering, gather, code)

    run_virtual(body)


@pytest.mark.parametrize("kind", BAD_ANNOUNCEMENTS)
def test_one_bad_announcement_costs_that_peer_only(gathering, kind):
    make, code = BAD_ANNOUNCEMENTS[kind]

    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        await fill(store, run, announcements={BAD.peer: make()})
        await poll_for(gather)
        assert_only_bad_was_refused(gathering, gather, code)
        assert ("get", run.keys.payload(1, BAD.peer)) not in store.calls

    run_virtual(body)


def test_a_stranger_is_refused_and_nobody_else_suffers(gathering):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        await fill(store, run)
        payload = payload_for(MANIFEST, HEAD, STRANGER, body_with())
        await store.put(run.keys.payload(1, STRANGER.peer), payload)
        raw = announcement_for(MANIFEST, HEAD, STRANGER, payload)
        await store.put(run.keys.published(1, STRANGER.peer), raw)
        await poll_for(gather)
        (refused,) = gather.rejected.values()
        assert refused.code is E.E_PEER_UNKNOWN
        assert len(gather.accepted) == 20

    run_virtual(body)


def test_an_unforeseen_failure_of_a_check_costs_that_peer_only(gathering):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        bad_body = good_payload(BAD)[PAYLOAD_PREFIX_BYTES:]

        class Crashing:
            def advance(self, view, num_arrived):
                pass

            def finish(self, view):
                if bytes(view) == bad_body:
                    raise ZeroDivisionError
                return check_body(view, LAYOUT)

        gather._context = replace(gather._context, start_body=Crashing)
        await fill(store, run)
        await poll_for(gather)
        assert_only_bad_was_refused(gathering, gather, E.E_INTERNAL)

    run_virtual(body)


STEPS_OF_ONE_PEER = {
    "its announcement is read": ("get", "/published/"),
    "its attendance is read": ("get", "/attending/"),
    "its payload is read": ("get", "/payloads/"),
    "its copy is kept": ("put", "/copies/"),
}


@pytest.mark.parametrize("step", STEPS_OF_ONE_PEER)
def test_an_unforeseen_failure_at_any_step_costs_that_peer_only(gathering, step):
    verb, part = STEPS_OF_ONE_PEER[step]
    bad_hex = BAD.peer.key.hex()
    name = id_of(good_payload(BAD)).hex() if part == "/copies/" else bad_hex

    def failing(asked_verb, key, asked):
        is_here = asked_verb == verb and part in key and name in key
        return ZeroDivisionError("nobody foresaw this") if is_here else None

    async def body(loop):
        store = FaultyStore(fault=failing)
        run, gather = gathering(loop, store, keep_copies=True)
        await fill(store.inner, run)
        raw = attending_for(MANIFEST, HEAD, BAD)
        await store.inner.put(run.keys.attending(1, BAD.peer), raw)
        await poll_for(gather)
        assert store.num_injected == 1
        assert {k: r.code for k, r in gather.rejected.items()} == {bad_hex: E.E_INTERNAL}
        others = {p.peer for p in PEERS if p is not BAD}
        assert others <= set(gather.accepted)
        assert (BAD.peer in gather.accepted) == (part == "/attending/")

    run_virtual(body)


def test_a_place_that_breaks_off_at_the_last_byte_each_time_does_not_take_the_link(gathering):
    class Breaking(FaultyStore):
        num_begun = 0

        async def get_into(self, key, room, arrived):
            if BAD.peer.key.hex() not in key:
                await read_into(self.inner, key, room, arrived)
                return
            self.num_begun += 1
            arrived(room.nbytes - 1)
            raise StorageUnavailableError("broken off", key)

    async def body(loop):
        store = Breaking()
        run, gather = gathering(loop, store)
        await fill(store, run)
        await poll_for(gather, seconds=MANIFEST.timing.round_seconds)
        # A few at once, then one in each tenth of the round; a poll takes 0.12 s.
        assert 5 <= store.num_begun <= 15
        assert gather.rejected == {}
        assert len(gather.accepted) == 19

    run_virtual(body)


def test_a_payload_replaced_after_its_announcement_is_a_second_word(gathering):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        await fill(store, run)
        other = payload_for(MANIFEST, HEAD, BAD, body_with(scale=0x3000))
        await store.put(run.keys.payload(1, BAD.peer), other, overwrite=True)
        await poll_for(gather)
        assert_only_bad_was_refused(gathering, gather, E.E_EQUIVOCATION)

    run_virtual(body)


FAULTS = {
    "no answer": lambda key: StorageUnavailableError("503", key),
    "not there yet": lambda key: ObjectNotFoundError("404", key),
    "refused": lambda key: AccessDeniedError("403", key),
    "bytes went missing": lambda key: ObjectSizeError("short", key),
    "too slow": lambda key: 31.0,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("where", ["/payloads/", "/published/", "/record", "/copies/"])
def test_a_failure_of_the_store_is_retried_and_never_a_refusal(gathering, fault, where):
    def failing(verb, key, asked):
        if where not in key or asked >= 2 or verb == "list":
            return None
        return fault(key)

    async def body(loop):
        store = FaultyStore(fault=failing)
        run, gather = gathering(loop, store, keep_copies=True)
        await fill(store.inner, run)
        await poll_for(gather, seconds=300.0 if fault is FAULTS["too slow"] else 3.0)
        assert store.num_injected >= (2 if where == "/record" else 20)
        assert gather.rejected == {}
        assert gather.failed_peers() == frozenset()
        assert len(gather.accepted) == 20

    run_virtual(body)


def test_a_failing_list_is_retried(gathering):
    def failing(verb, key, asked):
        return StorageUnavailableError("503", key) if verb == "list" and asked < 3 else None

    async def body(loop):
        store = FaultyStore(fault=failing)
        run, gather = gathering(loop, store)
        await fill(store, run)
        await poll_for(gather)
        assert store.num_injected == 3
        assert len(gather.accepted) == 20

    run_virtual(body)


def test_a_store_without_room_for_copies_ends_the_gather(gathering):
    def full(verb, key, asked):
        return StorageFullError("full", key, "disk", 0) if "/copies/" in key else None

    async def body(loop):
        store = FaultyStore(fault=full)
        run, gather = gathering(loop, store, keep_copies=True)
        await fill(store, run)
        with pytest.raises(ResourceError):
            await gather.poll()
        assert gather.rejected == {}

    run_virtual(body)


def test_no_more_is_read_than_an_object_of_its_kind_may_have(gathering):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store, keep_copies=True)
        await fill(store, run)
        await poll_for(gather)
        limits = {
            "/payloads/": MANIFEST.payload_bytes,
            "/published/": 1024,
            "/attending/": 1024,
            "/record": MANIFEST.limits.max_record_bytes,
        }
        assert len(store.most_bytes) == 41
        for key, most in store.most_bytes.items():
            (limit,) = [limit for part, limit in limits.items() if part in key]
            assert most == limit

    run_virtual(body)


def test_a_payload_is_fetched_once_and_its_copy_kept_under_its_id(gathering):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store, keep_copies=True)
        await fill(store, run)
        await poll_for(gather)
        asked = Counter(key for verb, key in store.calls if verb == "get" and "/record" not in key)
        assert set(asked.values()) == {1}
        for found in gather.accepted.values():
            key = run.keys.copy(found.payload.payload_id)
            assert await store.get(key, max_bytes=10_000) == (
                found.payload.signed_header + found.payload.body.body
            )

    run_virtual(body)


def test_a_payload_counts_as_soon_as_it_is_announced_not_at_the_end(gathering):
    async def body(loop):
        store = FaultyStore(fault=lambda verb, key, asked: 7.0 if "/payloads/" in key else None)
        run, gather = gathering(loop, store)
        await fill(store.inner, run, peers=PEERS[:1])
        polling = asyncio.create_task(gather.poll())
        await asyncio.sleep(3)
        await fill(store.inner, run, peers=PEERS[1:2])
        await asyncio.sleep(5)
        assert set(gather.accepted) == {PEERS[0].peer}
        await asyncio.sleep(5)
        assert set(gather.accepted) == {p.peer for p in PEERS[:2]}
        assert gather.accepted[PEERS[0].peer].latency_s == pytest.approx(7.0)
        polling.cancel()

    run_virtual(body)


def test_a_nodes_own_announcement_is_not_fetched(gathering):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store, manifest=tiny_manifest())
        await store.put(run.keys.published(1, ME.peer), b"anything")
        await poll_for(gather)
        assert gather.rejected == {}
        assert ("get", run.keys.published(1, ME.peer)) not in store.calls

    run_virtual(body)


def test_a_flood_of_announcements_is_bounded(gathering):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        for i in range(1200):
            await store.inner.put(f"{run.keys.published_prefix(1)}{i:04d}", b"junk")
        await poll_for(gather)
        assert len(gather.rejected) == 40
        assert sum(1 for verb, key in store.calls if verb == "get" and "/published/" in key) == 40
        assert gather.failed_peers() == frozenset()

    run_virtual(body)


def test_a_flood_does_not_hide_those_on_the_roster(gathering):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        for i in range(1200):
            await store.inner.put(f"{run.keys.published_prefix(1)}{i:04d}", b"junk")
        await fill(store, run)
        await poll_for(gather)
        assert len(gather.accepted) == 20

    run_virtual(body)


OPEN = tiny_manifest()


def open_announcement(identity, payload=None):
    raw = good_payload(identity) if payload is None else payload
    return announcement_for(OPEN, first_head(OPEN), identity, raw)


def open_payload(identity):
    return payload_for(OPEN, first_head(OPEN), identity, body_with())


async def fill_open(store, run, peers):
    for identity in peers:
        raw = open_payload(identity)
        await store.inner.put(run.keys.payload(1, identity.peer), raw)
        key = run.keys.published(1, identity.peer)
        await store.inner.put(key, open_announcement(identity, raw))


def note_counted(run, identities):
    """As if these had counted in the record before."""
    entries = tuple(
        CountedPayload(peer=i.peer, payload_id=i.peer.key, weight=1) for i in identities
    )
    run.familiar.note(record_after(first_head(OPEN), OPEN, entries))


FLOODS = {
    "junk": lambda run, identity: b"junk",
    "announced, and nothing there": lambda run, identity: open_announcement(
        identity, open_payload(identity)
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("comes_first", [True, False])
def test_in_an_open_run_new_keys_do_not_hide_those_that_counted(gathering, flood, comes_first):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store, manifest=OPEN)
        note_counted(run, PEERS)
        new = sorted((peer(i) for i in range(100, 400)), key=lambda i: i.peer.key)
        for identity in new:
            key = run.keys.published(1, identity.peer)
            await store.inner.put(key, FLOODS[flood](run, identity))
        if comes_first:
            await poll_for(gather, seconds=1.0)
        await fill_open(store, run, PEERS)
        await poll_for(gather)
        assert {p.peer for p in PEERS} == set(gather.accepted)
        assert len(gather.rejected) <= 40

    run_virtual(body)


@pytest.mark.parametrize("flood", FLOODS)
def test_an_honest_newcomer_gets_through_a_flood_of_worthless_names(gathering, flood):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store, manifest=OPEN)
        note_counted(run, PEERS)
        # As many as fill every place of a newcomer, and some more, before anybody honest is there.
        for i in range(100, 100 + run.familiar.num_newcomers + 10):
            key = run.keys.published(1, peer(i).peer)
            await store.inner.put(key, FLOODS[flood](run, peer(i)))
        await poll_for(gather, seconds=1.0)
        await fill_open(store, run, [STRANGER])
        await poll_for(gather, seconds=30.0)
        assert set(gather.accepted) == {STRANGER.peer}

    run_virtual(body)


def test_newcomers_that_are_valid_take_no_more_places_than_there_are(gathering):
    async def body(loop):
        store = FaultyStore()
        run, _ = gathering(loop, store, manifest=OPEN)
        for first in (0, 20):
            note_counted(run, [peer(i) for i in range(first, first + 20)])
        gather = RoundGather(run, first_head(OPEN))
        await fill_open(store, run, [peer(i) for i in range(100, 150)])
        await poll_for(gather)
        assert len(gather.accepted) == 4
        await fill_open(store, run, [peer(i) for i in range(40)])
        await poll_for(gather)
        assert len(gather.accepted) == 44

    run_virtual(body)


def test_which_newcomers_are_looked_at_does_not_depend_on_their_keys(gathering):
    """The lowest keys of many would be looked at each time, if the order were one to aim at."""

    async def body(loop):
        store = FaultyStore()
        run, _ = gathering(loop, store, manifest=OPEN)
        for first in (0, 20):
            note_counted(run, [peer(i) for i in range(first, first + 20)])
        await fill_open(store, run, [peer(i) for i in range(100, 300)])
        seen = set()
        for _ in range(8):
            gather = RoundGather(run, first_head(OPEN))
            await poll_for(gather, seconds=0.5)
            seen |= set(gather.accepted)
        # Twice the same four of 200 by chance: about one in 65 million.
        assert len(seen) > 4

    run_virtual(body)


def test_a_name_in_a_folder_below_is_nobodys(gathering):
    """It could speak ill of whose name it bears."""

    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        prefix = run.keys.published_prefix(1)
        await store.inner.put(f"{prefix}deeper/{PEERS[0].peer.key.hex()}", b"junk")
        await fill(store, run)
        await poll_for(gather)
        assert gather.rejected == {}
        assert len(gather.accepted) == 20

    run_virtual(body)


def test_a_refused_payload_does_not_keep_its_room(gathering, monkeypatch):
    rooms = []

    def noted(*args, **options):
        room = np.empty(*args, **options)
        rooms.append(weakref.ref(room))
        return room

    monkeypatch.setattr(receiving, "np", types.SimpleNamespace(empty=noted, uint8=np.uint8))

    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        bad = {p.peer: flipped(bytearray(good_payload(p)), 300) for p in PEERS[5:]}
        await fill(store, run, payloads=bad)
        await poll_for(gather)
        assert len(gather.rejected) == 15
        gc.collect()
        # One payload of each that was accepted, and nothing of the others.
        assert len(rooms) == 20
        assert sum(room() is not None for room in rooms) == len(gather.accepted) == 5

    run_virtual(body)


def record_counting(*identities):
    entries = tuple(
        CountedPayload(peer=i.peer, payload_id=id_of(good_payload(i)), weight=2**15)
        for i in identities
    )
    return build_record(record_after(HEAD, MANIFEST, entries), (VALIDATOR,))


def test_the_record_ends_the_gather_and_is_told_at_once(gathering):
    async def body(loop):
        told = []
        store = FaultyStore()
        run, gather = gathering(loop, store, on_record=lambda: told.append(loop.now_s()))
        polling = asyncio.create_task(gather.poll())
        await asyncio.sleep(10)
        assert not told
        await store.put(run.keys.record(1), record_counting(PEERS[0]))
        await polling
        assert told == [pytest.approx(loop.now_s(), abs=1.0)]
        assert gather.record is not None
        assert gather.record.record.round_id == 1

    run_virtual(body)


BAD_RECORDS = {
    "garbage": (lambda: b"garbage" * 50, E.E_MAGIC),
    "empty": (lambda: b"", E.E_LEN),
    "longer than any": (lambda: bytes(MANIFEST.limits.max_record_bytes + 1), E.E_LEN),
    "another run": (
        lambda: build_record(record_after(HEAD, MANIFEST, (), run_id=bytes(32)), (VALIDATOR,)),
        E.E_RUN,
    ),
    "a later round": (
        lambda: build_record(record_after(HEAD, MANIFEST, (), round_id=2), (VALIDATOR,)),
        E.E_GAP,
    ),
    "an earlier round": (
        lambda: build_record(
            record_after(replace(HEAD, round_id=3), MANIFEST, (), round_id=3), (VALIDATOR,)
        ),
        E.E_GAP,
    ),
    "another predecessor": (
        lambda: build_record(record_after(HEAD, MANIFEST, (), previous=bytes(32)), (VALIDATOR,)),
        E.E_PREV,
    ),
    "another base state": (
        lambda: build_record(record_after(HEAD, MANIFEST, (), base_state=bytes(32)), (VALIDATOR,)),
        E.E_PARENT,
    ),
    "a wrong void state": (
        lambda: build_record(record_after(HEAD, MANIFEST, (), state=bytes(32)), (VALIDATOR,)),
        E.E_STATE,
    ),
    "signed by a peer": (
        lambda: build_record(record_after(HEAD, MANIFEST, ()), (PEERS[0],)),
        E.E_PEER_UNKNOWN,
    ),
}


@pytest.mark.parametrize("kind", BAD_RECORDS)
def test_a_bad_record_is_reported_once_and_the_round_goes_on(gathering, kind):
    make, code = BAD_RECORDS[kind]

    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        await store.put(run.keys.record(1), make())
        polling = asyncio.create_task(gather.poll())
        await asyncio.sleep(5)
        await fill(store, run)
        await asyncio.sleep(5)
        assert len(gather.accepted) == 20
        assert gather.record is None
        (event,) = events(gathering, "record-rejected")
        assert event["code"] == code
        await store.put(run.keys.record(1), record_counting(PEERS[0]), overwrite=True)
        await polling
        assert gather.record is not None

    run_virtual(body)


def test_a_counted_payload_that_was_gathered_is_not_fetched_again(gathering):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        await fill(store, run)
        await poll_for(gather)
        before = len(store.calls)
        known = gather.accepted[PEERS[0].peer].payload
        entry = CountedPayload(peer=PEERS[0].peer, payload_id=known.payload_id, weight=1)
        assert await gather.fetch_counted(entry) is known
        assert len(store.calls) == before

    run_virtual(body)


def test_a_counted_payload_is_fetched_by_its_id_whatever_else_was_gathered(gathering):
    async def body(loop):
        store = FaultyStore()
        run, gather = gathering(loop, store)
        await fill(store, run)
        await poll_for(gather)
        other = payload_for(MANIFEST, HEAD, PEERS[0], body_with(scale=0x3000))
        await store.put(run.keys.copy(id_of(other)), b"damaged")
        entry = CountedPayload(peer=PEERS[0].peer, payload_id=id_of(other), weight=1)
        fetching = asyncio.create_task(gather.fetch_counted(entry))
        await asyncio.wait({fetching}, timeout=60)
        assert not fetching.done()
        await store.put(run.keys.copy(id_of(other)), other, overwrite=True)
        assert (await fetching).payload_id == id_of(other)

    run_virtual(body)


def test_what_is_verified_is_passed_on_and_nothing_else(gathering):
    async def body(loop):
        store, served = FaultyStore(), {}
        run, _ = gathering(loop, store)

        async def serve_again(payload_id, raw):
            served[payload_id] = bytes(raw)
            if len(served) == 5:
                raise StorageUnavailableError("the network process is away", "")

        gather = RoundGather(replace(run, serve_again=serve_again), HEAD)
        bad = bytes_of(lambda raw: flipped(raw, 300))()
        await fill(store, run, payloads={BAD.peer: bad})
        await poll_for(gather)
        good = [good_payload(identity) for identity in PEERS if identity is not BAD]
        assert served == {id_of(raw): raw for raw in good}
        assert len(gather.accepted) == 19

    run_virtual(body)


def test_attendance_is_read_by_those_who_close_rounds(gathering):
    async def body(loop):
        store = FaultyStore(MemoryStore())
        run, gather = gathering(loop, store, keep_copies=True)
        for identity in PEERS[:3]:
            raw = attending_for(MANIFEST, HEAD, identity)
            await store.put(run.keys.attending(1, identity.peer), raw)
        wrong = announcement_for(MANIFEST, HEAD, PEERS[3], good_payload(PEERS[3]))
        await store.put(run.keys.attending(1, PEERS[3].peer), wrong)
        await poll_for(gather)
        assert gather.attending == {p.peer for p in PEERS[:3]}
        assert AnnouncementType.PUBLISHED in gather.rejected[PEERS[3].peer.key.hex()].detail

    run_virtual(body)
