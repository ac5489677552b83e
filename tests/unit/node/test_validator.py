"""When a validator closes a round, with which payloads, and what it finds after a restart."""

import asyncio
import json

import pytest

from shoal.node.applying import apply_record
from shoal.node.checkpoint import CheckpointFolder
from shoal.node.errors import HaltError
from shoal.node.gatherer import RoundGather
from shoal.node.parameters import parameters_root
from shoal.node.validator import Attended, close_round, propose_record
from shoal.protocol.chain import round_seed, void_state
from shoal.protocol.errors import ErrorCode
from shoal.protocol.manifest import OuterSection, TimingSection
from shoal.protocol.record import build_record, read_record
from shoal.protocol.record_body import CloseReason
from shoal.protocol.round_machine import Settlement
from shoal.protocol.selection import draw_order
from shoal.storage.errors import StorageUnavailableError
from tests.support.bodies import body_like
from tests.support.contexts import announcement_for, attending_for, context_of, payload_for
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import VALIDATOR, counted, layout_of, peer, record_after
from tests.support.nodes import bigram_base, bigram_manifest, fresh_state
from tests.support.virtual_time import run_virtual

PEERS = [peer(i) for i in range(6)]


def manifest_with(*, gather_limit=20, **timing):
    return bigram_manifest(
        outer=OuterSection(gather_limit=gather_limit),
        timing=TimingSection(round_seconds=100.0, checkpoint_every=1, **timing),
    )


MANIFEST = manifest_with()


class Round:
    """One open round of a validator; peers attend and publish at chosen times."""

    def __init__(self, loop, store, log, manifest=MANIFEST, before=None):
        self.store, self.manifest, self.loop, self.log = store, manifest, loop, log
        self.run = context_of(manifest, VALIDATOR, store, loop, log)
        self.state = fresh_state(self.run, trains=False)
        self.gather = RoundGather(self.run, self.state.head, keep_copies=True)
        self.opened_at_s = loop.now_s()
        self.before = before or Attended()
        self.layout = layout_of(manifest)

    @property
    def age_s(self):
        return self.loop.now_s() - self.opened_at_s

    @property
    def record(self):
        assert self.gather.record is not None
        return self.gather.record

    def payload(self, identity):
        body = body_like(self.layout, PEERS.index(identity))
        return payload_for(self.manifest, self.state.head, identity, body)

    async def attends(self, *identities):
        for identity in identities:
            key = self.run.keys.attending(1, identity.peer)
            raw = attending_for(self.manifest, self.state.head, identity)
            await self.store.inner.put(key, raw)

    async def publishes(self, identity, *, payload=None):
        payload = self.payload(identity) if payload is None else payload
        raw = announcement_for(self.manifest, self.state.head, identity, payload)
        await self.store.inner.put(self.run.keys.payload(1, identity.peer), payload)
        await self.store.inner.put(self.run.keys.published(1, identity.peer), raw)

    def start(self):
        polling = asyncio.create_task(self.gather.poll())
        closing = asyncio.create_task(
            close_round(self.run, self.state, self.gather, self.opened_at_s, self.before)
        )
        closing.add_done_callback(lambda _: polling.cancel())
        return closing

    async def closed(self, within_s=1000.0):
        closing = self.start()
        await asyncio.wait({closing}, timeout=within_s)
        if not closing.done():
            closing.cancel()
            return None
        closing.result()
        return self.record.record


@pytest.fixture
def opened(tmp_path):
    """Runs a coroutine function with a fresh round in virtual time."""

    def run(body, **options):
        async def whole(loop):
            store = FaultyStore(fault=options.pop("fault", None))
            opened = Round(loop, store, tmp_path / "events.jsonl", **options)
            try:
                return await body(opened)
            finally:
                opened.run.log.close()

        return run_virtual(whole)

    return run


def test_it_closes_as_soon_as_all_that_attend_have_published(opened):
    async def body(r):
        await r.attends(*PEERS[:2])
        r.loop.call_later(20, lambda: asyncio.ensure_future(r.publishes(PEERS[0])))
        r.loop.call_later(30, lambda: asyncio.ensure_future(r.publishes(PEERS[1])))
        record = await r.closed()
        assert record.close_reason is CloseReason.ALL_PUBLISHED
        assert {e.peer for e in record.counted} == {p.peer for p in PEERS[:2]}
        assert 30 <= r.age_s < 31

    opened(body)


