"""One round ahead and something goes wrong: everybody's parameters stay equal to the bit."""

import asyncio
import itertools

import pytest

from shoal.node.checkpoint import CheckpointFolder
from shoal.node.round_loop import Outcome
from shoal.node.telemetry.names import EventName
from shoal.protocol.manifest import RunSection, TimingSection
from shoal.storage.errors import StorageUnavailableError
from shoal.storage.memory import MemoryStore
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import VALIDATOR, peer
from tests.support.nodes import SimulatedNode, bigram_manifest
from tests.support.virtual_time import run_virtual

NUM_ROUNDS = 5
NAMES = ("validator", "peer-0", "peer-1")


def manifest_with(**timing):
    return bigram_manifest(
        run=RunSection(name="ahead", num_rounds=NUM_ROUNDS),
        timing=TimingSection(round_seconds=60.0, checkpoint_every=1, overlap="one-round", **timing),
    )


class Swarm:
    """A validator and two peers, each with a link of its own to one store."""

    def __init__(self, loop, folder, manifest):
        self.loop, memory = loop, MemoryStore()
        self.links = {name: FaultyStore(memory) for name in NAMES}
        self.nodes = {
            name: SimulatedNode(
                manifest,
                VALIDATOR if name == "validator" else peer(int(name[-1])),
                self.links[name],
                loop,
                folder / name,
                trains=name != "validator",
            )
            for name in NAMES
        }

    async def lives(self, *names):
        outcomes = await asyncio.gather(*(self.nodes[name].live() for name in names or NAMES))
        assert set(outcomes) == {Outcome(finished=True, round_id=NUM_ROUNDS)}

    def agreed(self):
        nodes = self.nodes.values()
        assert {node.state.head.round_id for node in nodes} == {NUM_ROUNDS}
        assert len({node.state.head.state for node in nodes}) == 1
        assert len({node.root for node in nodes}) == 1
        # Whoever trains has settled what it sent.
        for node in list(nodes)[1:]:
            assert node.state.staged_raw is None
            assert node.state.feedback is not None
            assert node.state.feedback.staged_body is None

    def rounds(self, name):
        return self.nodes[name].events("round")


@pytest.fixture
def swarm(tmp_path, no_fsync):
    """Runs a coroutine function with a swarm in virtual time."""

    def run(body, manifest=None, thread_delay_s=lambda: 1.0):
        async def whole(loop):
            made = Swarm(loop, tmp_path, manifest or manifest_with())
            try:
                return await body(made)
            finally:
                for node in made.nodes.values():
                    node.close()

        return run_virtual(whole, thread_delay_s=thread_delay_s)

    return run


class Crashes:
    """Ends a node's life at a moment of each of some rounds; then it lives again.

    A stage is (before or after, verb, part of a key): a use of the store.
    """

    def __init__(self, swarm, name, stages=()):
        self.node, self.loop = swarm.nodes[name], swarm.loop
        self.due = dict(zip((2, 3, 5), stages, strict=False))
        self.num_done = 0
        self.life: asyncio.Task[Outcome] | None = None

    def die(self):
        assert self.life is not None
        self.num_done += 1
        self.loop.call_soon(self.life.cancel)

    def fault(self, verb, key, asked):
        round_id = self.node.state.head.round_id + 1
        when, due_verb, part = self.due.get(round_id, ("", "", ""))
        is_this_round = f"/{round_id:08d}" in key or "/copies/" in key
        if self.life is None or verb != due_verb or part not in key or not is_this_round:
            return None
        del self.due[round_id]
        self.die()
        # It waits for the end of its life, or it is done and nobody will know.
        return 1000.0 if when == "before" else None

    async def live(self):
        while True:
            self.life = asyncio.create_task(self.node.live())
            await asyncio.wait({self.life})
            if not self.life.cancelled():
                assert self.life.result() == Outcome(finished=True, round_id=NUM_ROUNDS)
                return
            await asyncio.sleep(3.0)


def three_by_three(*uses):
    """Groups of stages, one for each round with a crash."""
    stages = [(when, *use) for use in uses for when in ("before", "after")]
    return [stages[i : i + 3] for i in range(0, len(stages), 3)]


OF_A_PEER = three_by_three(
    ("put", "/attending/"),
    ("put", "/payloads/"),
    ("head", "/payloads/"),
    ("put", "/published/"),
    ("get", "/record"),
    ("list", "/published/"),
    ("get", "/published/"),
    ("get", "/payloads/"),
)
OF_A_VALIDATOR = three_by_three(
    ("list", "/attending/"),
    ("get", "/attending/"),
    ("get", "/payloads/"),
    ("put", "/copies/"),
    ("put", "/record"),
    ("get", "/record"),
)
CRASHES = [("peer-1", stages) for stages in OF_A_PEER]
CRASHES += [("validator", stages) for stages in OF_A_VALIDATOR]


@pytest.mark.parametrize(("name", "stages"), CRASHES)
def test_a_node_that_dies_at_any_use_of_the_store(swarm, name, stages):
    async def body(s):
        crashes = Crashes(s, name, stages)
        s.links[name].fault = crashes.fault
        await asyncio.gather(crashes.live(), s.lives(*(n for n in NAMES if n != name)))
        assert crashes.num_done == len(stages)
        s.agreed()

    swarm(body)


