"""Uploads over a store that is away or hangs: no round is stuck, nobody is held. Virtual time."""

import asyncio

import pytest

from shoal.node.round_loop import Outcome
from shoal.storage.errors import StorageUnavailableError
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import VALIDATOR, peer
from tests.support.nodes import SimulatedNode, bigram_manifest
from tests.support.virtual_time import run_virtual

MANIFEST = bigram_manifest()
NUM_ROUNDS = MANIFEST.run.num_rounds
FINISHED = Outcome(finished=True, round_id=NUM_ROUNDS)
FOR_EVER_S = 1e6


@pytest.fixture
def live(tmp_path, no_fsync):
    """Runs a validator and two peers to the end; gives the peers and how long it took."""

    def run(store):
        async def body(loop):
            identities = {"validator": VALIDATOR, "peer-0": peer(0), "peer-1": peer(1)}
            nodes = [
                SimulatedNode(
                    MANIFEST, who, store, loop, tmp_path / name, trains=name != "validator"
                )
                for name, who in identities.items()
            ]
            begin_s = loop.now_s()
            try:
                outcomes = await asyncio.gather(*(node.live() for node in nodes))
                events = [
                    {n: node.events(n) for n in ("round", "payload-published")} for node in nodes
                ]
            finally:
                for node in nodes:
                    node.close()
            assert outcomes == [FINISHED] * 3
            assert len({node.state.head.state for node in nodes}) == 1
            return events[1:], loop.now_s() - begin_s

        return run_virtual(body)

    return run


def test_a_store_that_is_away_for_longer_than_a_round_leaves_no_round_stuck(live):
    away_s = 3 * MANIFEST.timing.round_seconds
    begin: list[float] = []

    def fault(verb, key, _):
        # From the first upload on, nobody can publish; everything else works.
        if verb != "put" or "/payloads/" not in key:
            return None
        now_s = asyncio.get_running_loop().time()
        begin.append(now_s)
        return StorageUnavailableError("away", key) if now_s < begin[0] + away_s else None

    store = FaultyStore(fault=fault)
    peers, took_s = live(store)
    assert store.num_injected > 10
    assert took_s > away_s
    for events in peers:
        assert [e["counted"] for e in events["round"]] == [True] * NUM_ROUNDS


def test_an_upload_that_hangs_is_given_up_when_its_round_is_over(live):
    victim = peer(1).peer.key.hex()

    def fault(verb, key, _):
        hangs = verb == "put" and victim in key and key.endswith("/payloads/00000002")
        return FOR_EVER_S if hangs else None

    store = FaultyStore(fault=fault)
    (other, hung), took_s = live(store)
    assert store.num_injected == 1
    assert [e["counted"] for e in other["round"]] == [True] * NUM_ROUNDS
    # Rounds take no time here: while it waited, the others have finished.
    assert [e["counted"] for e in hung["round"]][:2] == [True, False]
    assert len(hung["round"]) == NUM_ROUNDS
    assert took_s < FOR_EVER_S / 100


def test_attendance_that_hangs_delays_no_training(live):
    victim = peer(1).peer.key.hex()

    def fault(verb, key, _):
        return FOR_EVER_S if verb == "put" and f"attending/{victim}" in key else None

    store = FaultyStore(fault=fault)
    (_, hung), took_s = live(store)
    assert store.num_injected == NUM_ROUNDS
    assert len(hung["payload-published"]) >= NUM_ROUNDS - 1
    assert took_s < FOR_EVER_S / 100


def test_attendance_is_told_again_after_a_failure(live):
    def fault(verb, key, asked):
        is_first = verb == "put" and "/attending/" in key and asked == 0
        return StorageUnavailableError("away", key) if is_first else None

    store = FaultyStore(fault=fault)
    peers, _ = live(store)
    assert store.num_injected == 2 * NUM_ROUNDS
    assert [r["counted"] for events in peers for r in events["round"]] == [True] * 2 * NUM_ROUNDS


def test_a_record_whose_write_hangs_is_written_again(live):
    def fault(verb, key, asked):
        return FOR_EVER_S if (verb, asked) == ("put", 0) and key.endswith("/record") else None

    store = FaultyStore(fault=fault)
    _, took_s = live(store)
    assert store.num_injected == NUM_ROUNDS
    assert took_s < FOR_EVER_S / 100


def test_a_list_that_hangs_delays_a_round_by_no_more_than_a_transfer(live):
    def fault(verb, key, asked):
        return FOR_EVER_S if (verb, asked % 7) == ("list", 3) else None

    store = FaultyStore(fault=fault)
    _, took_s = live(store)
    assert store.num_injected > 0
    assert took_s < FOR_EVER_S / 100
