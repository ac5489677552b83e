"""All event logs under one folder, followed as they grow: a node's, or every node's of a swarm.

Guarantees: a log that appears later is found, one that cannot be read is named with the reason, a
manifest beside the logs adds the run's name and length if it is there and whole.

Does not do: wait. A page over a swarm would call `read` every second and hand the events on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.node.errors import ConfigError
from shoal.node.looking import is_there
from shoal.node.web.board import Agreement, agree
from shoal.node.web.history import NodeHistory, RunFacts
from shoal.node.web.log_tail import LogTail
from shoal.protocol.errors import ProtocolError
from shoal.protocol.manifest import read_manifest

EVENTS_NAME = "events.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What is known at one moment."""

    path: Path
    facts: RunFacts
    histories: Sequence[NodeHistory]
    troubles: Sequence[str]
    """What could not be read, one line each."""

    @property
    def agreement(self) -> Agreement | None:
        """Whether the nodes hold the same state."""
        return agree(self.histories)


@dataclass(slots=True)
class LogFolder:
    """Follows all logs under `path`: a node's state folder, its parent, or a swarm's folder."""

    path: Path
    _tails: dict[Path, LogTail] = field(default_factory=dict)
    _histories: dict[Path, NodeHistory] = field(default_factory=dict)

    def read(self) -> Status:
        """Reads what is new.

        Raises:
            ConfigError: there is no such folder.
        """
        if not is_there(self.path, "PATH"):
            expected = "a node's state folder or a swarm's folder"
            raise ConfigError("command line", "PATH", expected, f"no such folder: {self.path}")
        facts, troubles = self._facts()
        for log in find_logs(self.path):
            self._follow(log, facts)
        for log, tail in self._tails.items():
            if tail.trouble:
                troubles.append(f"{log}: {tail.trouble}")
            if tail.num_bad_lines:
                troubles.append(f"{log}: {tail.num_bad_lines} lines are no events")
        histories = [self._histories[log] for log in sorted(self._histories)]
        return Status(path=self.path, facts=facts, histories=histories, troubles=troubles)

    def _follow(self, log: Path, facts: RunFacts) -> None:
        if log not in self._tails:
            self._tails[log] = LogTail(log)
            self._histories[log] = NodeHistory(self._name(log), facts)
        for event in self._tails[log].read_new():
            self._histories[log].take(event)

    def _name(self, log: Path) -> str:
        """The node folder's name, `state` says nothing; made unique, as a board wants it."""
        folder = log.resolve().parent
        name = folder.parent.name if folder.name == "state" else folder.name
        taken = {history.name for history in self._histories.values()}
        return name if name not in taken else f"{name} #{len(taken)}"

    def _facts(self) -> tuple[RunFacts, list[str]]:
        manifest_file = self.path / "manifest.json"
        try:
            manifest = read_manifest(manifest_file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return RunFacts(), []
        except (OSError, ProtocolError) as error:
            return RunFacts(), [f"{manifest_file}: {error}"]
        run, steps = manifest.run, manifest.training.inner_steps
        return RunFacts(name=run.name, num_rounds=run.num_rounds, inner_steps=steps), []


def find_logs(path: Path) -> list[Path]:
    """The event logs of a node's or a swarm's folder; a log itself is its own."""
    if path.is_file():
        return [path]
    places = [path / EVENTS_NAME, path / "state" / EVENTS_NAME]
    places += path.glob(f"nodes/*/state/{EVENTS_NAME}")
    return sorted(place for place in places if is_there(place, "PATH"))
