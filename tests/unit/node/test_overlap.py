"""Training one round ahead: the same agreement, and no waiting for payloads."""

import asyncio
import random
import types

import numpy as np
import pytest

from shoal.node import inner_loop, staging
from shoal.node.data_source import DataSource
from shoal.node.inner_loop import InnerLoop
from shoal.node.model import parameters_of
from shoal.node.pseudo_gradient import pseudo_gradient
from shoal.node.round_loop import Outcome
from shoal.protocol.chain import ChainHead, round_seed
from shoal.protocol.manifest import TimingSection
from shoal.storage.errors import StorageUnavailableError
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import VALIDATOR, peer
from tests.support.nodes import SimulatedNode, bigram_data, bigram_manifest, live_through
from tests.support.virtual_time import run_virtual

PLAIN = bigram_manifest()
AHEAD = bigram_manifest(
    timing=TimingSection(round_seconds=60.0, checkpoint_every=1, overlap="one-round")
)
NUM_ROUNDS = AHEAD.run.num_rounds


@pytest.fixture
def swarm(tmp_path, no_fsync):
    """Makes a validator, then peers; closes their logs at the end."""
    made = []

    def make(loop, store, manifest=AHEAD, num_peers=3):
        roles = [(VALIDATOR, "validator", False)]
        roles += [(peer(i), f"peer-{i}", True) for i in range(num_peers)]
        nodes = [
            SimulatedNode(manifest, identity, store, loop, tmp_path / name, trains=trains)
            for identity, name, trains in roles
        ]
        made.extend(nodes)
        return nodes

    yield make
    for node in made:
        node.close()


def assert_agreed(nodes):
    assert {node.state.head.round_id for node in nodes} == {NUM_ROUNDS}
    assert len({node.state.head.state for node in nodes}) == 1
    assert len({node.root for node in nodes}) == 1


def test_all_nodes_agree_and_learn_and_every_payload_counts(swarm):
    async def body(loop):
        nodes = swarm(loop, FaultyStore())
        outcomes = await asyncio.gather(*(node.live() for node in nodes))
        assert outcomes == [Outcome(finished=True, round_id=NUM_ROUNDS)] * len(nodes)
        assert_agreed(nodes)
        losses = [r["held_out_loss"] for r in nodes[0].events("round")]
        assert losses[-1] < losses[0]
        for node in nodes[1:]:
            reports = node.events("round")
            assert [r["counted"] for r in reports] == [True] * NUM_ROUNDS
            assert {r["inner_steps"] for r in reports} == {AHEAD.training.inner_steps}

    run_virtual(body)


@pytest.mark.parametrize("seed", range(4))
def test_nodes_agree_under_random_delays_failures_and_crashes(swarm, seed):
    draw = random.Random(seed)  # noqa: S311  # a test's scheduler, not a secret

    def fault(verb, key, asked):
        if draw.random() < 0.08:
            return StorageUnavailableError("503", key)
        return draw.random() * 2 if draw.random() < 0.5 else None

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


@pytest.mark.parametrize("manifest", [PLAIN, AHEAD])
def test_slow_transfers_are_exposed_without_overlap_and_hidden_with_it(swarm, manifest):
    """Every transfer takes a second, every step of computing five."""

    def slow(verb, key, asked):
        return 1.0 if "payloads" in key and verb in ("put", "get") else None

    async def body(loop):
        nodes = swarm(loop, FaultyStore(fault=slow), manifest)
        await asyncio.gather(*(node.live() for node in nodes))
        assert_agreed(nodes)
        # The first round has nothing to overlap with, the last one nothing to train for.
        exposed = [
            report["exposed_communication_s"]
            for node in nodes[1:]
            for report in node.events("round")[1:-1]
        ]
        if manifest is PLAIN:
            assert min(exposed) >= 1.0
        else:
            assert max(exposed) < 0.5

    run_virtual(body, thread_delay_s=lambda: 5.0)


def test_what_a_round_is_trained_on_depends_on_the_record_two_rounds_back(swarm, monkeypatch):
    asked = []
    plain = DataSource.batches

    def noting(self, seed, key):
        asked.append((seed, key))
        return plain(self, seed, key)

    monkeypatch.setattr(DataSource, "batches", noting)

    async def body(loop):
        nodes = swarm(loop, FaultyStore(), num_peers=1)
        await asyncio.gather(*(node.live() for node in nodes))
        seeds = [seed for seed, key in asked if key == peer(0).peer.key]
        genesis = ChainHead(round_id=0, record_id=AHEAD.run_id, state=b"")
        # Rounds 1 and 2 begin before there is any record, round 3 with that of round 1.
        assert seeds[:2] == [round_seed(genesis)] * 2
        assert len(seeds) == NUM_ROUNDS
        assert len(set(seeds)) == NUM_ROUNDS - 1

    run_virtual(body)