def test_in_a_new_run_the_first_peer_does_not_make_up_the_run_alone(opened):
    async def body(r):
        await r.attends(PEERS[0])
        await r.publishes(PEERS[0])
        assert (await r.closed()).close_reason is CloseReason.ALL_PUBLISHED
        assert 10 <= r.age_s < 11

    opened(body)


def test_with_the_target_it_waits_for_median_plus_three_mad_and_no_longer(opened):
    async def body(r):
        await r.attends(*PEERS[:4])
        for i, delay in enumerate((10, 20, 30)):
            r.loop.call_later(delay, lambda i=i: asyncio.ensure_future(r.publishes(PEERS[i])))
        record = await r.closed()
        assert record.close_reason is CloseReason.TARGET_REACHED
        assert len(record.counted) == 3
        assert 50 <= r.age_s < 51

    opened(body, manifest=manifest_with(target_peers=3))


def test_at_the_end_of_the_rounds_time_it_closes_with_whoever_is_there(opened):
    async def body(r):
        await r.attends(*PEERS[:3])
        await r.publishes(PEERS[0])
        record = await r.closed()
        assert record.close_reason is CloseReason.ROUND_OVER
        assert [e.peer for e in record.counted] == [PEERS[0].peer]
        assert 100 <= r.age_s < 101

    opened(body)


def test_too_few_payloads_make_a_void_record(opened):
    async def body(r):
        await r.publishes(PEERS[0])
        record = await r.closed()
        assert record.void
        assert record.counted == ()
        assert record.state == void_state(r.manifest.run_id, 1, r.state.head.state)
        assert record.params_root == parameters_root(r.manifest.tensors, bigram_base())
        assert 100 <= r.age_s < 101

    opened(body, manifest=manifest_with(min_peers=2))


def test_if_nobody_publishes_the_round_stays_open(opened):
    async def body(r):
        await r.attends(*PEERS[:2])
        assert await r.closed(within_s=1000) is None

    opened(body)


def test_a_refused_payload_is_not_waited_for_and_does_not_count(opened):
    async def body(r):
        await r.attends(*PEERS[:2])
        await r.publishes(PEERS[0])
        await r.publishes(PEERS[1], payload=bytes(r.manifest.payload_bytes))
        record = await r.closed()
        assert [e.peer for e in record.counted] == [PEERS[0].peer]
        assert r.age_s < 11

    opened(body)


async def publish_late(r, identity):
    """The announcement of the round before; only its name matters here."""
    await r.store.inner.put(r.run.keys.published_prefix(0) + identity.peer.key.hex(), b"late")


def test_who_was_silent_in_the_round_before_is_not_waited_for(opened):
    async def body(r):
        await r.attends(*PEERS[:2])
        await publish_late(r, PEERS[0])
        await r.publishes(PEERS[0])
        assert (await r.closed()).close_reason is CloseReason.ALL_PUBLISHED
        assert r.age_s < 11

    opened(body, before=Attended(0, frozenset(p.peer for p in PEERS[:2])))


def test_a_slow_peer_that_published_late_is_still_waited_for(opened):
    async def body(r):
        await r.attends(*PEERS[:2])
        for identity in PEERS[:2]:
            await publish_late(r, identity)
        await r.publishes(PEERS[0])
        r.loop.call_later(80, lambda: asyncio.ensure_future(r.publishes(PEERS[1])))
        record = await r.closed()
        assert record.close_reason is CloseReason.ALL_PUBLISHED
        assert len(record.counted) == 2
        assert 80 <= r.age_s < 81

    opened(body, before=Attended(0, frozenset(p.peer for p in PEERS[:2])))


def test_a_flood_of_names_does_not_make_a_late_peer_a_silent_one(opened):
    async def body(r):
        for number in range(1200):
            await r.store.inner.put(f"{r.run.keys.published_prefix(0)}{number:04d}", b"junk")
        await r.store.inner.put(r.run.keys.published(0, PEERS[1].peer), b"late")
        await r.attends(*PEERS[:2])
        await r.publishes(PEERS[0])
        assert await r.closed(within_s=60) is None

    opened(body, before=Attended(0, frozenset(p.peer for p in PEERS[:2])))


