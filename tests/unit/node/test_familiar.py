"""Who counted lately goes first, in an open run; what is left is bounded and never nothing."""

import pytest

from shoal.node.familiar import Familiar, NewcomerLimit
from shoal.node.validator import recall
from shoal.protocol.manifest import AdmissionSection
from shoal.protocol.record import build_record
from shoal.storage.errors import StorageUnavailableError
from tests.support.contexts import context_of
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import (
    VALIDATOR,
    counted,
    first_head,
    peer,
    record_after,
    tiny_manifest,
    verified_after,
)
from tests.support.virtual_time import run_virtual

MANIFEST = tiny_manifest()
HEAD = first_head(MANIFEST)


def record_counting(numbers, head=HEAD):
    entries = tuple(counted(peer(i), i.to_bytes(32, "big")) for i in numbers)
    return verified_after(head, MANIFEST, entries)


def known_of(familiar, numbers):
    return {i for i in numbers if familiar.knows(peer(i).peer.key.hex())}


def test_those_that_counted_are_known_and_the_oldest_are_forgotten():
    familiar = Familiar(4, None)
    assert known_of(familiar, range(20)) == set()
    for first in (0, 4, 8):
        familiar.note(record_counting(range(first, first + 4)).record)
    assert known_of(familiar, range(20)) == set(range(4, 12))
    assert familiar.steady == frozenset({peer(i).peer for i in range(8, 12)})
    familiar.note(record_counting([4, 12, 13, 14]).record)
    assert known_of(familiar, range(20)) == {4, 8, 9, 10, 11, 12, 13, 14}


def test_a_void_round_makes_nobody_a_newcomer():
    familiar = Familiar(4, None)
    familiar.note(record_counting([1, 2]).record)
    familiar.note(verified_after(HEAD, MANIFEST).record)
    assert known_of(familiar, range(20)) == {1, 2}
    assert familiar.steady == frozenset({peer(1).peer, peer(2).peer})


@pytest.mark.parametrize(
    ("gather_limit", "num_counted", "newcomers", "seats"),
    [(20, 0, 40, 20), (20, 5, 35, 15), (20, 20, 20, 4), (2, 2, 2, 1), (1, 1, 1, 0)],
)
def test_newcomers_have_what_is_left_and_a_fifth_at_least(
    gather_limit, num_counted, newcomers, seats
):
    familiar = Familiar(gather_limit, None)
    if num_counted:
        familiar.note(record_counting(range(num_counted)).record)
    assert familiar.num_newcomers == newcomers
    assert familiar.num_newcomer_seats(num_counted) == seats
    assert familiar.num_newcomer_seats(0) == gather_limit


@pytest.mark.parametrize("gather_limit", [1, 2, 5, 20])
def test_a_run_that_everybody_left_takes_newcomers_in(gather_limit):
    familiar = Familiar(gather_limit, None)
    for first in range(0, 4 * gather_limit, gather_limit):
        familiar.note(record_counting(range(first, first + gather_limit)).record)
    assert familiar.num_newcomers == max(gather_limit // 5, 1)
    assert familiar.num_newcomer_seats(0) == gather_limit


def test_with_a_roster_those_on_it_are_known_and_nobody_else():
    familiar = Familiar(4, frozenset({peer(1).peer, peer(2).peer}))
    familiar.note(record_counting([1]).record)
    assert known_of(familiar, range(5)) == {1, 2}
    assert familiar.steady is None


def test_a_round_lets_so_many_newcomers_in_and_the_known_always():
    familiar = Familiar(4, None)
    familiar.note(record_counting([1, 2, 3]).record)
    limit = NewcomerLimit(familiar)
    assert [limit.admit(7, f"{i:064x}") for i in range(8)] == [True] * 5 + [False] * 3
    assert limit.admit(7, f"{2:064x}")
    assert not limit.has_room(7, f"{9:064x}")
    assert all(limit.admit(7, peer(i).peer.key.hex()) for i in (1, 2, 3))
    assert limit.has_room(8, f"{9:064x}")
    assert limit.admit(8, f"{9:064x}")
    assert [limit.admit(8, f"{i:064x}") for i in range(20, 26)] == [True] * 4 + [False] * 2


def chain_of(num_rounds):
    """Records of as many rounds; peer r counted in round r."""
    head, records = HEAD, []
    for round_id in range(1, num_rounds + 1):
        records.append(record_counting([round_id], head))
        head = records[-1].head
    return records


async def _recalled(loop, folder, records, fault=None, manifest=MANIFEST):
    store = FaultyStore(fault=fault)
    run = context_of(manifest, VALIDATOR, store, loop, folder / "events.jsonl")
    for one in records:
        await store.inner.put(run.keys.record(one.record.round_id), one.raw)
    await recall(run, records[-1].head if records else HEAD)
    run.log.close()
    return run, store


def test_a_restarted_validator_learns_from_the_last_records_who_counted(tmp_path):
    async def body(loop):
        run, store = await _recalled(loop, tmp_path, chain_of(12))
        assert known_of(run.familiar, range(20)) == set(range(5, 13))
        assert run.familiar.steady == {peer(12).peer}
        num_calls = len(store.calls)
        await recall(run, HEAD)
        assert len(store.calls) == num_calls

    run_virtual(body)


def test_a_record_that_somebody_else_put_there_is_not_believed(tmp_path):
    async def body(loop):
        records = chain_of(4)
        evil = record_after(records[1].head, MANIFEST, (counted(peer(66), bytes(32)),))
        store = FaultyStore()
        run = context_of(MANIFEST, VALIDATOR, store, loop, tmp_path / "events.jsonl")
        for one in (*records[:2], records[3]):
            await store.put(run.keys.record(one.record.round_id), one.raw)
        await store.put(run.keys.record(3), build_record(evil, (VALIDATOR,)))
        await recall(run, records[-1].head)
        assert known_of(run.familiar, range(100)) == {4}
        run.log.close()

    run_virtual(body)


def test_what_could_not_be_read_is_read_the_next_time(tmp_path):
    def failing(verb, key, asked):
        return StorageUnavailableError("503", key) if "00000002/record" in key else None

    async def body(loop):
        records = chain_of(4)
        run, store = await _recalled(loop, tmp_path, records, failing)
        assert known_of(run.familiar, range(20)) == {3, 4}
        store.fault = lambda verb, key, asked: None
        await recall(run, records[-1].head)
        assert known_of(run.familiar, range(20)) == {1, 2, 3, 4}
        assert run.familiar.steady == {peer(4).peer}

    run_virtual(body)


def test_nothing_is_read_where_there_is_nothing_to_learn(tmp_path):
    async def body(loop):
        _, store = await _recalled(loop, tmp_path, [])
        assert store.calls == []
        roster = AdmissionSection(mode="roster", peers=(peer(1).peer.key,))
        manifest = tiny_manifest(admission=roster)
        _, store = await _recalled(loop, tmp_path, [], manifest=manifest)
        assert store.calls == []

    run_virtual(body)
