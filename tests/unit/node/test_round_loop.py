"""Several whole nodes in one process, over one store in memory, in virtual time."""

import asyncio
import contextlib
import random
from dataclasses import replace

import pytest

from shoal.node.errors import DivergedError, HaltError, ResourceError
from shoal.node.round_loop import Outcome
from shoal.node.store_keys import StoreKeys
from shoal.protocol.chain import genesis_head
from shoal.protocol.errors import ErrorCode
from shoal.protocol.record import build_record, read_record
from shoal.storage.errors import (
    ObjectNotFoundError,
    StorageFullError,
    StorageUnavailableError,
)
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import VALIDATOR, peer
from tests.support.nodes import SimulatedNode, bigram_manifest, live_through
from tests.support.virtual_time import run_virtual

MANIFEST = bigram_manifest()
NUM_ROUNDS = MANIFEST.run.num_rounds


@pytest.fixture
def swarm(tmp_path, no_fsync):
    """Makes a validator, then peers; closes their logs at the end."""
    made = []

    def make(loop, store, num_peers=3):
        roles = [(VALIDATOR, "validator", False)]
        roles += [(peer(i), f"peer-{i}", True) for i in range(num_peers)]
        for identity, name, trains in roles:
            disk = tmp_path / name
            made.append(SimulatedNode(MANIFEST, identity, store, loop, disk, trains=trains))
        return made

    yield make
    for node in made:
        node.close()


def assert_agreed(nodes, num_rounds=NUM_ROUNDS):
    assert {node.state.head.round_id for node in nodes} == {num_rounds}
    assert len({node.state.head.state for node in nodes}) == 1
    assert len({node.state.head.record_id for node in nodes}) == 1
    assert len({node.root for node in nodes}) == 1
    by_round: dict[int, set[str]] = {}
    for node in nodes:
        for report in node.events("round"):
            by_round.setdefault(report["round_id"], set()).add(report["state_hash"])
    assert sorted(by_round) == list(range(1, num_rounds + 1))
    assert all(len(hashes) == 1 for hashes in by_round.values())


def test_all_nodes_reach_the_same_parameters_and_learn(swarm):
    async def body(loop):
        nodes = swarm(loop, FaultyStore())
        start = nodes[0].root
        outcomes = await asyncio.gather(*(node.live() for node in nodes))
        assert outcomes == [Outcome(finished=True, round_id=NUM_ROUNDS)] * len(nodes)
        assert_agreed(nodes)
        assert nodes[0].root != start
        losses = [r["held_out_loss"] for r in nodes[0].events("round")]
        assert losses[-1] < losses[0]
        for node in nodes[1:]:
            reports = node.events("round")
            assert [r["counted"] for r in reports] == [True] * NUM_ROUNDS
            assert {r["num_counted"] for r in reports} == {3}
            assert {r["inner_steps"] for r in reports} == {3}
            # All three payloads have the same weight or less, and their own is told.
            assert all(0 < r["clip_weight_ratio"] <= 1 for r in reports)
            assert all(r["exposed_communication_s"] >= 0 for r in reports)

    run_virtual(body)


def test_the_data_flow_is_in_the_order_of_the_round(swarm, tmp_path):
    async def body(loop):
        nodes = swarm(loop, FaultyStore(), num_peers=1)
        await asyncio.gather(*(node.live() for node in nodes))
        lines = (tmp_path / "peer-0" / "events.jsonl").read_text().splitlines()
        names = [line.split('"')[3] for line in lines]
        one_round = [
            "round-opened",
            *["inner-step"] * 3,
            "payload-staged",
            "payload-published",
            "round",
        ]
        assert names == one_round * NUM_ROUNDS

    run_virtual(body)


def test_a_payload_is_durable_before_it_is_uploaded_and_uploaded_before_it_is_announced(swarm):
    async def body(loop):
        store = FaultyStore()
        nodes = swarm(loop, store, num_peers=1)
        found = []

        def watch(verb, key, asked):
            if verb == "put" and "/payloads/" in key:
                staged = nodes[1].load().staged_raw
                found.append(staged is not None)

        store.fault = watch
        await asyncio.gather(*(node.live() for node in nodes))
        assert found == [True] * NUM_ROUNDS
        puts = [key for verb, key in store.calls if verb == "put"]
        for round_id in range(1, NUM_ROUNDS + 1):
            payload = nodes[1].run.keys.payload(round_id, peer(0).peer)
            published = nodes[1].run.keys.published(round_id, peer(0).peer)
            assert puts.index(payload) < puts.index(published)
            between = store.calls[
                store.calls.index(("put", payload)) : store.calls.index(("put", published))
            ]
            assert ("head", payload) in between

    run_virtual(body)


