"""An open run that a crowd of new keys visits in every round: whoever counted goes on counting."""

import asyncio
import itertools

from shoal.protocol.manifest import OuterSection, RunSection, TimingSection
from shoal.storage.errors import ObjectExistsError
from tests.support.bodies import body_like
from tests.support.contexts import announcement_for, attending_for, payload_for
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import VALIDATOR, layout_of, peer
from tests.support.nodes import SimulatedNode, bigram_manifest
from tests.support.virtual_time import run_virtual

NUM_ROUNDS = 6
MANIFEST = bigram_manifest(
    run=RunSection(name="open", num_rounds=NUM_ROUNDS),
    outer=OuterSection(gather_limit=4),
    timing=TimingSection(round_seconds=60.0, checkpoint_every=1, target_peers=3),
)
NUM_OF_CROWD = 12


async def crowd(validator, store, published):
    """From round 2 on new keys attend, and publish valid payloads, before anybody has trained."""
    numbers, seen = itertools.count(1000), 1
    while True:
        head = validator.state.head
        if head.round_id >= seen:
            seen = head.round_id + 1
            for number in itertools.islice(numbers, NUM_OF_CROWD):
                await publish(validator.run.keys, store, head, peer(number), number)
                published.append(seen)
        await asyncio.sleep(0.01)


async def publish(keys, store, head, identity, seed):
    raw = payload_for(MANIFEST, head, identity, body_like(layout_of(MANIFEST), seed))
    round_id = head.round_id + 1
    try:
        await store.put(
            keys.attending(round_id, identity.peer), attending_for(MANIFEST, head, identity)
        )
        await store.put(keys.payload(round_id, identity.peer), raw)
        announcement = announcement_for(MANIFEST, head, identity, raw)
        await store.put(keys.published(round_id, identity.peer), announcement)
    except ObjectExistsError:
        raise AssertionError("the crowd's keys are new") from None


def test_those_that_counted_count_in_every_round_whatever_crowd_there_is(tmp_path, no_fsync):
    async def body(loop):
        store = FaultyStore()
        nodes = [
            SimulatedNode(MANIFEST, identity, store, loop, tmp_path / name, trains=trains)
            for identity, name, trains in (
                (VALIDATOR, "validator", False),
                *((peer(i), f"peer-{i}", True) for i in range(3)),
            )
        ]
        published: list[int] = []
        visiting = asyncio.create_task(crowd(nodes[0], store, published))
        try:
            await asyncio.gather(*(node.live() for node in nodes))
        finally:
            visiting.cancel()
            for node in nodes:
                node.close()
        assert len({node.root for node in nodes}) == 1
        assert {2, 3, 4, 5, 6} <= set(published)
        for node in nodes[1:]:
            assert [r["counted"] for r in node.events("round")] == [True] * NUM_ROUNDS
        # One seat in four is a newcomer's, and somebody has it.
        sizes = [r["num_counted"] for r in nodes[0].events("round")]
        assert sizes == [3] + [4] * (NUM_ROUNDS - 1)

    run_virtual(body, thread_delay_s=lambda: 5.0)