def test_the_update_that_is_missing_is_guessed_by_ones_own(swarm, monkeypatch):
    """Without the guess two rounds in a row would make the same step from the same place."""
    own: list[list[np.ndarray]] = []
    begun: list[tuple[int, list[np.ndarray], list[np.ndarray]]] = []
    begin = InnerLoop._begin

    def noting(base, local):
        own.append(pseudo_gradient(base, local))
        return own[-1]

    def noting_begin(self, round_id, start, until_s):
        begun.append((round_id, start, [flat.copy() for flat in self._state.base]))
        begin(self, round_id, start, until_s)

    monkeypatch.setattr(staging, "pseudo_gradient", noting)
    monkeypatch.setattr(InnerLoop, "_begin", noting_begin)

    async def body(loop):
        nodes = swarm(loop, FaultyStore(), num_peers=1)
        await asyncio.gather(*(node.live() for node in nodes))

    run_virtual(body)
    assert [round_id for round_id, _, _ in begun] == list(range(1, NUM_ROUNDS + 1))
    assert len(own) == NUM_ROUNDS
    for (_, start, base), step in zip(begun[1:], own, strict=False):
        for mine, flat, moved in zip(start, base, step, strict=True):
            assert np.array_equal(mine, flat - moved)
            assert not np.array_equal(mine, flat)


def test_what_runs_ahead_goes_on_from_what_was_applied_in_the_middle_of_its_steps(
    swarm, monkeypatch
):
    """Two steps from the guess, then the record is applied, then the third step."""

    async def body(loop):
        _, node = swarm(loop, FaultyStore(), num_peers=1)
        guess = [np.full_like(flat, 0.25) for flat in node.state.base]
        applied = [flat + np.float32(0.5) for flat in node.state.base]
        plain, seen = DataSource.batches, []

        def batches(self, seed, key):
            source = plain(self, seed, key)

            def batch(step):
                parameters = parameters_of(node.state.trainer.model)
                seen.append([p.detach().numpy().reshape(-1).copy() for p in parameters])
                if step == 1:
                    for flat, new in zip(node.state.base, applied, strict=True):
                        flat[:] = new
                    inner.rebase()
                return source(step)

            return batch

        monkeypatch.setattr(DataSource, "batches", batches)
        inner = InnerLoop(node.run, node.state, bigram_data(AHEAD))
        before = [flat.copy() for flat in node.state.base]
        inner.start_ahead(2, guess)
        learned = await inner.finish(2, 0.0)
        return learned, seen, before, applied, guess

    learned, seen, before, applied, guess = run_virtual(body)
    assert learned.result.steps == AHEAD.training.inner_steps == len(seen) == 3
    for i, (flat, moved) in enumerate(zip(before, guess, strict=True)):
        assert np.array_equal(seen[0][i], flat - moved)
        assert np.array_equal(learned.start[i], applied[i])
        # The second step was made from the guess, the third from what was applied: one step each
        # of at most a learning rate, where the base moved by 0.5 and the guess by 0.25.
        rate = AHEAD.training.learning_rate * 1.5
        assert np.abs(seen[1][i] - (flat - moved)).max() <= rate
        assert np.abs(seen[2][i] - applied[i]).max() <= 2 * rate
        assert np.abs(seen[2][i] - applied[i]).max() > 0


def test_a_pseudo_gradient_is_taken_from_the_base_that_the_round_begins_with(swarm, monkeypatch):
    """Whatever was guessed: once the record is applied in time, every start is everybody's base."""

    async def late(func, *args):
        # The record of the round before is applied long before the first step.
        await asyncio.sleep(30.0)
        return func(*args)

    monkeypatch.setattr(
        inner_loop, "asyncio", types.SimpleNamespace(**{**vars(asyncio), "to_thread": late})
    )
    pairs = []

    async def body(loop):
        nodes = swarm(loop, FaultyStore(), num_peers=2)

        def noting(start, local):
            node = next(n for n in nodes if local[0] is parameters_of(n.state.trainer.model)[0])
            same = all(np.array_equal(a, b) for a, b in zip(start, node.state.base, strict=True))
            pairs.append((node.state.head.round_id + 1, same))
            return pseudo_gradient(start, local)

        monkeypatch.setattr(staging, "pseudo_gradient", noting)
        await asyncio.gather(*(node.live() for node in nodes))
        assert_agreed(nodes)

    run_virtual(body)
    assert sorted(pairs) == [(r, True) for r in range(1, NUM_ROUNDS + 1) for _ in range(2)]