def test_what_was_attended_long_ago_is_forgotten(opened):
    async def body(r):
        await r.attends(*PEERS[:2])
        await r.publishes(PEERS[0])
        assert (await r.closed()).close_reason is CloseReason.ROUND_OVER

    opened(body, before=Attended(-5, frozenset(p.peer for p in PEERS[:2])))


def test_a_silent_peer_that_publishes_in_time_after_all_counts(opened):
    async def body(r):
        await r.attends(*PEERS[:3])
        r.loop.call_later(20, lambda: asyncio.ensure_future(r.publishes(PEERS[0])))
        r.loop.call_later(15, lambda: asyncio.ensure_future(r.publishes(PEERS[1])))
        record = await r.closed()
        assert {e.peer for e in record.counted} == {p.peer for p in PEERS[:2]}

    silent = frozenset(p.peer for p in PEERS[1:3])
    opened(body, before=Attended(0, silent))


def test_more_candidates_than_the_limit_are_thinned_by_the_draw(opened):
    async def body(r):
        await r.attends(*PEERS)
        for identity in PEERS:
            await r.publishes(identity)
        record = await r.closed()
        drawn = draw_order(round_seed(r.state.head), {p.peer: 1 for p in PEERS}, 3)
        assert tuple(e.peer for e in record.counted) == drawn

    opened(body, manifest=manifest_with(gather_limit=3))


def counted_before(r, *identities):
    """As if these had counted in the record before."""
    entries = tuple(counted(i, i.peer.key) for i in identities)
    r.run.familiar.note(record_after(r.state.head, r.manifest, entries))


def test_those_that_counted_lately_keep_their_seats_but_for_one_in_five(opened):
    async def body(r):
        counted_before(r, *PEERS[:3])
        await r.attends(*PEERS)
        for identity in PEERS:
            await r.publishes(identity)
        peers = {e.peer for e in (await r.closed()).counted}
        seed, known, new = round_seed(r.state.head), PEERS[:3], PEERS[3:]
        (newcomer,) = draw_order(seed, {p.peer: 1 for p in new}, 1)
        assert peers == {newcomer, *draw_order(seed, {p.peer: 1 for p in known}, 2)}

    opened(body, manifest=manifest_with(gather_limit=3))


def test_newcomers_take_the_seats_that_are_left(opened):
    async def body(r):
        counted_before(r, *PEERS[:3])
        for identity in PEERS[2:]:
            await r.publishes(identity)
        peers = [e.peer for e in (await r.closed()).counted]
        assert len(peers) == 4
        assert PEERS[2].peer in peers

    opened(body, manifest=manifest_with(gather_limit=4))


def test_a_crowd_that_publishes_at_once_does_not_close_the_round_before_the_others(opened):
    async def body(r):
        counted_before(r, *PEERS[:2])
        for identity in PEERS[2:]:
            await r.publishes(identity)
        closing = r.start()
        await asyncio.sleep(5)
        await r.attends(*PEERS[:2])
        await asyncio.sleep(55)
        assert not closing.done()
        for identity in PEERS[:2]:
            await r.publishes(identity)
        await closing
        assert {p.peer for p in PEERS[:2]} <= {e.peer for e in r.record.record.counted}

    opened(body, manifest=manifest_with(target_peers=2, gather_limit=3))


def test_the_record_holds_what_every_node_computes_and_copies_are_kept(opened, tmp_path):
    async def body(r):
        await r.attends(*PEERS[:3])
        for identity in PEERS[:3]:
            await r.publishes(identity)
        record = await r.closed()
        for entry in record.counted:
            raw = await r.store.get(r.run.keys.copy(entry.payload_id), max_bytes=10_000)
            payload = r.gather.accepted[entry.peer].payload
            assert raw == payload.signed_header + payload.body.body
        untouched = [flat.tobytes() for flat in r.state.base]
        assert untouched == [flat.tobytes() for flat in bigram_base()]
        payloads = [r.gather.accepted[e.peer].payload for e in record.counted]
        apply_record(
            r.run,
            r.state,
            CheckpointFolder(tmp_path / "checkpoints"),
            r.record,
            payloads,
            Settlement.NOTHING_STAGED,
        )
        assert r.state.head == r.record.head
        assert parameters_root(r.manifest.tensors, r.state.base) == record.params_root

    opened(body)


