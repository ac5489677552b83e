"""kill -9 of nodes that train one round ahead: everybody ends with the same parameters."""

from pathlib import Path

import pytest

from tests.support.processes import Forge, Node, all_ended, is_event
from tests.support.tiny_run import TinyRun, make_tiny_run, replay

# Starts of many nodes, on a machine with other work.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_ROUNDS = 40
# Who is killed, and what it has just done. Once a payload is staged its node trains ahead.
KILLS = [
    ("peer-0", "payload-staged"),
    ("peer-1", "payload-published"),
    ("validator", "payload-accepted"),
    ("peer-0", "inner-step"),
    ("peer-1", "round"),
    ("validator", "record-written"),
    ("peer-0", "round-opened"),
    ("peer-1", "payload-staged"),
    ("validator", "round"),
]


def test_nodes_that_train_ahead_are_killed_and_end_with_the_parameters_of_the_records(
    forge: Forge, tmp_path: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=2, num_rounds=NUM_ROUNDS, overlap="one-round")
    nodes = {
        name: Node(forge, run.add_node(name), run.manifest_file, verb)
        for name, verb in (("validator", "validate"), ("peer-0", "join"), ("peer-1", "join"))
    }
    with all_ended(*nodes.values()):
        for node in nodes.values():
            node.start()
        for name, moment in KILLS:
            victim = nodes[name]
            victim.wait_for(is_event(moment), skip=len(victim.events()))
            assert victim.kill()
            victim.start()
        for node in nodes.values():
            assert node.wait() == 0, node.output()
    assert_all_equal(run, list(nodes.values()))


def assert_all_equal(run: TinyRun, nodes: list[Node]) -> None:
    replayed = replay(run)
    for node in nodes:
        last = node.events("node-stopped")[-1]
        assert (last["finished"], last["round_id"]) == (True, NUM_ROUNDS)
        assert last["state_hash"] == replayed.head.state.hex(), node.name
        assert last["parameters_root"] == replayed.parameters_root, node.name
        rounds = [event["round_id"] for event in node.events("round")]
        assert sorted(set(rounds)) == rounds, f"{node.name} applied a round twice"
        assert "Traceback" not in node.output()
