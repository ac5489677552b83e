"""The folder of a swarm on one machine.

    <run-dir>/manifest.json
    <run-dir>/data/                        token shards and tokenizer
    <run-dir>/store/ or s3/                the embedded object store, or the S3 server's folder
    <run-dir>/nodes/<name>/key.pem, node.toml, state/, node.log

Guarantees: an interrupted set-up leaves no folder that looks whole (the manifest comes last), a
folder that is no swarm's is never emptied, existing keys are kept. Does not do: start processes.
"""

import shutil
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO

from shoal.node.config import RunPlan, load_run_plan
from shoal.node.create_run import admit
from shoal.node.errors import ConfigError, ResourceError
from shoal.node.init_run import create_run
from shoal.node.locks import LOCK_NAME, lock_folder
from shoal.node.manifest_file import load_manifest
from shoal.node.swarm_stores import SwarmStore, write_node_toml
from shoal.protocol.identity import generate, load_key, save_key
from shoal.protocol.manifest import RunManifest

_MARK = b"swarm of shoal\n"
"""What a lock file says, so that a folder of something else is never taken for a swarm's."""
_OWN_NAMES = (
    "manifest.json",
    "nodes",
    "store",
    "s3",
    "data",
    "report.png",
    "summary.json",
    LOCK_NAME,
)
_MAX_PEERS = 255
_MAX_ROUNDS = 10_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmFolder:
    """A folder that is ready to start from."""

    root: Path
    manifest: RunManifest
    validators: tuple[Path, ...]
    """The validators' node folders."""
    peers: tuple[Path, ...]

    @property
    def manifest_file(self) -> Path:
        """The manifest's byte form."""
        return self.root / "manifest.json"

    @property
    def nodes(self) -> tuple[Path, ...]:
        """All node folders, validators first."""
        return (*self.validators, *self.peers)


def load_swarm_plan(plan_file: Path, num_peers: int | None, num_rounds: int | None) -> RunPlan:
    """Reads a run plan and puts the command line's numbers into it.

    Args:
        plan_file: the run plan.
        num_peers: instead of the plan's.
        num_rounds: instead of the plan's.

    Raises:
        ConfigError: the plan or an option is wrong.
    """
    plan = load_run_plan(plan_file)
    if num_peers is not None:
        _check_option("--peers", num_peers, _MAX_PEERS)
        plan = replace(plan, swarm=replace(plan.swarm, num_peers=num_peers))
    if num_rounds is not None:
        _check_option("--rounds", num_rounds, _MAX_ROUNDS)
        plan = replace(plan, run=replace(plan.run, num_rounds=num_rounds))
    return plan


async def set_up_swarm(plan: RunPlan, root: Path, stores: SwarmStore) -> SwarmFolder:
    """Makes or finds the folder of a swarm.

    Args:
        plan: of `load_swarm_plan`.
        root: the folder, claimed.
        stores: what the nodes exchange their objects through, open.

    Raises:
        ConfigError: the plan is wrong, or not that of the run that is there.
        ResourceError: the disk is full or not writable, or the store does not take the run.
        DataError: a text is not usable.
    """
    manifest_file = root / "manifest.json"
    if manifest_file.exists():
        _check_same(plan, load_manifest(manifest_file), manifest_file)
    try:
        validator = _node_folder(root, "validator-0", stores.validator_toml)
        peers = tuple(
            _node_folder(root, f"peer-{i}", toml) for i, toml in enumerate(stores.peer_tomls)
        )
        if not manifest_file.exists():
            roster = tuple(load_key(folder / "key.pem").peer for folder in peers)
            signer = load_key(validator / "key.pem").peer
            await create_run(
                admit(plan, roster), stores.store, manifest_file, (signer,), root / "data", 1
            )
    except OSError as error:
        raise ResourceError(f"{root}: {error.strerror}") from error
    return SwarmFolder(
        root=root, manifest=load_manifest(manifest_file), validators=(validator,), peers=peers
    )


def _check_option(name: str, value: int, maximum: int) -> None:
    if not 1 <= value <= maximum:
        raise ConfigError("command line", name, f"a number from 1 to {maximum}", str(value))


def _check_same(plan: RunPlan, manifest: RunManifest, file: Path) -> None:
    """Another plan for a run that is there is refused: a manifest never changes."""
    wanted = {"swarm.num_peers": plan.swarm.num_peers, "data.seq_len": plan.data.seq_len}
    there = {
        "swarm.num_peers": len(manifest.admission.peers),
        "data.seq_len": manifest.data.seq_len,
    }
    for name in ("run", "model", "codec", "training", "outer", "timing", "endpoints"):
        mine, theirs = getattr(plan, name), getattr(manifest, name)
        wanted |= {f"{name}.{f.name}": getattr(mine, f.name) for f in fields(mine)}
        there |= {f"{name}.{f.name}": getattr(theirs, f.name) for f in fields(theirs)}
    for name, value in wanted.items():
        if value != there[name]:
            raise ConfigError(
                file,
                name,
                f"{there[name]} (the run that is in this folder)",
                f"{value}; --fresh starts over, another --run-dir starts beside it",
            )


def claim_folder(root: Path, *, fresh: bool) -> IO[bytes]:
    """Locks the folder of a swarm, made if need be; with `fresh` a swarm's files are removed.

    Raises:
        ConfigError: the folder belongs to something else, or cannot be written.
        StateInUseError: another swarm runs in it.
        ResourceError: a file cannot be removed.
    """
    try:
        if not _is_free_or_ours(root):
            raise ConfigError(
                root, "--run-dir", "an empty folder or one of a swarm", "something else"
            )
        held = lock_folder(root, "the swarm's folder")
        (root / LOCK_NAME).write_bytes(_MARK)
        if fresh:
            _remove_files(root)
    except OSError as error:
        raise ResourceError(f"{error.filename or root}: {error.strerror}") from error
    return held


def _is_free_or_ours(root: Path) -> bool:
    """Whether a swarm may use the folder: not there, empty, or marked by what its lock says."""
    if not root.exists():
        return True
    if not root.is_dir():
        return False
    lock = root / LOCK_NAME
    if not lock.is_file():
        return not any(root.iterdir())
    with lock.open("rb") as file:
        mark = file.read(len(_MARK))
    # Folders made before there was a mark, or claimed by a process that was killed at once.
    unmarked = not mark and all(path.name in _OWN_NAMES for path in root.iterdir())
    return mark == _MARK or unmarked


def _remove_files(root: Path) -> None:
    """The manifest first: without it what is left never looks whole."""
    for name in _OWN_NAMES:
        path = root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif name != LOCK_NAME:
            path.unlink(missing_ok=True)


def _node_folder(root: Path, name: str, stores_toml: str) -> Path:
    folder = root / "nodes" / name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "key.pem").exists():
        save_key(folder / "key.pem", generate())
    write_node_toml(folder, stores_toml)
    return folder