def test_a_root_is_in_the_record_only_when_a_checkpoint_is_due(opened):
    async def body(r):
        await r.publishes(PEERS[0])
        assert (await r.closed()).params_root == b""

    manifest = bigram_manifest(timing=TimingSection(round_seconds=100.0, checkpoint_every=2))
    opened(body, manifest=manifest)


def test_a_restarted_validator_finds_its_own_earlier_record(opened):
    async def body(r):
        await r.publishes(PEERS[0])
        first = await r.closed()
        await r.publishes(PEERS[1])
        again = Round(r.loop, r.store, r.log, r.manifest)
        try:
            assert await again.closed() == first
            assert again.record.raw == r.record.raw
        finally:
            again.run.log.close()

    opened(body)


def test_a_record_that_somebody_wrote_first_is_taken_over(opened):
    async def body(r):
        await r.publishes(PEERS[0])
        theirs = build_record(record_after(r.state.head, r.manifest, ()), (VALIDATOR,))

        def race(verb, key, asked):
            if verb == "put" and key.endswith("/record"):
                r.store.inner._objects[key] = (theirs, 0.0)

        r.store.fault = race
        await r.closed()
        assert r.record.raw == theirs

    opened(body)


def test_garbage_in_the_records_place_is_replaced(opened):
    async def body(r):
        key = r.run.keys.record(1)
        await r.store.inner.put(key, b"garbage" * 100)
        await r.publishes(PEERS[0])
        record = await r.closed()
        raw = await r.store.get(key, max_bytes=1 << 20)
        found = read_record(raw, r.run.record_rules, r.state.head)
        assert found.record == record
        lines = r.log.read_text().splitlines()
        refused = [e for e in map(json.loads, lines) if e["event"] == "record-rejected"]
        assert [e["code"] for e in refused] == [ErrorCode.E_MAGIC]

    opened(body)


def test_a_record_whose_write_was_not_confirmed_is_not_replaced_by_another(opened):
    """The answer to the write is lost, and so are the next reads: the record must stay."""

    async def body(r):
        key = r.run.keys.record(1)
        await r.store.inner.put(key, b"garbage" * 100)
        await r.publishes(PEERS[0])
        written: list[bytes] = []

        def no_answer(verb, name, asked):
            if verb == "get" and name == key and 0 < len(written) < 4:
                written.append(b"")
                return StorageUnavailableError("503", key)
            return None

        r.store.fault = no_answer
        real_put = r.store.put

        async def put(name, data, *, overwrite=False):
            if name == key and not written:
                await r.store.inner.put(name, data)
                written.append(bytes(data))
                raise StorageUnavailableError("the answer was lost", key)
            await real_put(name, data, overwrite=overwrite)

        r.store.put = put
        await r.closed()
        assert r.record.raw == written[0]
        assert await r.store.inner.get(key, max_bytes=1 << 20) == written[0]

    opened(body)


@pytest.mark.parametrize("verb", ["put", "get", "list"])
def test_a_store_that_does_not_answer_delays_the_record_and_no_more(opened, verb):
    def failing(asked_verb, key, asked):
        wanted = verb == asked_verb and ("/record" in key or verb == "list")
        return StorageUnavailableError("503", key) if wanted and asked < 5 else None

    async def body(r):
        await r.publishes(PEERS[0])
        record = await r.closed()
        assert [e.peer for e in record.counted] == [PEERS[0].peer]
        assert r.store.num_injected >= 5

    opened(body, fault=failing)


def test_a_validator_whose_own_record_is_refused_halts(opened):
    async def body(r):
        await r.publishes(PEERS[0])
        object.__setattr__(r.run.record_rules, "run_id", bytes(32))
        with pytest.raises(HaltError, match="own record"):
            await r.closed()

    opened(body)


def test_the_proposal_does_not_depend_on_the_order_of_arrival(opened):
    async def body(r):
        for identity in PEERS[:4]:
            await r.publishes(identity)
        polling = asyncio.create_task(r.gather.poll())
        await asyncio.sleep(2)
        polling.cancel()
        accepted = r.gather.accepted
        assert len(accepted) == 4
        records = [
            propose_record(r.run, r.state, r.state.head, dict(items), CloseReason.ALL_PUBLISHED)
            for items in (list(accepted.items()), list(accepted.items())[::-1])
        ]
        assert records[0] == records[1]

    opened(body)
