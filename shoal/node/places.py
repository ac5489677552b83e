"""Where a node finds the run's objects and others' payloads, and where its own payloads go.

Guarantees: a peer's payload is read from where its verified announcement says, and only if that is
a place that the manifest knows: a provider of its list (host from the template, addresses checked,
anonymous, no redirect), a libp2p address, or the run's own store. A peer never supplies an address
that is used as it stands. This node's secrets go to its own bucket and nowhere else.

Does not do: move bytes (the stores do) or count them (the meter does).
"""

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from shoal.node.buckets import bucket_at, key_of_bucket, own_bucket, run_bucket, written_bucket
from shoal.node.config import NodeConfig
from shoal.node.errors import ResourceError
from shoal.node.network.client import NetworkClient
from shoal.node.network.messages import Start
from shoal.node.network.p2p_store import P2PStore
from shoal.node.store_keys import P2P, RUN_STORE, StoreKeys
from shoal.protocol.announcement import Where
from shoal.protocol.errors import ErrorCode, PayloadError
from shoal.protocol.identity import Identity, PeerId
from shoal.protocol.manifest import RunManifest
from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import RefusedError, StorageError
from shoal.storage.http import HttpStore
from shoal.storage.object_store import ObjectStore
from shoal.storage.s3 import S3Store
from shoal.storage.split import SplitStore

_MAX_READERS = 64
_NETWORK_START_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The stores of one node."""

    run: ObjectStore
    """The run's objects."""
    own: ObjectStore
    """Where this node's payloads go."""
    own_where: Where
    """How that place is announced."""
    read_at: Callable[[Where], ObjectStore]
    """The store of an announced place; raises PayloadError for one that is not allowed."""
    time_s: Callable[[str], Awaitable[float]]
    """The store's clock, unix seconds; the key is one that this node may write to find out."""
    probe_upload: Callable[[StoreKeys, bytes], Awaitable[None]]
    """Sends bytes where payloads go, for measuring; nothing of them stays."""


async def open_places(
    manifest: RunManifest, config: NodeConfig, identity: Identity, held: AsyncExitStack
) -> Places:
    """Opens what the configuration names.

    Args:
        manifest: of the run: its providers.
        config: of this node.
        identity: signs what the network process tells others.
        held: closes everything that was opened.

    Raises:
        ConfigError: the configuration does not fit the manifest.
        ResourceError: a store cannot be used.
    """
    try:
        run, inbox = _open_run_store(config, held)
        network = await _start_network(manifest, config, identity, held)
        own, where = await _own_place(manifest, config, run, network, held)
    except (StorageError, ValueError) as error:
        raise ResourceError(str(error)) from error
    readers = Readers(manifest, config, run, network)
    held.callback(readers.close)
    return Places(
        run=run,
        own=own,
        own_where=where,
        read_at=readers.find,
        time_s=lambda key: _store_time_s(inbox, run, key),
        probe_upload=lambda keys, data: _probe_upload(
            inbox, own, probe_key(keys, where, identity.peer), data
        ),
    )


def _open_run_store(
    config: NodeConfig, held: AsyncExitStack
) -> tuple[ObjectStore, HttpStore | None]:
    """The run's store, and the validator's HTTP service where this node goes through it."""
    store = config.store
    inbox = HttpStore(store.url, proxy=config.proxy) if store.url else None
    if inbox is not None:
        held.push_async_callback(inbox.close)
    if store.kind == "directory":
        return DirectoryStore(Path(store.path)), None
    if store.kind == "http" and inbox is not None:
        return inbox, inbox
    bucket = S3Store(run_bucket(config), key_of_bucket() if inbox is None else None)
    held.callback(bucket.close)
    return (bucket, None) if inbox is None else (SplitStore(bucket, inbox), inbox)