@pytest.mark.parametrize("name", ["peer-1", "validator"])
def test_a_node_that_dies_beside_a_checkpoint(swarm, monkeypatch, name):
    """What is staged, or what is applied; before the disk has it, or after."""
    save = CheckpointFolder.save
    # By number of the checkpoint: whether the disk has it.
    deaths = {1: True, 2: False, 4: True, 5: True, 7: False, 9: False}

    async def body(s):
        crashes = Crashes(s, name)
        folder, numbers = s.nodes[name].disk / "checkpoints", itertools.count()

        def dying(self, snapshot):
            is_saved = deaths.get(next(numbers)) if self.folder == folder else None
            if is_saved is not False:
                save(self, snapshot)
            if is_saved is not None:
                crashes.die()

        monkeypatch.setattr(CheckpointFolder, "save", dying)
        await asyncio.gather(crashes.live(), s.lives(*(n for n in NAMES if n != name)))
        assert crashes.num_done >= 4
        s.agreed()

    swarm(body)


def test_a_node_that_dies_while_it_trains_ahead(swarm):
    due = [EventName.ROUND_OPENED, EventName.INNER_STEP, EventName.PAYLOAD_STAGED]
    due += [EventName.INNER_STEP, EventName.PAYLOAD_ACCEPTED]

    async def body(s):
        crashes = Crashes(s, "peer-1")
        emit = s.nodes["peer-1"].run.log.emit

        def emit_and_die(event, **fields):
            emit(event, **fields)
            if due and event is due[0] and fields["round_id"] >= 2:
                due.pop(0)
                crashes.die()

        s.nodes["peer-1"].run.log.emit = emit_and_die
        await asyncio.gather(crashes.live(), s.lives("validator", "peer-0"))
        assert crashes.num_done == 5
        s.agreed()

    swarm(body)


def test_a_void_round_changes_nothing_and_everybody_goes_on_from_there(swarm):
    """In rounds 2 and 4 only one of two gets its announcement out."""

    def silenced(verb, key, asked):
        is_lost = verb == "put" and "/published/" in key
        is_void = "/00000002/" in key or "/00000004/" in key
        return StorageUnavailableError("503", key) if is_lost and is_void else None

    async def body(s):
        s.links["peer-1"].fault = silenced
        await s.lives()
        assert s.links["peer-1"].num_injected >= 2
        s.agreed()
        for name in NAMES:
            norms = {r["round_id"]: r["update_norm"] for r in s.rounds(name)}
            assert {number for number, norm in norms.items() if norm == 0.0} == {2, 4}
        # What was learned for a void round is sent with a later one.
        counted = [r["round_id"] for r in s.rounds("peer-1") if r["counted"]]
        assert counted == [1, 3, 5]

    swarm(body, manifest_with(min_peers=2))


def test_a_record_that_comes_late_is_waited_for_and_nothing_is_applied_before(swarm):
    late_s = 200.0

    def late(verb, key, asked):
        return late_s if verb == "put" and "/00000003/record" in key and asked < 1 else None

    async def body(s):
        s.links["validator"].fault = late
        opened, seen = [], []
        for name in NAMES[1:]:
            node = s.nodes[name]
            emit = node.run.log.emit

            def noting(event, node=node, emit=emit, **fields):
                emit(event, **fields)
                if event is EventName.INNER_STEP:
                    seen.append(fields["round_id"] - node.state.head.round_id)
                if event is EventName.ROUND_OPENED and fields["round_id"] == 4:
                    opened.append(s.loop.now_s())

            node.run.log.emit = noting
        await s.lives()
        assert s.links["validator"].num_injected == 1
        # Never more than one round ahead of what is applied.
        assert max(seen) == 2
        assert len(opened) == len(NAMES) - 1
        s.agreed()

    swarm(body)


def test_a_peer_that_misses_rounds_catches_up_and_counts_again(swarm):
    async def body(s):
        link, away = s.links["peer-1"], {"is": False}

        def fault(verb, key, asked):
            return StorageUnavailableError("away", key) if away["is"] else None

        link.fault = fault
        living = asyncio.create_task(s.lives())
        await until_round(s, "peer-1", 1)
        away["is"] = True
        await until_round(s, "peer-0", 3)
        away["is"] = False
        await living
        assert link.num_injected > 10
        s.agreed()
        assert any(r["replayed"] for r in s.rounds("peer-1"))
        assert s.rounds("peer-1")[-1]["counted"]

    swarm(body)


def test_a_peer_that_joins_in_the_middle_replays_and_counts(swarm):
    async def body(s):
        others = asyncio.create_task(s.lives(*NAMES[:-1]))
        await until_round(s, "peer-0", 2)
        await s.lives("peer-1")
        await others
        s.agreed()
        reports = s.rounds("peer-1")
        assert [r["round_id"] for r in reports] == list(range(1, NUM_ROUNDS + 1))
        assert reports[0]["replayed"]
        assert reports[-1]["counted"]

    swarm(body)


async def until_round(s, name, round_id):
    while s.nodes[name].state.head.round_id < round_id:  # noqa: ASYNC110  # it has no event
        await asyncio.sleep(0.1)
