"""A run over the network: from a network process to the store of a run's objects.

    only the network     `P2PRunStore`: no HTTP, no bucket
    both                 `MergedStore`: a peer uses whichever answers; a validator's own store stays
                         the truth, and what is only on one side is copied to the other

Guarantees: a validator serves every record that its own store has, also those of before it had a
network, and keeps the pointer to the last one alive; everything that runs in the background ends
with the context. Does not start the network process.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.node.config import NodeConfig
from shoal.node.network.client import NetworkClient
from shoal.node.network.head_pointer import HeadPointer
from shoal.node.network.ledger import Ledger
from shoal.node.network.notice_board import NoticeBoard
from shoal.node.network.object_ids import clock_id
from shoal.node.network.peer_book import PeerBook
from shoal.node.network.record_finder import RecordFinder
from shoal.node.network.run_keys import parse_run_key
from shoal.node.network.run_objects import P2PRunStore
from shoal.node.store_keys import StoreKeys
from shoal.protocol.identity import Identity, PeerId
from shoal.protocol.manifest import RunManifest
from shoal.storage.errors import ObjectNotFoundError, StorageError
from shoal.storage.merged import MergedStore
from shoal.storage.object_store import ObjectStore

_LEDGER_NAME: Final = "ledger"
_AGAIN_S: Final = 5.0
_SHORTEST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_PAUSES_PER_ROUND: Final = 60

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunNetwork:
    """The run's objects as the network has them, and joined with a store."""

    objects: P2PRunStore
    run: ObjectStore
    """What the node works with."""

    async def clock_s(self, run_id: bytes) -> float:
        """The time of a validator, or of another peer, unix seconds.

        Raises:
            StorageUnavailableError: nobody can be reached yet.
        """
        return await self.objects.clock_s(clock_id(run_id))


def served_folders(manifest: RunManifest, config: NodeConfig) -> tuple[str, ...]:
    """The folders whose files the network process serves by their names.

    Args:
        manifest: of the run.
        config: of this node.
    """
    state = Path(config.state_dir)
    folders = [_ledger_folder(config), state / "blobs"]
    if config.store.kind == "directory":
        run = Path(config.store.path) / manifest.run_id.hex()
        folders += [run / "blobs", run / "copies"]
    return tuple(map(str, folders))


def publishers(manifest: RunManifest) -> tuple[str, ...]:
    """The keys that may publish records in the DHT, hex: roster and validators; none: anyone."""
    if manifest.roster is None:
        return ()
    return tuple(sorted(peer.key.hex() for peer in manifest.roster.union(manifest.validator_ids)))


@asynccontextmanager
async def run_network(
    manifest: RunManifest,
    config: NodeConfig,
    identity: Identity,
    network: NetworkClient,
    store: ObjectStore | None,
) -> AsyncIterator[RunNetwork]:
    """Opens the run's objects on a started network.

    Args:
        manifest: of the run.
        config: of this node.
        identity: this node's.
        network: started.
        store: the node's other store of the run; None: it has none.

    Raises:
        OSError: the folder for records cannot be made.
    """
    validates = identity.peer in manifest.validator_ids
    pause_s = manifest.timing.round_seconds / _PAUSES_PER_ROUND
    pause_s = min(max(pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
    book = _make_book(manifest, identity.peer, network)
    board = NoticeBoard(network, book, manifest.payload_rules(), pause_s)
    ledger = Ledger(_ledger_folder(config))
    records = RecordFinder(network, book, ledger, manifest.record_rules(), pause_s)
    head = HeadPointer(network, manifest.run_id, identity) if validates else None
    objects = P2PRunStore(
        network,
        manifest.run_id,
        book=book,
        board=board,
        records=records,
        ledger=ledger,
        head=head,
        copies_in_folder=config.store.kind == "directory",
    )
    works = [book.learn_for_ever(10 * pause_s)]
    if head is not None:
        works.append(head.run())
    if validates and store is not None:
        works.append(_serve_old_records(manifest, store, objects))
    merged = None if store is None else _merge(manifest.run_id, store, objects, validates=validates)
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield RunNetwork(objects=objects, run=merged or objects)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for part in (board, records, merged):
            if part is not None:
                part.close()


def _ledger_folder(config: NodeConfig) -> Path:
    return Path(config.state_dir) / "network" / _LEDGER_NAME


def _make_book(manifest: RunManifest, me: PeerId, network: NetworkClient) -> PeerBook:
    return PeerBook(
        network,
        run_id=manifest.run_id,
        me=me,
        validators=manifest.validator_ids,
        roster=manifest.roster,
    )


def _merge(
    run_id: bytes, store: ObjectStore, objects: P2PRunStore, *, validates: bool
) -> MergedStore:
    def is_shared(key: str) -> bool:
        wanted = parse_run_key(run_id, key)
        return validates and wanted is not None and wanted.kind.is_announcement

    return MergedStore(store, objects, first_is_truth=validates, shares=is_shared)


async def _serve_old_records(
    manifest: RunManifest, store: ObjectStore, objects: P2PRunStore
) -> None:
    """Serves what a validator's store has from before; the last one becomes the head."""
    keys, limit = StoreKeys(manifest.run_id), manifest.limits.max_record_bytes
    round_id = 1
    while True:
        try:
            raw = await store.get(keys.record(round_id), max_bytes=limit)
            await objects.keep_record(round_id, raw)
        except ObjectNotFoundError:
            return
        except StorageError as error:
            _log.warning("record of round %d cannot be served yet: %s", round_id, error)
            await asyncio.sleep(_AGAIN_S)
        else:
            round_id += 1