@pytest.mark.parametrize("seed", range(6))
def test_nodes_agree_under_random_delays_failures_and_crashes(swarm, seed):
    draw = random.Random(seed)  # noqa: S311  # a test's scheduler, not a secret

    def fault(verb, key, asked):
        chance = draw.random()
        if chance < 0.08:
            return StorageUnavailableError("503", key)
        return draw.random() * 2 if chance < 0.5 else None

    async def body(loop):
        store = FaultyStore(fault=fault)
        nodes = swarm(loop, store)
        crashes = [draw.randrange(4) for _ in nodes]
        await asyncio.gather(
            *(live_through(node, n, draw) for node, n in zip(nodes, crashes, strict=True))
        )
        assert sum(crashes) > 0
        assert store.num_injected > 50
        assert_agreed(nodes)

    run_virtual(body, thread_delay_s=lambda: draw.random() * 5)


def test_a_late_node_catches_up_from_the_records(swarm):
    async def body(loop):
        nodes = swarm(loop, FaultyStore())
        *early, late = nodes
        await asyncio.gather(*(node.live() for node in early))
        assert await late.live() == Outcome(finished=True, round_id=NUM_ROUNDS)
        assert_agreed(nodes)
        assert all(report["replayed"] for report in late.events("round"))
        assert late.events("round-opened") == []

    run_virtual(body)


def test_a_payload_lost_by_its_author_is_applied_from_the_validators_copy(swarm):
    async def body(loop):
        store = FaultyStore()
        nodes = swarm(loop, store)
        *early, late = nodes
        await asyncio.gather(*(node.live() for node in early))
        for round_id in range(1, NUM_ROUNDS + 1):
            await store.delete(late.run.keys.payload(round_id, peer(0).peer))
        await late.live()
        assert_agreed(nodes)

    run_virtual(body)


def test_a_counted_payload_that_is_nowhere_is_waited_for_and_never_skipped(swarm):
    async def body(loop):
        store = FaultyStore()
        nodes = swarm(loop, store, num_peers=2)
        *early, late = nodes
        await asyncio.gather(*(node.live() for node in early))
        key = next(k for v, k in store.calls if v == "put" and "/copies/" in k)
        payload = late.run.keys.payload(1, peer(0).peer)
        kept = [(k, await store.get(k, max_bytes=10_000)) for k in (key, payload)]
        for gone, _ in kept:
            await store.delete(gone)
        life = asyncio.create_task(late.live())
        await asyncio.wait({life}, timeout=200)
        assert not life.done()
        assert late.state.head.round_id == 0
        await store.put(*kept[0])
        await life
        assert_agreed(nodes)

    run_virtual(body)


def test_a_peer_whose_payload_is_not_counted_keeps_its_residual(swarm):
    async def body(loop):
        nodes = swarm(loop, FaultyStore(), num_peers=2)
        _, one, other = nodes

        def no_announcement(verb, key, asked):
            lost = verb == "put" and "/published/" in key and peer(1).peer.key.hex() in key
            return StorageUnavailableError("503", key) if lost else None

        other.run.store._store.fault = no_announcement
        await asyncio.gather(*(node.live() for node in nodes))
        assert_agreed(nodes)
        assert [r["counted"] for r in other.events("round")] == [False] * NUM_ROUNDS
        kept = sum(float(abs(r).sum()) for r in other.state.feedback.residuals)
        assert kept > sum(float(abs(r).sum()) for r in one.state.feedback.residuals)
        assert other.state.staged_raw is None
        assert other.state.feedback.staged_body is None

    run_virtual(body)


def stopped_at(swarm, event_name, num_events=1):
    """Stops a peer when its log shows the event; returns node and outcome, then lets it go on."""

    async def body(loop):
        nodes = swarm(loop, FaultyStore(), num_peers=2)
        node = nodes[1]
        emit = node.run.log.emit

        def emit_and_stop(event, **fields):
            emit(event, **fields)
            if event.value == event_name and len(node.events(event_name)) == num_events:
                node.stop.set()

        node.run.log.emit = emit_and_stop
        others = [asyncio.create_task(n.live()) for n in (nodes[0], nodes[2])]
        outcome = await node.live()
        left_with = node.load()
        assert outcome.round_id == left_with.head.round_id == node.state.head.round_id
        node.run.log.emit = emit
        node.stop.clear()
        resumed = await node.live()
        await asyncio.gather(*others)
        assert resumed == Outcome(finished=True, round_id=NUM_ROUNDS)
        assert_agreed(nodes)
        return outcome, left_with, node

    return run_virtual(body)


@pytest.mark.parametrize("event", ["round-opened", "inner-step", "payload-staged", "round"])
def test_a_stop_is_obeyed_between_actions_and_the_next_start_goes_on(swarm, event):
    outcome, _, _ = stopped_at(swarm, event)
    assert not outcome.finished


def test_a_stop_during_the_upload_finishes_the_upload(swarm):
    _, left_with, node = stopped_at(swarm, "payload-staged")
    assert left_with.staged_raw is not None
    assert node.events("payload-published")[0]["round_id"] == 1


