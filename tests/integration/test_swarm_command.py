"""`shoal swarm` as a person uses it: killed, interrupted once and twice, and started again."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from shoal.node.manifest_file import load_manifest
from tests.support.processes import Forge, environment, events_of, run_command, wait_until
from tests.support.tiny_run import TinyRun, replay, tiny_text, write_plan

pytestmark = pytest.mark.slow

NODES = ("validator-0", "peer-0", "peer-1")
# Importing torch dominates: a start may take long on a busy machine.
START_S = 240.0
# A swarm gives its nodes 30 s to leave before it ends them.
END_S = 150.0


class Swarm:
    """One `shoal swarm` process and its folder."""

    def __init__(self, plan: Path, root: Path) -> None:
        self.root = root
        self.output_file = root.parent / "swarm.log"
        self._command = ["swarm", "--config", str(plan), "--run-dir", str(root)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the real command."""
        with self.output_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shoal", *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
            )

    def send(self, number: signal.Signals) -> None:
        """Sends the parent a signal."""
        assert self._process is not None
        assert self._process.poll() is None, self.output()
        self._process.send_signal(number)

    def wait(self, deadline_s: float) -> int:
        """The parent's exit code."""
        assert self._process is not None
        return self._process.wait(deadline_s)

    def reap(self) -> None:
        """After a failure: no zombie is left."""
        if self._process is not None:
            self._process.wait(END_S)

    def output(self) -> str:
        """What the parent printed."""
        return self.output_file.read_text(errors="replace")

    def says(self, words: str) -> bool:
        """Whether the parent has printed the words."""
        return words in self.output()

    def rounds_of(self, name: str) -> list[int]:
        """The rounds that a node has reported."""
        log = self.root / "nodes" / name / "state" / "events.jsonl"
        return [event["round_id"] for event in events_of(log, "round")]

    def wait_for_rounds(self, num_more: int) -> None:
        """Until every node has reported some more rounds than now."""
        wanted = {name: len(self.rounds_of(name)) + num_more for name in NODES}

        def reached() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.output()
            return all(len(self.rounds_of(name)) >= wanted[name] for name in NODES)

        wait_until(reached, "rounds of the swarm", START_S)

    def processes(self) -> dict[int, str]:
        """The pids of the processes of this folder, and their command lines."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    # It has just ended.
                    continue
                line = b" ".join(words).decode(errors="replace")
                if str(self.root) in line and state != "Z":
                    found[int(folder.name)] = line
        return found

    def pid_of(self, name: str) -> int:
        """The pid of a node that runs."""
        (pid,) = [pid for pid, line in self.processes().items() if f"/{name}/" in line]
        return pid


@contextmanager
def nothing_left(swarm: Swarm) -> Iterator[None]:
    try:
        yield
    finally:
        for pid in swarm.processes():
            # It may have just ended.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        swarm.reap()


@pytest.mark.timeout(1200)
def test_a_swarm_survives_its_parents_death_both_interrupts_and_killed_nodes(
    forge: Forge, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, num_rounds=60, inner_steps=30)
    swarm = Swarm(plan, tmp_path / "run")
    with nothing_left(swarm):
        # The parent is killed: nobody stays behind.
        swarm.start()
        swarm.wait_for_rounds(2)
        assert len(swarm.processes()) == 1 + len(NODES)
        swarm.send(signal.SIGKILL)
        assert swarm.wait(END_S) == -signal.SIGKILL
        wait_until(lambda: not swarm.processes(), "the nodes leave with their parent", END_S)

        # Ctrl+C: everybody leaves in good order, and the table is printed.
        swarm.start()
        swarm.wait_for_rounds(2)
        swarm.send(signal.SIGINT)
        assert swarm.wait(END_S) == 130
        assert not swarm.processes()
        output = swarm.output()
        assert "stopping: every node finishes what is in progress" in output
        assert "loss first" in output
        assert "the same command resumes" in output.splitlines()[-1]
        assert "Traceback" not in output

        # Somebody stops the validator alone: nobody waits for ever.
        swarm.start()
        swarm.wait_for_rounds(1)
        os.kill(swarm.pid_of("validator-0"), signal.SIGTERM)
        assert swarm.wait(END_S) == 130
        assert not swarm.processes()
        words = "validator-0 was stopped before the last round; no round closes without it"
        assert words in swarm.output()

        # Ctrl+C twice: gone at once.
        swarm.start()
        swarm.wait_for_rounds(2)
        swarm.send(signal.SIGINT)
        wait_until(lambda: "stopping: " in swarm.output(), "the first Ctrl+C is taken", END_S)
        sent_s = time.monotonic()
        swarm.send(signal.SIGINT)
        assert swarm.wait(END_S) == 130
        # Less than what the first one gives the nodes.
        assert time.monotonic() - sent_s < 20
        wait_until(lambda: not swarm.processes(), "nothing is left", END_S)
        assert "Traceback" not in swarm.output()

        # The same command goes on; nodes that are killed are started again, to the end.
        swarm.start()
        swarm.wait_for_rounds(1)
        log = tmp_path / "second.log"
        twice = ("swarm", "--config", plan, "--run-dir", swarm.root)
        assert run_command(forge, log, *twice) == 2
        assert "the swarm's folder" in log.read_text()
        assert "is used by another process" in log.read_text()
        num_killed = 0
        for name in ("peer-1", "validator-0"):
            os.kill(swarm.pid_of(name), signal.SIGKILL)
            num_killed += 1
            words = f"{name} was killed by signal 9; starting it again"
            wait_until(partial(swarm.says, words), "the swarm notices", START_S)
            swarm.wait_for_rounds(1)
        assert swarm.wait(2 * START_S) == 0, swarm.output()
        assert not swarm.processes()
    assert num_killed == 2
    output = swarm.output()
    run = TinyRun(
        root=swarm.root, manifest=load_manifest(swarm.root / "manifest.json"), identities={}
    )
    replayed = replay(run)
    assert f"parameters identical on all 3 nodes: {replayed.parameters_root}" in output
    for name in NODES:
        rounds = swarm.rounds_of(name)
        assert sorted(set(rounds)) == rounds, f"{name} applied a round twice"
        log = swarm.root / "nodes" / name / "node.log"
        assert "Traceback" not in log.read_text(errors="replace")


@pytest.mark.timeout(1200)
def test_ctrl_c_during_the_set_up_ends_it_and_the_same_command_sets_up_anew(
    forge: Forge, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, num_rounds=1)
    # Enough text that the set-up takes a while.
    (tmp_path / "text.txt").write_text(tiny_text() * 300)
    log, root = tmp_path / "output.txt", tmp_path / "run"
    argv = ["swarm", "--config", str(plan), "--run-dir", str(root), "--peers", "1"]
    pid = forge.ask(argv=argv, log=str(log))
    wait_until(lambda: log.exists() and "setting up: " in log.read_text(), "the set-up begins")
    os.kill(pid, signal.SIGINT)
    wait_until(lambda: forge.ask(pid=pid) is not None, "it ends", END_S)
    assert forge.ask(pid=pid) == 130, log.read_text()
    assert "Traceback" not in log.read_text()
    assert not list(root.glob("nodes/*/state"))
    write_plan(tmp_path, num_rounds=1)
    shutil.copy(log, tmp_path / "first.txt")
    assert run_command(forge, log, *argv, deadline_s=START_S) == 0, log.read_text()
    assert "parameters identical on all 2 nodes" in log.read_text()
