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
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import IO

from shoal.node.checkpoint import write_atomically
from shoal.node.config import RunPlan, load_run_plan
from shoal.node.create_run import admit, make_run, prepare_data, store_run
from shoal.node.errors import ConfigError, ResourceError
from shoal.node.locks import LOCK_NAME, lock_folder
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.identity import PeerId, generate, load_key, parse_peer_text, save_key
from shoal.protocol.manifest import RunManifest, read_manifest
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


def set_up_swarm(
    plan_file: Path,
    root: Path,
    *,
    num_peers: int | None,
    num_rounds: int | None,
    store: StoreKind,
) -> SwarmFolder:
    """Makes or finds the folder of a swarm.

    Args:
        plan_file: the run plan.
        root: the folder, claimed.
        num_peers: instead of the plan's.
        num_rounds: instead of the plan's.
        store: how the nodes exchange their objects; asked for when the folder is new.

    Raises:
        ConfigError: the plan is wrong.
        ResourceError: the disk is full or not writable.
        DataError: a text is not usable.
    """
    plan = load_run_plan(plan_file)
    if num_rounds is not None:
        plan = replace(plan, run=replace(plan.run, num_rounds=num_rounds))
    count = plan.swarm.num_peers if num_peers is None else num_peers
    try:
        served, used = _store_tomls(store)
        validator = _node_folder(root, "validator-0", served)
        folders = tuple(_node_folder(root, f"peer-{i}", used) for i in range(count))
        if not (root / "manifest.json").exists():
            _create(plan, root, validator, folders)
        raw = (root / "manifest.json").read_bytes()
    except OSError as error:
        raise ResourceError(f"{root}: {error.strerror}") from error
    return SwarmFolder(
        root=root, manifest=read_manifest(raw), validators=(validator,), peers=folders
    )


def claim_folder(root: Path, *, fresh: bool) -> IO[bytes]:
    """Locks the folder of a swarm, made if need be; with `fresh` its contents are removed.

    Raises:
        ConfigError: the folder belongs to something else, or cannot be written.
        StateInUseError: another swarm runs in it.
    """
    # The lock is also the mark by which a swarm's folder is known.
    if root.exists() and any(root.iterdir()) and not (root / LOCK_NAME).exists():
        raise ConfigError(root, "--run-dir", "an empty folder or one of a swarm", "another folder")
    held = lock_folder(root, "the swarm's folder")
    if fresh:
        for path in root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK_NAME:
                path.unlink()
    return held


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
        target = MeteredStore(DirectoryStore(store), Meter(time.monotonic))
        asyncio.run(store_run(new, data, target))
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, new.manifest.to_bytes())
    except StorageError as error:
        raise ResourceError(str(error)) from error
    except OSError as error:
        raise ResourceError(f"{out}: {error.strerror}") from error
    return new.manifest
