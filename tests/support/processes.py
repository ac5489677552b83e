"""Real processes for tests: nodes, their event logs, and waiting for what they do."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEADLINE_S = 240.0
"""Only a failing test waits so long; a busy machine takes a minute to start some nodes."""
_POLL_S = 0.01

Event = dict[str, Any]


def wait_until(
    condition: Callable[[], bool],
    what: str,
    deadline_s: float = DEADLINE_S,
    *,
    poll_s: float = _POLL_S,
) -> None:
    """Polls until `condition` holds.

    Raises:
        TimeoutError: it does not, within the deadline.
    """
    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"waited {deadline_s:.0f} s in vain: {what}")
        time.sleep(poll_s)


class Forge:
    """A client of `node_forge`."""

    def __init__(self, **env: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.node_forge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(), **env},
            cwd=Path(__file__).parents[2],
            # Ctrl+C at the terminal reaches its client alone, which ends it.
            start_new_session=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def ask(self, **wish: object) -> Any:
        """One wish, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(wish) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends it and what it started."""
        self._process.communicate(timeout=30)


def environment() -> dict[str, str]:
    """The environment of started processes."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Node:
    """One node's process, started as often as a test wants."""

    def __init__(
        self,
        forge: Forge,
        folder: Path,
        manifest_file: Path,
        verb: str,
        env: dict[str, str] | None = None,
        namespace: str = "",
    ) -> None:
        self.folder = folder
        self._namespace = namespace
        self._env = env or {}
        self.name = folder.name
        self.log_file = folder / "node.log"
        self._forge = forge
        self.config_file = folder / "node.toml"
        self._argv = [verb, str(manifest_file), "--config"]
        self._seen: tuple[object, list[Event]] = (None, [])
        self.pid = 0

    def start(self) -> "Node":
        """Starts it (again)."""
        self.pid = self._forge.ask(
            argv=[*self._argv, str(self.config_file)],
            log=str(self.log_file),
            env=self._env,
            namespace=self._namespace,
        )
        return self

    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        answer: int | None = self._forge.ask(pid=self.pid)
        return answer

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Its exit code, once it has ended."""
        wait_until(lambda: self.exit_code() is not None, f"{self.name} ends", deadline_s)
        code = self.exit_code()
        assert code is not None
        return code

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; the process must still be there."""
        os.kill(self.pid, number)

    def kill(self) -> bool:
        """kill -9; whether it was that which ended the process."""
        if self.exit_code() is None:
            self.send(signal.SIGKILL)
        return self.wait() == -signal.SIGKILL

    def output(self) -> str:
        """All that it wrote to the terminal."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def events(self, *names: str) -> list[Event]:
        """Its event log, or the events of these names; read again only after a change."""
        log = self.folder / "state" / "events.jsonl"
        stat = log.stat() if log.exists() else None
        at = stat and (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if at != self._seen[0]:
            self._seen = (at, events_of(log))
        return [e for e in self._seen[1] if not names or e["event"] in names]

    def wait_for(
        self, what: Callable[[Event], bool], *, skip: int = 0, poll_s: float = _POLL_S
    ) -> Event:
        """The first event after the first `skip` that is such.

        Raises:
            TimeoutError: there is none within the deadline.
        """
        found: list[Event] = []

        def look() -> bool:
            found[:] = [e for e in self.events()[skip:] if what(e)]
            return bool(found)

        try:
            wait_until(look, f"an event of {self.name}", poll_s=poll_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.output()[-2000:]}") from error
        return found[0]


def events_of(log: Path, *names: str) -> list[Event]:
    """The whole events of a log file."""
    if not log.exists():
        return []
    raw = log.read_bytes()
    lines = raw[: raw.rfind(b"\n") + 1].splitlines()
    events: list[Event] = [json.loads(line) for line in lines]
    return [e for e in events if not names or e["event"] in names]


def is_event(name: str) -> Callable[[Event], bool]:
    """Any event of this name."""
    return lambda event: bool(event["event"] == name)


def is_round(round_id: int) -> Callable[[Event], bool]:
    """A report of this round or a later one."""
    return lambda event: bool(event["event"] == "round" and event["round_id"] >= round_id)


def state_of(pid: int) -> str:
    """The letter of ps, Z for one that is only waited for; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Whether a process runs, or is stopped."""
    return state_of(pid) not in ("", "Z")


@contextmanager
def all_ended(*nodes: Node) -> Iterator[None]:
    """Leaves none of the nodes behind."""
    try:
        yield
    finally:
        for node in nodes:
            if node.pid and node.exit_code() is None:
                node.kill()


def run_command(forge: Forge, log: Path, *argv: str | Path, deadline_s: float = DEADLINE_S) -> int:
    """Runs one `shoal` command to its end; what it prints is in `log`."""
    pid = forge.ask(argv=[str(word) for word in argv], log=str(log))
    code: list[int] = []

    def ended() -> bool:
        answer = forge.ask(pid=pid)
        code[:] = [] if answer is None else [answer]
        return bool(code)

    try:
        wait_until(ended, f"shoal {argv[0]} ends", deadline_s)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise
    return code[0]
