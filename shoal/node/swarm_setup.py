"""The folder of a swarm on one machine, and `shoal init`.

    <run-dir>/manifest.json
    <run-dir>/data/                        token shards and tokenizer
    <run-dir>/store/                       the embedded object store
    <run-dir>/nodes/<name>/key.pem, node.toml, state/, node.log

Guarantees: an interrupted set-up leaves no folder that looks whole (the manifest comes last), a
folder that is no swarm's is never emptied, existing keys are kept. Does not do: start processes.
"""

import asyncio
import shutil
import socket
import time
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import IO

from shoal.node.checkpoint import write_atomically
from shoal.node.config import RunPlan, load_run_plan
from shoal.node.create_run import admit, make_run, prepare_data, store_run
from shoal.node.errors import ConfigError, ResourceError
from shoal.node.locks import LOCK_NAME, lock_folder
from shoal.node.manifest_file import load_manifest
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.identity import PeerId, generate, load_key, parse_peer_text, save_key
from shoal.protocol.manifest import RunManifest
from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import StorageError
from shoal.storage.meter import Meter, MeteredStore

_NODE_TOML = """\
key_file = "key.pem"
state_dir = "state"
num_threads = 1

"""
_DIRECTORY_TOML = """\
[store]
kind = "directory"
path = "../../store"
"""


_MARK = b"swarm of shoal\n"
"""What a lock file says, so that a folder of something else is never taken for a swarm's."""
_OWN_NAMES = (
    "manifest.json",
    "nodes",
    "store",
    "data",
    "report.png",
    "summary.json",
    LOCK_NAME,
)
_MAX_PEERS = 255
_MAX_ROUNDS = 10_000_000


class StoreKind(StrEnum):
    """How the nodes of a swarm exchange their objects."""

    DIRECTORY = "directory"
    """All read and write one folder."""
    HTTP = "http"
    """Only the validator has a store; peers use its HTTP service and inbox."""


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


def set_up_swarm(plan: RunPlan, root: Path, store: StoreKind) -> SwarmFolder:
    """Makes or finds the folder of a swarm.

    Args:
        plan: of `load_swarm_plan`.
        root: the folder, claimed.
        store: how the nodes exchange their objects; asked for when the folder is new.

    Raises:
        ConfigError: the plan is wrong, or not that of the run that is there.
        ResourceError: the disk is full or not writable.
        DataError: a text is not usable.
    """
    manifest_file = root / "manifest.json"
    if manifest_file.exists():
        _check_same(plan, load_manifest(manifest_file), manifest_file)
    try:
        served, used = _store_tomls(store)
        validator = _node_folder(root, "validator-0", served)
        count = plan.swarm.num_peers
        folders = tuple(_node_folder(root, f"peer-{i}", used) for i in range(count))
        if not manifest_file.exists():
            _create(plan, root, validator, folders)
    except OSError as error:
        raise ResourceError(f"{root}: {error.strerror}") from error
    return SwarmFolder(
        root=root, manifest=load_manifest(manifest_file), validators=(validator,), peers=folders
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
    for name in ("run", "model", "codec", "training", "outer", "timing"):
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


def _store_tomls(store: StoreKind) -> tuple[str, str]:
    """What the validator's and the peers' node.toml say about stores."""
    if store is StoreKind.DIRECTORY:
        return _DIRECTORY_TOML, _DIRECTORY_TOML
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    served = f'{_DIRECTORY_TOML}\n[serve]\nlisten = "{address}"\n'
    return served, f'[store]\nkind = "http"\nurl = "http://{address}"\n'


def _node_folder(root: Path, name: str, store_toml: str) -> Path:
    folder = root / "nodes" / name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "key.pem").exists():
        save_key(folder / "key.pem", generate())
    if not (folder / "node.toml").exists():
        write_atomically(folder / "node.toml", (_NODE_TOML + store_toml).encode())
    return folder


def _create(plan: RunPlan, root: Path, validator: Path, peers: tuple[Path, ...]) -> None:
    roster = tuple(load_key(folder / "key.pem").peer for folder in peers)
    signer = load_key(validator / "key.pem").peer
    _init(admit(plan, roster), root / "store", root / "manifest.json", (signer,), root / "data", 1)


def init_run(
    plan_file: Path, store: Path, out: Path, validators: list[str], work: Path, threshold: int
) -> RunManifest:
    """`shoal init`: makes a run and puts it into a store.

    Args:
        plan_file: the run plan.
        store: root folder of the store.
        out: where the manifest's byte form goes.
        validators: their peer ids as text.
        work: folder for shards and tokenizer.
        threshold: validators that must sign.

    Raises:
        ConfigError: the plan or an id is wrong, or `out` exists.
        ResourceError: the store or the disk does not take it.
        DataError: a text is not usable.
    """
    plan = load_run_plan(plan_file)
    if out.exists():
        raise ConfigError(out, "--out", "a file that does not exist yet", "an existing file")
    return _init(plan, store, out, tuple(_peer(text) for text in validators), work, threshold)


def _peer(text: str) -> PeerId:
    try:
        return parse_peer_text(text)
    except RemoteProtocolError as error:
        expected = "a peer id as `shoal keygen` prints it"
        raise ConfigError("command line", "--validator", expected, f"{text} ({error})") from error


def _init(
    plan: RunPlan,
    store: Path,
    out: Path,
    validators: tuple[PeerId, ...],
    work: Path,
    threshold: int,
) -> RunManifest:
    data = prepare_data(plan, work)
    new = make_run(plan, data, validators, threshold)
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"{store}: {error.strerror}") from error
    try:
        target = MeteredStore(DirectoryStore(store), Meter(time.monotonic))
        asyncio.run(store_run(new, data, target))
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, new.manifest.to_bytes())
    except StorageError as error:
        raise ResourceError(str(error)) from error
    except OSError as error:
        raise ResourceError(f"{out}: {error.strerror}") from error
    return new.manifest
