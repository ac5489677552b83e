"""How the nodes of a swarm on one machine exchange their objects, and the servers that takes.

Guarantees: a server that was started ends with the context; node.toml files are written anew at
every start, since ports are chosen anew; each node gets the secrets of its own bucket and no
other's, by its environment.

Does not do: set up the run or start nodes.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from shoal.node.checkpoint import write_atomically
from shoal.node.config import RunPlan
from shoal.node.errors import ResourceError
from shoal.node.kept_ports import kept_ports
from shoal.protocol.manifest import EndpointsSection, ProviderSection
from shoal.storage.directory import DirectoryStore
from shoal.storage.object_store import ObjectStore
from shoal.storage.s3 import S3Store
from shoal.storage.s3_config import S3Credentials
from shoal.storage.seaweed import BucketKeys, SeaweedServer, SeaweedStartError

RUN_BUCKET = "run"
_LOCAL = EndpointsSection(
    providers=(ProviderSection(name="local", url="http://127.0.0.1:{port}"),), allow_loopback=True
)


class StoreKind(StrEnum):
    """How the nodes of a swarm exchange their objects."""

    DIRECTORY = "directory"
    """All read and write one folder."""
    HTTP = "http"
    """Only the validator has a store; peers use its HTTP service and inbox."""
    S3 = "s3"
    """A real S3 server: every node has a bucket, everybody reads all of them anonymously."""
    P2P = "p2p"
    """Peers find and serve everything over libp2p; only the validator has a store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmStore:
    """What a swarm starts from."""

    store: ObjectStore
    """The run's objects, for setting the run up."""
    validator_toml: str
    peer_tomls: tuple[str, ...]
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    """By node name: its secrets."""


def with_endpoints(plan: RunPlan, kind: StoreKind) -> RunPlan:
    """The plan of a swarm: where payloads may be is part of the manifest."""
    if kind in (StoreKind.S3, StoreKind.P2P):
        return replace(plan, endpoints=_LOCAL)
    return plan


@asynccontextmanager
async def open_swarm_store(
    kind: StoreKind, root: Path, num_peers: int
) -> AsyncIterator[SwarmStore]:
    """Starts what the swarm's nodes need to exchange objects.

    Args:
        kind: how.
        root: the swarm's folder.
        num_peers: number of peers, named peer-0 and on; the validator is validator-0.

    Raises:
        ResourceError: a server does not start.
    """
    with kept_ports() as free_port:
        if kind is StoreKind.S3:
            async with _open_s3(root, num_peers, free_port) as opened:
                yield opened
        else:
            yield _open_folder(kind, root, num_peers, free_port)


def _open_folder(
    kind: StoreKind, root: Path, num_peers: int, free_port: Callable[[], int]
) -> SwarmStore:
    folder = root / "store"
    folder.mkdir(parents=True, exist_ok=True)
    directory = _toml("store", kind="directory", path="../../store")
    served, used = directory, directory
    if kind is StoreKind.HTTP:
        address = f"127.0.0.1:{free_port()}"
        served = directory + _toml("serve", listen=address)
        used = _toml("store", kind="http", url=f"http://{address}")
    elif kind is StoreKind.P2P:
        listen = f"/ip4/127.0.0.1/tcp/{free_port()}"
        seed = f"{listen}/p2p/{_libp2p_id(root / 'nodes' / 'validator-0' / 'state' / 'network')}"
        served = directory + _toml("network", enabled=True, listen=[listen])
        used = _toml("store", kind="p2p") + _toml(
            "network", enabled=True, listen=["/ip4/127.0.0.1/tcp/0"], seeds=[seed]
        )
    return SwarmStore(
        store=DirectoryStore(folder), validator_toml=served, peer_tomls=(used,) * num_peers
    )


@asynccontextmanager
async def _open_s3(
    root: Path, num_peers: int, free_port: Callable[[], int]
) -> AsyncIterator[SwarmStore]:
    peers = [f"peer-{i}" for i in range(num_peers)]
    keys = {name: BucketKeys.random() for name in (RUN_BUCKET, *peers)}
    try:
        async with SeaweedServer.start(root / "s3", keys, public=list(keys)) as server:
            store = S3Store(server.config(RUN_BUCKET), keys[RUN_BUCKET].writer)
            address = f"127.0.0.1:{free_port()}"
            bucket: dict[str, str | bool] = {
                "kind": "s3",
                "endpoint": server.endpoint_url,
                "bucket": RUN_BUCKET,
                "lists_in_order": False,
                "joins_once": False,
            }
            reading = _toml("store", **bucket, url=f"http://{address}")
            port = int(server.endpoint_url.rsplit(":", 1)[1])
            try:
                yield SwarmStore(
                    store=store,
                    validator_toml=_toml("store", **bucket)
                    + _toml("payloads", local_port=port)
                    + _toml("serve", listen=address),
                    peer_tomls=tuple(reading + _payloads_toml(name, port) for name in peers),
                    environments={"validator-0": _secrets(keys[RUN_BUCKET].writer)}
                    | {name: _secrets(keys[name].writer) for name in peers},
                )
            finally:
                store.close()
    except SeaweedStartError as error:
        raise ResourceError(f"the S3 server does not start: {error}") from error


def _libp2p_id(folder: Path) -> str:
    """The id of the network process with this folder, made now if it has none yet.

    Raises:
        ResourceError: it cannot be made.
    """
    command = [sys.executable, "-m", "shoal.node.network.identify", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode != 0:
        raise ResourceError(f"no libp2p identity in {folder}: {done.stderr.strip()[-200:]}")
    return done.stdout.strip()


def _payloads_toml(bucket: str, port: int) -> str:
    return _toml(
        "payloads", kind="s3", provider="local", bucket=bucket, local_port=port, joins_once=False
    )


def _secrets(key: S3Credentials) -> dict[str, str]:
    return {
        "SHOAL_S3_ACCESS_KEY_ID": key.access_key,
        "SHOAL_S3_SECRET_ACCESS_KEY": key.secret_key,
    }


def write_node_toml(folder: Path, stores: str) -> None:
    """Writes a node's configuration.

    Raises:
        OSError: as the operating system says.
    """
    head = 'key_file = "key.pem"\nstate_dir = "state"\nnum_threads = 1\n'
    write_atomically(folder / "node.toml", (head + stores).encode())


def _toml(section: str, **fields: str | bool | int | list[str]) -> str:
    # JSON spells these types as TOML does.
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["", f"[{section}]", *lines, ""])
