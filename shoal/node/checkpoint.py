"""The node's own state on its own disk: written atomically, read back whole or not at all.

Guarantees: after kill -9 or a full disk at any moment, the newest whole checkpoint is found: a
checkpoint is written to a new file, flushed, renamed, and only then named (with its SHA-256) by the
pointer `CURRENT.json`, which is replaced atomically. If the newest file is damaged the one before
is used. Two checkpoints are kept. A failure to write leaves the older ones untouched.

Does not do: share checkpoints with others. The file holds only tensors and short strings
(safetensors): reading it runs no code.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from shoal.node.errors import CheckpointError, ResourceError

_POINTER = "CURRENT.json"
_KEEP = 2

Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Everything that a restart needs, as named arrays and short strings."""

    round_id: int
    arrays: Arrays
    facts: Mapping[str, str]


class CheckpointFolder:
    """One node's checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[str] = set()

    def save(self, snapshot: Snapshot) -> None:
        """Makes `snapshot` the newest checkpoint; durable when it returns.

        Raises:
            ResourceError: the disk is full or not writable; older checkpoints are untouched.
        """
        facts = {**snapshot.facts, "round_id": str(snapshot.round_id)}
        raw = safetensors.numpy.save(dict(snapshot.arrays), metadata=facts)
        name = f"state-{snapshot.round_id:08d}-{hashlib.sha256(raw).hexdigest()[:16]}.safetensors"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / name, raw)
            entries = [{"file": name, "sha256": hashlib.sha256(raw).hexdigest()}]
            # A damaged one must not take the place of the whole one before it.
            entries += [e for e in self._entries() if e["file"] not in {name, *self._damaged}]
            pointer = json.dumps(entries[:_KEEP]).encode()
            write_atomically(self.folder / _POINTER, pointer)
            self._remove_old({e["file"] for e in entries[:_KEEP]})
        except OSError as error:
            raise ResourceError(
                f"cannot write a checkpoint into {self.folder}: {error.strerror}; the last whole "
                "checkpoint is kept: free some space and start again"
            ) from error

    def keep_evidence(self, known: bytes, other: bytes) -> str:
        """Writes two conflicting records beside the checkpoints; says where, or why not."""
        names = ("fork-known.record", "fork-other.record")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, raw in zip(names, (known, other), strict=True):
                write_atomically(self.folder / name, raw)
        except OSError as error:
            return f"the evidence cannot be written: {error.strerror}"
        return f"evidence: {', '.join(str(self.folder / name) for name in names)}"

    def load(self) -> Snapshot | None:
        """The newest whole checkpoint, or None if there has never been one.

        Raises:
            CheckpointError: there are checkpoints, and none of them is whole.
        """
        entries = self._entries()
        problems = []
        for entry in entries:
            try:
                return _read(self.folder / entry["file"], entry["sha256"])
            except (OSError, CheckpointError, safetensors.SafetensorError) as error:
                problems.append(str(error))
                self._damaged.add(entry["file"])
        if entries:
            raise CheckpointError(
                f"no whole checkpoint in {self.folder} ({'; '.join(problems)}); move the folder "
                "away to start again from the run's records"
            )
        return None

    def _entries(self) -> list[dict[str, str]]:
        try:
            found = json.loads((self.folder / _POINTER).read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.folder / _POINTER}: {error}") from error
        if not isinstance(found, list) or not all(_is_entry(e) for e in found):
            raise CheckpointError(f"{self.folder / _POINTER}: expected a list of checkpoints")
        return found

    def _remove_old(self, keep: set[str]) -> None:
        for path in self.folder.glob("state-*"):
            if path.name not in keep:
                path.unlink(missing_ok=True)


def write_atomically(path: Path, raw: bytes) -> None:
    """Writes a whole file or nothing: temporary file, flush, rename, flush of the folder.

    Raises:
        OSError: as the operating system says; the old file, if any, is untouched.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry) == {"file", "sha256"}
        and all(isinstance(value, str) for value in entry.values())
        and "/" not in entry["file"]
    )


def _read(path: Path, sha256: str) -> Snapshot:
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise CheckpointError(f"{path.name} is damaged (SHA-256 differs)")
    with safetensors.safe_open(path, framework="numpy") as file:
        facts = dict(file.metadata())
    round_id = int(facts.pop("round_id"))
    return Snapshot(round_id=round_id, arrays=safetensors.numpy.load(raw), facts=facts)
