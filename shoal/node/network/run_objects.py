"""The network as the store of a whole run: neither object store nor HTTP.

    manifest                     the object with the run's id
    blobs/<sha256>               the object with that id, checked by it
    copies/<payload id>          the object with that id
    peers/<key>/payloads/<r>     the payload that the peer announced for the round, by its id
    rounds/<r>/record            `record_finder`
    rounds/<r>/attending, /published/<key>    `notice_board`

Guarantees: those of `object_store`, with these differences. A put of an announcement or a record
publishes it, a put of a payload begins to serve it; create-once is decided by what this peer itself
can see. `list` knows the announcements of the last rounds only. What others gave was checked where
it can be here (blobs by hash, manifest by run id, announcements and records by signature), the rest
is for its reader, who says what is to be served to others (`serve_again`).
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from shoal.node.network.client import NetworkClient
from shoal.node.network.downloads import Source
from shoal.node.network.head_pointer import HeadPointer
from shoal.node.network.hedging import first_answer
from shoal.node.network.ledger import Ledger
from shoal.node.network.notice_board import NoticeBoard
from shoal.node.network.p2p_store import FindSources, P2PStore
from shoal.node.network.payload_copies import is_authentic
from shoal.node.network.peer_book import PeerBook
from shoal.node.network.record_finder import RecordFinder
from shoal.node.network.run_keys import RunKey, RunKeyKind, parse_run_key
from shoal.protocol.errors import InvalidManifestError, RemoteProtocolError
from shoal.protocol.identity import PeerId
from shoal.protocol.manifest import MAX_MANIFEST_BYTES, read_manifest
from shoal.protocol.payload_header import peek
from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageUnavailableError,
)
from shoal.storage.filling import Arrived, require_length
from shoal.storage.keys import check_key, check_prefix
from shoal.storage.object_store import (
    DEFAULT_PAGE_KEYS,
    ListPage,
    ObjectInfo,
    check_limit,
    check_range,
    page_of,
    range_num_bytes,
)
from shoal.storage.progress import note_moved

BLOB_TIMEOUT_S: Final = 3600.0
"""A stalled peer is given up long before, by its rate."""


class P2PRunStore:
    """A run's objects, wherever peers have them.

    Args:
        network: A started client.
        run_id: The run.
        book: Whom to ask.
        board: Announcements.
        records: Records.
        ledger: Keeps manifest and records.
        head: The pointer of a validator; None: this node may not write records.
        copies_in_folder: Whether the network process serves copies from their store's own folder.
    """

    def __init__(
        self,
        network: NetworkClient,
        run_id: bytes,
        *,
        book: PeerBook,
        board: NoticeBoard,
        records: RecordFinder,
        ledger: Ledger,
        head: HeadPointer | None,
        copies_in_folder: bool,
    ) -> None:
        self._network = network
        self._run_id = run_id
        self._book = book
        self._board = board
        self._records = records
        self._ledger = ledger
        self._head = head
        self._copies_in_folder = copies_in_folder
        self._blobs = P2PStore(network, self._sources, timeout_s=BLOB_TIMEOUT_S)
        self._payloads = P2PStore(
            network,
            self._author,
            named_by_hash=False,
            find_more=self._sources,
            check=is_authentic,
        )

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """Publish or serve an object.

        Args:
            key: Where to put it.
            data: The whole object.
            overwrite: Replace what is there.

        Raises:
            ObjectExistsError: Another announcement or record is known, and `overwrite` is false.
            AccessDeniedError: This is not for this node to write.
            StorageError: The network or the disk did not take it.
        """
        check_key(key)
        raw, wanted = bytes(data), parse_run_key(self._run_id, key)
        if wanted is not None and wanted.kind.is_announcement and wanted.peer is not None:
            await self._announce(key, wanted, wanted.peer, raw, overwrite=overwrite)
        elif wanted is not None and wanted.kind is RunKeyKind.RECORD and self._head is not None:
            await self._put_record(key, wanted.round_id, raw, self._head, overwrite=overwrite)
        elif wanted is not None and wanted.kind is RunKeyKind.COPY:
            if not self._copies_in_folder:
                await self._network.serve(wanted.object_id, raw)
        elif wanted is not None and wanted.kind is RunKeyKind.PAYLOAD:
            await self._network.serve(_payload_id(key, raw), raw)
        elif wanted is not None and wanted.kind is RunKeyKind.MANIFEST:
            await self._ledger.write(self._run_id, raw)
        else:
            raise AccessDeniedError(f"object {key!r} is not for this node to publish", key)

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        """Read an object or a range of it; never more than `max_bytes`.

        Args:
            key: Which object.
            max_bytes: The most that the caller can take.
            start: First byte of the range.
            length: Length of the range; the whole is fetched for it, since only that is checked.

        Returns:
            Exactly the bytes asked for.

        Raises:
            ObjectNotFoundError: Nobody who was asked has it.
            ObjectTooLargeError: More than `max_bytes` were asked for.
            ObjectSizeError: The range leaves the object.
            StorageUnavailableError: Nobody answers.
            ValueError: A number is negative.
        """
        check_range(max_bytes=max_bytes, start=start, length=length)
        wanted = self._wanted(key)
        if wanted.kind is RunKeyKind.BLOB:
            is_part = (start, length) != (0, None)
            whole = await self._blob(key, wanted, 2**53 if is_part else max_bytes)
        elif wanted.kind in (RunKeyKind.COPY, RunKeyKind.PAYLOAD):
            name = await self._payload_name(key, wanted)
            return await self._payloads.get(name, max_bytes=max_bytes, start=start, length=length)
        else:
            whole = await self._read_small(key, wanted)
            note_moved(len(whole))
        if (start, length) == (0, None) and len(whole) <= max_bytes:
            return whole
        size = range_num_bytes(key, len(whole), max_bytes=max_bytes, start=start, length=length)
        return whole[start : start + size]

    async def get_into(self, key: str, room: memoryview, arrived: Arrived) -> None:
        """Read a whole object into room of exactly its length; see `storage.filling`.

        Args:
            key: Which object.
            room: Where to put it.
            arrived: Told of the progress.

        Raises:
            ObjectTooLargeError: It is longer than the room.
            ObjectTooShortError: It is shorter.
            StorageError: As `get`.
        """
        wanted = self._wanted(key)
        if wanted.kind in (RunKeyKind.COPY, RunKeyKind.PAYLOAD):
            name = await self._payload_name(key, wanted)
            await self._payloads.get_into(name, room, arrived)
            return
        whole = await self.get(key, max_bytes=room.nbytes)
        require_length(key, len(whole), room)
        room[:] = whole
        arrived(len(whole))

    async def head(self, key: str) -> ObjectInfo:
        """Look at an object.

        Args:
            key: Which object.

        Returns:
            Its length, a claim where it is a blob or a payload that is not here; the time is now.

        Raises:
            ObjectNotFoundError: Nobody who was asked has it.
            StorageUnavailableError: Nobody answers.
        """
        wanted = self._wanted(key)
        if wanted.kind is RunKeyKind.BLOB:
            num_bytes = (await self._blobs.head(_named(wanted))).num_bytes
        elif wanted.kind in (RunKeyKind.COPY, RunKeyKind.PAYLOAD):
            name = await self._payload_name(key, wanted)
            num_bytes = (await self._payloads.head(name)).num_bytes
        else:
            num_bytes = len(await self._read_small(key, wanted))
        return ObjectInfo(key=key, num_bytes=num_bytes, modified_at_s=time.time())

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        """List the announcements of a round, as far as they are known after a short wait.

        Args:
            prefix: `<run>/rounds/<round>/attending/` or `.../published/`; others have no keys here.
            after: Only keys that sort after this one.
            limit: The most keys on the page.

        Returns:
            The page.

        Raises:
            InvalidKeyError: No valid key begins with `prefix` or `after`.
            ValueError: `limit` is below 1.
        """
        check_prefix(prefix)
        check_prefix(after or "")
        check_limit(limit)
        wanted = parse_run_key(self._run_id, prefix)
        if wanted is None or not wanted.kind.is_announcement or wanted.peer is not None:
            return ListPage(keys=(), next_after=None)
        peers = await self._board.peers(wanted.round_id, wanted.kind)
        keys = sorted(prefix + peer.key.hex() for peer in peers)
        return page_of([key for key in keys if key > (after or "")], limit)

    async def delete(self, key: str) -> None:
        """Serve a record, blob or payload no longer; idempotent. Others may have it.

        Args:
            key: Which object.

        Raises:
            StorageError: The network process or the disk did not do it.
        """
        check_key(key)
        wanted = parse_run_key(self._run_id, key)
        if wanted is not None and wanted.kind is RunKeyKind.RECORD:
            await self._records.drop(wanted.round_id)
        elif wanted is not None and wanted.object_id:
            await self._network.withdraw(wanted.object_id)

    async def serve_again(self, payload_id: bytes, raw: bytes | memoryview) -> None:
        """Serve a payload that was gathered and verified, so that it survives its author.

        Args:
            payload_id: Its id, 32 bytes.
            raw: All of it.

        Raises:
            StorageError: It is not served now.
            OSError: The disk did not take it.
        """
        if not self._copies_in_folder and self._network.kept(payload_id) is None:
            await self._network.serve(payload_id, raw)

    async def keep_record(self, round_id: int, raw: bytes) -> None:
        """Serve and point to a record that a validator's own store has.

        Raises:
            StorageError: It cannot be written.
        """
        if await self._records.kept(round_id) != raw:
            await self._records.keep(round_id, raw)
        if self._head is not None:
            self._head.show(round_id, raw)

    def payload_sources(self, address: str) -> FindSources:
        """Whom to ask for a payload when its announced address does not give it.

        Args:
            address: The announced one.
        """

        async def find(object_id: bytes) -> Sequence[Source]:
            current = None
            if self._board.author_of(object_id) is None:
                current = await self._book.current(address)
            others = await self._sources(object_id)
            return others if current is None else (current, *others)

        return find

    async def clock_s(self, clock_id: bytes) -> float:
        """The time of a validator, or of another peer, unix seconds.

        Raises:
            StorageUnavailableError: Nobody says it.
        """

        async def ask(source: Source) -> float:
            return await self._network.ask_size(clock_id, source, 10.0) / 1000

        try:
            return await first_answer([partial(ask, one) for one in await self._book.sources()])
        except ObjectNotFoundError as error:
            text = "no validator and no peer can be reached yet"
            raise StorageUnavailableError(text, "") from error

    def _wanted(self, key: str) -> RunKey:
        check_key(key)
        wanted = parse_run_key(self._run_id, key)
        if wanted is None:
            raise ObjectNotFoundError(f"the network has no object {key!r}", key)
        return wanted

    async def _author(self, object_id: bytes) -> tuple[Source, ...]:
        author = self._board.author_of(object_id)
        source = None if author is None else await self._book.find(author)
        return () if source is None else (source,)

    async def _sources(self, object_id: bytes) -> tuple[Source, ...]:
        author = self._board.author_of(object_id)
        return tuple(await self._book.sources(() if author is None else (author,)))

    async def _payload_name(self, key: str, wanted: RunKey) -> str:
        if wanted.kind is RunKeyKind.COPY:
            return _named(wanted)
        peer = wanted.peer
        notice = None
        if peer is not None:
            notice = await self._board.find(wanted.round_id, RunKeyKind.PUBLISHED, peer)
        if notice is None:
            raise ObjectNotFoundError(f"no announcement says what {key!r} is", key)
        return notice.payload_id.hex()

    async def _blob(self, key: str, wanted: RunKey, max_bytes: int) -> bytes:
        try:
            return await self._blobs.get(_named(wanted), max_bytes=max_bytes)
        except ObjectNotFoundError as error:
            # The manifest promises it: who has it has only not been reached yet.
            raise StorageUnavailableError(f"nobody in reach has {key!r} yet", key) from error

    async def _read_small(self, key: str, wanted: RunKey) -> bytes:
        if wanted.kind is RunKeyKind.RECORD:
            return await self._records.get(wanted.round_id)
        if wanted.kind is RunKeyKind.MANIFEST:
            return await self._manifest(key)
        notice = None
        if wanted.peer is not None:
            notice = await self._board.find(wanted.round_id, wanted.kind, wanted.peer)
        if notice is None:
            raise ObjectNotFoundError(f"nothing announced under {key!r} is known", key)
        return notice.raw

    async def _manifest(self, key: str) -> bytes:
        kept = await self._ledger.read(self._run_id, MAX_MANIFEST_BYTES)
        if kept is not None:
            return kept
        store = P2PStore(self._network, self._sources, named_by_hash=False)
        raw = await store.get(self._run_id.hex(), max_bytes=MAX_MANIFEST_BYTES)
        try:
            # Of a later version the run's id proves nothing: anybody can write it there.
            found = read_manifest(raw).manifest_hash
        except (InvalidManifestError, RemoteProtocolError) as error:
            raise StorageUnavailableError(f"a peer gives no manifest: {error}", key) from error
        if found != self._run_id:
            raise StorageUnavailableError(f"a peer gives the manifest of {found.hex()}", key)
        await self._ledger.write(self._run_id, raw)
        return raw

    async def _announce(
        self, key: str, wanted: RunKey, peer: PeerId, raw: bytes, *, overwrite: bool
    ) -> None:
        known = await self._board.find(wanted.round_id, wanted.kind, peer)
        if known is not None and known.raw != raw and not overwrite:
            raise ObjectExistsError(f"{key!r}: another announcement is known", key)
        try:
            await self._board.put(wanted.round_id, wanted.kind, peer, raw)
        except RemoteProtocolError as error:
            raise AccessDeniedError(f"{key!r}: {error}", key) from error

    async def _put_record(
        self, key: str, round_id: int, raw: bytes, head: HeadPointer, *, overwrite: bool
    ) -> None:
        kept = await self._records.kept(round_id)
        if kept is not None and kept != raw and not overwrite:
            raise ObjectExistsError(f"{key!r}: another record is kept", key)
        await self._records.keep(round_id, raw)
        head.show(round_id, raw)


def _named(wanted: RunKey) -> str:
    return wanted.object_id.hex()


def _payload_id(key: str, raw: bytes) -> bytes:
    try:
        return peek(raw).payload_id
    except RemoteProtocolError as error:
        raise AccessDeniedError(f"{key!r} takes payloads only: {error}", key) from error
