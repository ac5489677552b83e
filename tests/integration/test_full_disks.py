"""Disks that are full and stores that go away: a clear line, no corruption, and it goes on."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration.test_kills import assert_all_equal, first_without_record, nodes_of
from tests.support.processes import Forge, Node, all_ended, is_round, state_of, wait_until
from tests.support.tiny_run import TinyRun, make_tiny_run

# On a machine with other work.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],  # noqa: S607  # from PATH, as root's
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)  # noqa: S607  # as above


def fill(disk: Path) -> Path:
    """Takes all the room that is left."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return ballast


def last_line(node: Node) -> str:
    return node.output().strip().splitlines()[-1]


def stop_before_they_publish(run: TinyRun, validator: Node, peers: list[Node]) -> None:
    """Stops the peers while the open round waits for all of them, so that they must write next."""
    while True:
        for peer in peers:
            peer.send(signal.SIGSTOP)
            wait_until(partial(is_stopped, peer), f"{peer.name} is stopped")
        open_round = first_without_record(run)
        keys = [run.keys.published(open_round, run.identities[one.name].peer) for one in peers]
        if not any(run.object_file(key).exists() for key in keys):
            return
        for peer in peers:
            peer.send(signal.SIGCONT)
        validator.wait_for(is_round(open_round))


def is_stopped(node: Node) -> bool:
    return state_of(node.pid) == "T"


def run_with_a_full_disk(
    nodes: list[Node],
    disk: Path,
    failing: Callable[[Node], bool],
    words: str,
    before: Callable[[], None] = lambda: None,
) -> int:
    """Starts all, fills the disk, frees it again, restarts; gives the number of failures."""
    for node in nodes:
        node.start()
    nodes[0].wait_for(is_round(3))
    before()
    ballast = fill(disk)
    for node in filter(is_stopped, nodes):
        node.send(signal.SIGCONT)
    victims = [node for node in nodes if failing(node)]
    for node in victims:
        assert node.wait() == 4, node.output()
        assert last_line(node).startswith("shoal: ")
        assert words in last_line(node)
        assert "No space left on device" in last_line(node)
    # Still full: it says so again at the start, and harms nothing.
    assert victims[0].start().wait() == 4
    assert "No space left on device" in last_line(victims[0])
    ballast.unlink()
    for node in victims:
        node.start()
    return len(victims)


def test_a_full_disk_under_a_nodes_state_ends_the_node_and_it_goes_on_when_there_is_room(
    forge: Forge, tmp_path: Path, small_disk: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=2, num_rounds=25, round_seconds=5.0)
    nodes = nodes_of(forge, run, "validator", "peer-0", "peer-1")
    (nodes[1].folder / "state").symlink_to(small_disk, target_is_directory=True)
    with all_ended(*nodes):
        num_failed = run_with_a_full_disk(
            nodes, small_disk, lambda node: node is nodes[1], "cannot write"
        )
        assert_all_equal(run, nodes)
    assert num_failed == 1


def test_a_full_store_ends_those_who_write_and_the_run_goes_on_when_there_is_room(
    forge: Forge, tmp_path: Path, small_disk: Path
) -> None:
    (tmp_path / "store").symlink_to(small_disk, target_is_directory=True)
    run = make_tiny_run(tmp_path, num_peers=2, num_rounds=25, round_seconds=5.0)
    nodes = nodes_of(forge, run, "validator", "peer-0", "peer-1")
    with all_ended(*nodes):
        num_failed = run_with_a_full_disk(
            nodes,
            small_disk,
            lambda node: node is not nodes[0],
            "in the store",
            # Who has published would wait for a record that cannot be written.
            lambda: stop_before_they_publish(run, nodes[0], nodes[1:]),
        )
        if nodes[0].exit_code() is not None:
            assert nodes[0].wait() == 4
            nodes[0].start()
        assert_all_equal(run, nodes)
    assert num_failed == 2


def test_a_store_that_is_away_for_a_while_is_said_and_waited_for(
    forge: Forge, tmp_path: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=2, num_rounds=40, min_peers=2)
    nodes = nodes_of(forge, run, "validator", "peer-0", "peer-1")
    away = tmp_path / "store-away"
    num_away = 0
    with all_ended(*nodes):
        for node in nodes:
            node.start()
        for round_id in (2, 6):
            nodes[0].wait_for(is_round(round_id))
            num_lines = [len(node.output().splitlines()) for node in nodes]
            run.store.rename(away)
            num_away += 1

            def all_complain(before: tuple[int, ...] = tuple(num_lines)) -> bool:
                said = [
                    "\n".join(node.output().splitlines()[n:])
                    for node, n in zip(nodes, before, strict=True)
                ]
                return all("No such file or directory" in text for text in said)

            wait_until(all_complain, "every node says that the store is away")
            away.rename(run.store)
        assert_all_equal(run, nodes)
    assert num_away == 2