async def _start_network(
    manifest: RunManifest, config: NodeConfig, identity: Identity, held: AsyncExitStack
) -> NetworkClient | None:
    section = config.network
    if not (section.enabled or config.payloads.kind == P2P):
        return None
    roster = manifest.roster
    options = Start(
        folder=str(Path(config.state_dir) / "network"),
        run_id=manifest.run_id,
        round_ms=int(manifest.timing.round_seconds * 1000),
        listen=section.listen,
        announce=section.announce,
        seeds=section.seeds,
        client_mode=section.client_mode,
        use_relay=section.use_relay,
        map_port=section.map_port,
        allow_private=manifest.endpoints.allow_loopback,
        roster=() if roster is None else tuple(sorted(peer.key.hex() for peer in roster)),
    )
    return await held.enter_async_context(NetworkClient(options, identity))


async def _own_place(
    manifest: RunManifest,
    config: NodeConfig,
    run: ObjectStore,
    network: NetworkClient | None,
    held: AsyncExitStack,
) -> tuple[ObjectStore, Where]:
    payloads = config.payloads
    written = written_bucket(manifest, config) if payloads.kind == "s3" else None
    if written is not None:
        bucket = S3Store(*written)
        held.callback(bucket.close)
        return bucket, own_bucket(config)
    if payloads.kind == P2P and network is not None:
        status = await network.status(_NETWORK_START_S)
        address = f"{status.addresses[0]}/p2p/{status.peer_id}" if status.addresses else ""
        return _served_by(network, ()), Where(provider=P2P, address=address)
    return run, Where(provider=RUN_STORE)


def _served_by(network: NetworkClient, source: tuple[str, ...]) -> P2PStore:
    async def find(_: bytes) -> list[tuple[str, ...]]:
        return [source] if source else []

    # Payload ids are hashes of headers, not of all bytes: the payload's own check follows.
    return P2PStore(network, find, named_by_hash=False)


class Readers:
    """The stores of announced places, made when they are first named; the oldest are closed."""

    def __init__(
        self,
        manifest: RunManifest,
        config: NodeConfig,
        run: ObjectStore,
        network: NetworkClient | None,
    ) -> None:
        self._manifest = manifest
        self._config = config
        self._run = run
        self._network = network
        self._buckets: OrderedDict[Where, S3Store] = OrderedDict()
        self._retired: list[S3Store] = []

    def find(self, where: Where) -> ObjectStore:
        """The store that holds a payload announced as being at `where`.

        Raises:
            PayloadError: no such place is allowed in this run; has the code.
        """
        if where.provider == RUN_STORE:
            return self._run
        if where.provider == P2P:
            if self._network is None:
                detail = "this node runs no libp2p process ([network] enabled = true)"
                raise PayloadError(ErrorCode.E_HOST_NOT_ALLOWED, detail)
            return _served_by(self._network, (where.address,))
        return self._bucket(where)

    def _bucket(self, where: Where) -> S3Store:
        if where not in self._buckets:
            try:
                place = bucket_at(self._manifest, self._config, where)
            except RefusedError as error:
                raise PayloadError(ErrorCode(error.code), error.message) from error
            # Anonymous: a stranger's server never sees a key of this node.
            self._buckets[where] = S3Store(place, None)
            if len(self._buckets) > _MAX_READERS:
                self._retired.append(self._buckets.popitem(last=False)[1])
        self._buckets.move_to_end(where)
        return self._buckets[where]

    def close(self) -> None:
        """Closes all connections."""
        for bucket in (*self._retired, *self._buckets.values()):
            bucket.close()


def probe_key(keys: StoreKeys, where: Where, peer: PeerId) -> str:
    """A key for a throw-away object where the payloads of this node go.

    A bucket of one's own may take nothing but payloads; the run's store has a folder for probes.
    """
    name = secrets.token_hex(32)
    if where.provider in (RUN_STORE, P2P):
        return keys.probe(name)
    return f"{keys.payloads(peer)}probe-{name}"


async def _store_time_s(inbox: HttpStore | None, run: ObjectStore, key: str) -> float:
    """The store's clock as it stamps a small object; shows too that this node may write."""
    if inbox is not None:
        return await inbox.server_time_s()
    await run.put(key, b"hello", overwrite=True)
    return (await run.head(key)).modified_at_s


async def _probe_upload(inbox: HttpStore | None, own: ObjectStore, key: str, data: bytes) -> None:
    if own is inbox and inbox is not None:
        await inbox.put_to_sink(data)
        return
    await own.put(key, data)
    await own.delete(key)
