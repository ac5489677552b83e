"""Where a node finds the run's objects and others' payloads, and where its own payloads go.

Guarantees: a peer's payload is read from where its verified announcement says, and only if that is
a place that the manifest knows: a provider of its list (host from the template, addresses checked,
anonymous, no redirect), a libp2p address, or the run's own store. A peer never supplies an address
that is used as it stands. This node's secrets go to its own bucket and nowhere else.

Does not do: move bytes (the stores do) or count them (the meter does).
"""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from shoal.node.bandwidth import has_network, network_caps
from shoal.node.buckets import key_of_bucket, own_bucket, run_bucket, written_bucket
from shoal.node.config import NodeConfig
from shoal.node.errors import ResourceError
from shoal.node.network.addresses import best_place
from shoal.node.network.client import NetworkClient
from shoal.node.network.messages import Start
from shoal.node.readers import Readers, served_by
from shoal.node.run_network import RunNetwork, publishers, run_network, served_folders
from shoal.node.store_keys import P2P, RUN_STORE, StoreKeys
from shoal.protocol.announcement import Where
from shoal.protocol.identity import Identity, PeerId
from shoal.protocol.manifest import RunManifest
from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import StorageError, StorageUnavailableError
from shoal.storage.http import HttpStore
from shoal.storage.object_store import ObjectStore
from shoal.storage.s3 import S3Store
from shoal.storage.split import SplitStore

_NETWORK_START_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The stores of one node."""

    run: ObjectStore
    """The run's objects."""
    served: ObjectStore
    """What a validator gives to others over HTTP: its own store, and nothing that it would have to
    fetch for a stranger."""
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
    serve_again: Callable[[bytes, memoryview], Awaitable[None]] | None = None
    """Serves a gathered and verified payload, by its id, to who asks; None: no network process."""
    network: NetworkClient | None = None
    """The network process, where there is one."""


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
        store, inbox = _open_run_store(config, held)
        network = await _start_network(manifest, config, identity, held)
        joined = None
        if network is not None:
            opening = run_network(manifest, config, identity, network, store)
            joined = await held.enter_async_context(opening)
        run = _run_store(store, joined)
        own, where = await _own_place(manifest, config, run, network, held)
    except (StorageError, ValueError, OSError) as error:
        raise ResourceError(str(error)) from error
    readers = Readers(manifest, config, run, network, joined)
    held.callback(readers.close)
    return Places(
        run=run,
        served=store or run,
        own=own,
        network=network,
        own_where=where,
        read_at=readers.find,
        serve_again=None if joined is None else joined.objects.serve_again,
        time_s=_clock_of(manifest, inbox, store, joined),
        probe_upload=lambda keys, data: _probe_upload(
            inbox, own, probe_key(keys, where, identity.peer), data
        ),
    )


def _open_run_store(
    config: NodeConfig, held: AsyncExitStack
) -> tuple[ObjectStore | None, HttpStore | None]:
    """The run's store, and the validator's HTTP service where this node goes through it.

    No store where the network alone is the run's.
    """
    store = config.store
    inbox = HttpStore(store.url, proxy=config.proxy) if store.url else None
    if inbox is not None:
        held.push_async_callback(inbox.close)
    if store.kind == P2P:
        return None, None
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
    if not has_network(config):
        return None
    upload_bytes_per_s, download_bytes_per_s = network_caps(config)
    options = Start(
        folder=str(Path(config.state_dir) / "network"),
        run_id=manifest.run_id,
        round_ms=int(manifest.timing.round_seconds * 1000),
        listen=section.listen,
        announce=section.announce,
        seeds=section.seeds,
        run_seeds=manifest.endpoints.seeds,
        dns_server=section.dns_server,
        client_mode=section.client_mode,
        upload_bytes_per_s=upload_bytes_per_s,
        download_bytes_per_s=download_bytes_per_s,
        use_relay=section.use_relay,
        map_port=section.map_port,
        allow_private=manifest.endpoints.allow_loopback,
        roster=publishers(manifest),
        folders=served_folders(manifest, config),
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
    if P2P in (payloads.kind, config.store.kind) and network is not None:
        status = await network.status(_NETWORK_START_S)
        # With nothing that others can dial: who we are, for those to whom we have a connection.
        address = f"{best_place(status.addresses)}/p2p/{status.peer_id}"
        return served_by(network, "", None), Where(provider=P2P, address=address)
    return run, Where(provider=RUN_STORE)


def _run_store(store: ObjectStore | None, joined: RunNetwork | None) -> ObjectStore:
    if joined is not None:
        return joined.run
    if store is None:
        raise ValueError("neither a store nor a network of the run")
    return store


def probe_key(keys: StoreKeys, where: Where, peer: PeerId) -> str:
    """A key for a throw-away object where the payloads of this node go.

    A bucket of one's own may take nothing but payloads; the run's store has a folder for probes.
    """
    name = secrets.token_hex(32)
    if where.provider in (RUN_STORE, P2P):
        return keys.probe(name)
    return f"{keys.payloads(peer)}probe-{name}"


def _clock_of(
    manifest: RunManifest,
    inbox: HttpStore | None,
    store: ObjectStore | None,
    joined: RunNetwork | None,
) -> Callable[[str], Awaitable[float]]:
    """Whose clock this node compares with its own."""

    async def clock_s(key: str) -> float:
        if store is not None:
            try:
                return await _store_time_s(inbox, store, key)
            except StorageUnavailableError:
                if joined is None or isinstance(store, DirectoryStore):
                    raise
        if joined is None:
            raise StorageUnavailableError("nobody to ask for the time", key)
        return await joined.clock_s(manifest.run_id)

    return clock_s


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
