"""What a node with a network process does so that others find the run, and it finds them.

    the manifest    served over libp2p to whoever joins by a multiaddr, with or without the run's id
    <run>/seeds/    in the run's store: each validator's own signed peer record, written by it; read
                    by everybody at start, and again while nobody is connected

Guarantees: what is read from the store is signed by a validator of the manifest, bounded, and even
then a hint; nothing here ends a node, and what it sees of the network is said when it changes.

Does not do: dial (the network process does).
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from shoal.node.checkpoint import write_atomically
from shoal.node.network import signed_records
from shoal.node.network.addresses import best_place
from shoal.node.network.client import NetworkClient
from shoal.node.network.messages import Status
from shoal.node.network.object_ids import ANY_MANIFEST_ID
from shoal.node.network.reaching import SeedSource
from shoal.node.network.signed_records import MAX_RECORD_BYTES, PeerRecord
from shoal.node.store_keys import StoreKeys
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.protocol.identity import PeerId
from shoal.protocol.manifest import RunManifest
from shoal.storage.errors import ObjectNotFoundError, ObjectTooLargeError, StorageError
from shoal.storage.object_store import ObjectStore

MANIFEST_NAME: Final = "manifest.json"
MAX_VALIDATORS_READ: Final = 16
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def meeting_others(
    manifest: RunManifest,
    network: NetworkClient | None,
    store: ObjectStore | None,
    me: PeerId,
    folder: Path,
) -> AsyncIterator[None]:
    """Does it in the background while the context is open.

    Args:
        manifest: of the run.
        network: started; None: there is nothing to do.
        store: the run's, to which a validator writes; None: the network alone is the store.
        me: this node.
        folder: of the network process; the manifest's file is put there.
    """
    if network is None:
        yield
        return
    rendezvous = Rendezvous(manifest, network, store, me)
    working = asyncio.create_task(rendezvous.run(folder / MANIFEST_NAME))
    try:
        yield
    finally:
        working.cancel()
        await asyncio.wait((working,))


class Rendezvous:
    """One node's part; see the module."""

    def __init__(
        self, manifest: RunManifest, network: NetworkClient, store: ObjectStore | None, me: PeerId
    ) -> None:
        self._manifest = manifest
        self._network = network
        self._store = store
        self._me = me
        self._keys = StoreKeys(manifest.run_id)
        self._written: tuple[str, ...] = ()
        self._has_read = False
        self._said = ""

    async def run(self, manifest_file: Path) -> None:
        """Goes on for ever."""
        pause_s = _FIRST_PAUSE_S
        is_served = False
        while True:
            try:
                is_served = is_served or await self._serve_manifest(manifest_file)
                await self.step(await self._network.status())
            except (StorageError, OSError) as error:
                _log.debug("meeting others: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def step(self, status: Status) -> None:
        """Writes and reads the store's seeds where that is due, and says what is seen.

        Args:
            status: of the network process, new.

        Raises:
            StorageError: the store or the process does not answer.
        """
        self._say(status)
        if self._me in self._manifest.validator_ids:
            await self._write()
        if self._store is not None and not (self._has_read and status.num_connected):
            seeds = await read_seeds(self._manifest, self._store)
            await self._network.add_seeds(SeedSource.BUCKET, seeds)
            self._has_read = True

    async def _serve_manifest(self, file: Path) -> bool:
        await asyncio.to_thread(write_atomically, file, self._manifest.to_bytes())
        for object_id in (self._manifest.run_id, ANY_MANIFEST_ID):
            await self._network.serve_file(object_id, file)
        return True

    async def _write(self) -> None:
        """A validator's own addresses, when they are new, and what others type to join."""
        record = self._network.own_record
        if record is None:
            return
        places = sources_in(record, self._manifest.run_id, self._me)
        if places == self._written:
            return
        if self._store is not None:
            await self._store.put(self._keys.seeds(self._me), record, overwrite=True)
        self._written = places
        _log.info("others join with: shoal join %s", join_argument(places, self._manifest))

    def _say(self, status: Status) -> None:
        connected = f"{status.num_connected} peers connected" if status.num_connected else "alone"
        seen = "; ".join((connected, *status.seeds))
        if seen != self._said:
            self._said = seen
            level = logging.INFO if status.num_connected else logging.WARNING
            _log.log(level, "network: %s", seen)


def join_argument(places: tuple[str, ...], manifest: RunManifest) -> str:
    """What follows `shoal join` on another machine: the best address, and which run it is.

    Args:
        places: multiaddrs with ids, at least one.
        manifest: of the run.
    """
    return f"{best_place(places)}#{manifest.run_id.hex()}"


def sources_in(raw: bytes, run_id: bytes, peer: PeerId) -> tuple[str, ...]:
    """The addresses in a peer's signed record; nobody is trusted.

    Args:
        raw: as received.
        run_id: of the run.
        peer: who must have signed it.

    Returns:
        Multiaddrs that end in the peer's libp2p id.

    Raises:
        RemoteProtocolError: it is no such record.
    """
    signed = signed_records.read(raw)
    statement = signed.statement
    if not isinstance(statement, PeerRecord):
        raise RemoteProtocolError(ErrorCode.E_MAGIC, "not a peer record")
    if statement.run_id != run_id:
        raise RemoteProtocolError(ErrorCode.E_RUN, f"run {statement.run_id.hex()}")
    if signed.peer != peer:
        raise RemoteProtocolError(ErrorCode.E_SIG, "signed by another peer")
    signed_records.verify(signed)
    return tuple(f"{place}/p2p/{statement.libp2p_id}" for place in statement.addresses)


async def read_seeds(manifest: RunManifest, store: ObjectStore) -> tuple[str, ...]:
    """The addresses that validators left in the run's store.

    Args:
        manifest: of the run.
        store: the run's.

    Returns:
        Multiaddrs with ids; none where no validator has left any.

    Raises:
        StorageError: the store does not answer.
    """
    keys = StoreKeys(manifest.run_id)
    found: list[str] = []
    for peer in manifest.validator_ids[:MAX_VALIDATORS_READ]:
        try:
            raw = await store.get(keys.seeds(peer), max_bytes=MAX_RECORD_BYTES)
            found += sources_in(raw, manifest.run_id, peer)
        except ObjectNotFoundError:
            continue
        except (ObjectTooLargeError, RemoteProtocolError) as error:
            _log.warning("the seeds of validator %s: %s", peer.short, error)
    return tuple(dict.fromkeys(found))