def test_a_stop_while_a_record_is_applied_reports_the_round_that_is_on_the_disk(swarm):
    async def body(loop):
        nodes = swarm(loop, FaultyStore(), num_peers=1)
        validator, node = nodes
        other = asyncio.create_task(validator.live())
        life = asyncio.create_task(node.live())
        while node.state.head.round_id == 0:  # noqa: ASYNC110  # the state has no event to wait for
            await asyncio.sleep(0.01)
        node.stop.set()
        outcome = await life
        other.cancel()
        assert node.load().head.round_id == 1
        assert outcome == Outcome(finished=False, round_id=1)

    run_virtual(body, thread_delay_s=lambda: 1.0)


def test_another_payload_of_ones_key_is_an_alarm_and_the_second_time_a_halt(swarm):
    async def body(loop):
        store = FaultyStore()
        nodes = swarm(loop, store, num_peers=2)
        node = nodes[1]
        for round_id in (1, 2):
            await store.put(node.run.keys.payload(round_id, node.run.me), b"other bytes")
        others = [asyncio.create_task(n.live()) for n in (nodes[0], nodes[2])]
        with pytest.raises(HaltError, match=ErrorCode.E_KEY_IN_USE):
            await node.live()
        assert node.state.head.round_id == 1
        assert [w["round_id"] for w in node.events("warning")] == [1, 2]
        for task in others:
            task.cancel()

    run_virtual(body)


def test_a_full_store_ends_the_node_as_a_lack_of_room(swarm):
    async def body(loop):
        def full(verb, key, asked):
            wanted = verb == "put" and "/payloads/" in key
            return StorageFullError("full", key, "disk", 0) if wanted else None

        nodes = swarm(loop, FaultyStore(fault=full), num_peers=1)
        with pytest.raises(ResourceError):
            await nodes[1].live()

    run_virtual(body)


def test_a_validator_whose_store_is_full_does_not_wait_for_ever(swarm):
    async def body(loop):
        def full(verb, key, asked):
            wanted = verb == "put" and "/copies/" in key
            return StorageFullError("full", key, "disk", 0) if wanted else None

        nodes = swarm(loop, FaultyStore(fault=full), num_peers=1)
        other = asyncio.create_task(nodes[1].live())
        with pytest.raises(ResourceError):
            await nodes[0].live()
        other.cancel()

    run_virtual(body)


def test_a_node_that_computes_another_state_than_the_record_halts_with_the_old_one_on_its_disk(
    swarm,
):
    async def body(loop):
        nodes = swarm(loop, FaultyStore(), num_peers=2)
        *early, late = nodes
        await asyncio.gather(*(node.live() for node in early))
        life = asyncio.create_task(late.live())
        late.load()
        await asyncio.sleep(0)
        late.state.base[0][3] += 1.0
        with pytest.raises(DivergedError, match="root of the parameters"):
            await life
        assert late.load().head.round_id == 0

    run_virtual(body)


def test_a_second_certified_record_in_the_place_of_an_applied_one_halts_with_both_as_evidence(
    swarm,
):
    nodes: list[SimulatedNode] = []
    rules = MANIFEST.record_rules()
    genesis = genesis_head(MANIFEST.run_id, MANIFEST.genesis.root)
    key = StoreKeys(MANIFEST.run_id).record(1)
    known: list[bytes] = []

    def fault(verb, asked_key, asked):
        applied = all(node.state.head.round_id >= 1 for node in nodes)
        if (verb, asked_key) != ("get", key) or not known or not applied:
            return None
        record = read_record(known[0], rules, genesis).record
        other = replace(record, closed_at_ms=record.closed_at_ms + 1)
        return build_record(other, (VALIDATOR,))

    async def body(loop):
        store = FaultyStore(fault=fault)
        nodes.extend(swarm(loop, store))
        lives = [asyncio.create_task(node.live()) for node in nodes]
        while not known:
            await asyncio.sleep(1.0)
            with contextlib.suppress(ObjectNotFoundError):
                known.append(await store.inner.get(key, max_bytes=1 << 20))
        done, _ = await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED)
        for life in done:
            with pytest.raises(HaltError, match="E_FORK"):
                await life
        for life in lives:
            life.cancel()
        await asyncio.wait(lives)
        assert store.num_injected >= 1
        halted = [node for node, life in zip(nodes, lives, strict=True) if life in done]
        for node in halted:
            evidence = sorted(p.name for p in (node.disk / "checkpoints").glob("fork-*"))
            assert evidence == ["fork-known.record", "fork-other.record"]
            assert (node.disk / "checkpoints" / "fork-known.record").read_bytes() == known[0]

    run_virtual(body)


def test_garbage_in_the_place_of_an_applied_record_proves_nothing(swarm):
    nodes: list[SimulatedNode] = []
    key = StoreKeys(MANIFEST.run_id).record(1)

    def fault(verb, asked_key, asked):
        applied = nodes and all(node.state.head.round_id >= 1 for node in nodes)
        return b"garbage" if (verb, asked_key) == ("get", key) and applied else None

    async def body(loop):
        store = FaultyStore(fault=fault)
        nodes.extend(swarm(loop, store))
        await asyncio.gather(*(node.live() for node in nodes))
        assert store.num_injected >= 1
        assert_agreed(nodes)

    run_virtual(body)
