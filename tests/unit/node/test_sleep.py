"""A node for which an hour passes in the middle of a round while nothing moves, in virtual time."""

import asyncio
from contextlib import closing

import pytest

from shoal.node.round_loop import Outcome
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import VALIDATOR, peer
from tests.support.nodes import SimulatedNode, bigram_manifest
from tests.support.virtual_time import run_virtual

MANIFEST = bigram_manifest()
NUM_ROUNDS = MANIFEST.run.num_rounds
SLEEP_S = 3600.0


@pytest.mark.parametrize("moment", ["/payloads/", "/record"])
def test_a_node_that_slept_for_an_hour_replays_and_goes_on(tmp_path, no_fsync, moment):
    async def body(loop):
        store = FaultyStore()
        woke_at_s: list[float] = []

        def fault(verb, key, asked):
            if not woke_at_s and moment in key and "00000002" in key:
                woke_at_s.append(loop.now_s() + SLEEP_S)
            left_s = woke_at_s[0] - loop.now_s() if woke_at_s else 0.0
            return left_s if left_s > 0 else None

        sleepy = FaultyStore(store.inner, fault)
        roles = [(VALIDATOR, store, False), (peer(0), store, True), (peer(1), sleepy, True)]
        nodes = [
            SimulatedNode(MANIFEST, who, where, loop, tmp_path / str(i), trains=trains)
            for i, (who, where, trains) in enumerate(roles)
        ]
        begun_s = loop.now_s()
        outcomes = await asyncio.gather(*(node.live() for node in nodes))
        assert outcomes == [Outcome(finished=True, round_id=NUM_ROUNDS)] * len(nodes)
        assert woke_at_s
        assert loop.now_s() - begun_s >= SLEEP_S
        assert len({node.state.head.state for node in nodes}) == 1
        assert len({node.root for node in nodes}) == 1
        # The others had not waited for it.
        replayed = [report["replayed"] for report in nodes[2].events("round")]
        assert replayed[-1]
        for node in nodes:
            with closing(node):
                pass

    run_virtual(body)
