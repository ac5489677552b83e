"""One key in two places, and clocks that are wrong: the culprit stops and says why."""

import re
import signal
from pathlib import Path

import pytest

from tests.integration.test_kills import assert_all_equal, nodes_of
from tests.support.processes import Forge, Node, all_ended, is_event, is_round
from tests.support.tiny_run import make_tiny_run, replay

# On a machine with other work.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def last_line(node: Node) -> str:
    return node.output().strip().splitlines()[-1]


def files_below(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("offset_s", "direction"), [(3600.0, "ahead of"), (-3600.0, "behind")])
def test_a_clock_that_is_an_hour_wrong_stops_the_node_before_it_writes_anything_for_others(
    forge: Forge, tmp_path: Path, offset_s: float, direction: str
) -> None:
    run = make_tiny_run(tmp_path, num_peers=1)
    before = files_below(run.store)
    folder = run.add_node("peer-0", clock_offset_s=offset_s)
    node = Node(forge, folder, run.manifest_file, "join").start()
    with all_ended(node):
        assert node.wait() == 3
    pattern = rf"shoal: E_CLOCK this machine's clock is (\d+) s {direction} the store's; set it"
    found = re.match(pattern, last_line(node))
    assert found, last_line(node)
    # What the store took to answer speaks for the clock.
    assert 3500 <= int(found[1]) <= 3600
    assert len(node.output().splitlines()) == 1
    new = set(files_below(run.store)) - set(before)
    assert {Path(path).name for path in new} == {"hello+"}


def test_one_key_or_one_state_folder_in_two_processes_of_a_machine_is_refused(
    forge: Forge, tmp_path: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=2, min_peers=2)
    (first,) = nodes_of(forge, run, "peer-0")
    same_key = run.root / "nodes" / "same-key"
    same_key.mkdir()
    text = (first.folder / "node.toml").read_text()
    (same_key / "node.toml").write_text(text.replace("key.pem", str(first.folder / "key.pem")))
    same_state = run.add_node("same-state", key_of="peer-1", state_dir=f"{first.folder}/state")
    copies = [Node(forge, f, run.manifest_file, "join") for f in (same_key, same_state)]
    with all_ended(first, *copies):
        first.start()
        first.wait_for(lambda event: event["event"] == "payload-published")
        for copy, what in zip(copies, ("the key", "the state folder"), strict=True):
            assert copy.start().wait() == 2
            assert last_line(copy).startswith(f"shoal: E_KEY_IN_USE {what} ")
            assert "is used by another process on this machine" in last_line(copy)
        assert first.exit_code() is None
        first.send(signal.SIGTERM)
        assert first.wait() == 0
    assert "stopping: finishing what is in progress" in first.output()


def test_two_copies_of_a_key_file_end_one_of_them_and_harm_nobody(
    forge: Forge, tmp_path: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=2, num_rounds=30, inner_steps=3)
    nodes = nodes_of(forge, run, "validator", "peer-0", "peer-1")
    # A copy that starts without the original's optimiser state makes other payloads.
    twin = Node(forge, run.add_node("twin", key_of="peer-1"), run.manifest_file, "join")
    everybody = [*nodes, twin]
    with all_ended(*everybody):
        for node in nodes:
            node.start()
        nodes[2].wait_for(is_round(2))
        # However long it takes to start, the run is not over then.
        nodes[0].send(signal.SIGSTOP)
        twin.start()
        twin.wait_for(is_event("round-opened"))
        nodes[0].send(signal.SIGCONT)
        codes = {node.name: node.wait() for node in everybody}
    doubled = [nodes[2], twin]
    halted = [node for node in doubled if codes[node.name] == 3]
    assert len(halted) == 1, codes
    assert "E_KEY_IN_USE" in last_line(halted[0])
    assert "It happened in 2 rounds in a row: stop the other node" in last_line(halted[0])
    assert "Traceback" not in halted[0].output()
    assert_all_equal(run, [node for node in everybody if node is not halted[0]])
    for verified in replay(run).records:
        peers = [entry.peer for entry in verified.record.counted]
        assert len(set(peers)) == len(peers)


def test_sigterm_and_ctrl_c_let_a_node_leave_and_it_comes_back_to_where_it_was(
    forge: Forge, tmp_path: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=1, num_rounds=30, target_peers=1)
    nodes = nodes_of(forge, run, "validator", "peer-0")
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT)
    num_sent = 0
    with all_ended(*nodes):
        for node in nodes:
            node.start()
        for number, sent in enumerate(signals):
            node = nodes[number % 2]
            node.wait_for(is_round(2 * (number // 2) + 2))
            node.send(sent)
            num_sent += 1
            assert node.wait() == 0
            assert last_line(node).startswith("stopped after round ")
            node.start()
        assert_all_equal(run, nodes)
    assert num_sent == len(signals)
