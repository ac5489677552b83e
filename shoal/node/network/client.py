"""The network as the node sees it.

    async with NetworkClient(options, identity) as network:
        await network.publish(announcement)
        record = await network.look_up(peer, kind)
        await network.serve(object_id, data)
        data = await network.fetch(object_id, sources, num_bytes=..., timeout_s=...)

Guarantees: every call has a time limit; the process behind it may end at any moment, is started
again, and is told again what to serve and to publish. `fetch` goes on at the byte where the last
source stopped, asks the next source beside one that is silent, and gives bytes only if they have
the hash they were asked for by (unless told that the id is no hash). What the process says is
checked again where it came from others.

Not done here: what the bytes mean; which peers to ask.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from shoal.node.network import finding_messages, messages, signed_records
from shoal.node.network.addresses import undialled
from shoal.node.network.connection import ChunkSink, Connection, ConnectionLostError
from shoal.node.network.dht_records import PEER_KIND, RecordRules, location, record_key
from shoal.node.network.downloads import Copies, Download, RoomSink, Source
from shoal.node.network.errors import PeerUnavailableError, RecordRefusedError
from shoal.node.network.fetching import Fetching, MoreSources
from shoal.node.network.kept_objects import KeptObject, KeptObjects
from shoal.node.network.messages import DhtPut, Start, Status
from shoal.node.network.object_ids import read_peer_keys
from shoal.node.network.pieces import Pieces
from shoal.node.network.publishing import Publisher
from shoal.node.network.reaching import SeedSource
from shoal.node.network.signed_records import PeerRecord
from shoal.node.network.supervisor import Supervisor
from shoal.node.network.waking import watch_for_gaps
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.identity import Identity, PeerId
from shoal.storage.errors import StorageError
from shoal.storage.filling import Arrived

DEFAULT_TIMEOUT_S: Final = 60.0
DEFAULT_KEPT_BYTES: Final = 16 * 2**30
_MOST_AT_ONCE: Final = 32
"""Downloads that a round has; behind a cap the last one waits for all others."""
_MARGIN_S: Final = 5.0
"""The process ends a transfer itself; the socket's limit is only for when it does not."""
_BACK_S: Final = 20.0

_log = logging.getLogger(__name__)


class NetworkClient:
    """Starts the network process and asks it.

    Args:
        options: What the process is to be; its folder is ours alone.
        identity: This peer.
        max_kept_bytes: The most bytes of objects that are kept for others.
    """

    def __init__(
        self, options: Start, identity: Identity, *, max_kept_bytes: int = DEFAULT_KEPT_BYTES
    ) -> None:
        self._options = options
        self._supervisor = Supervisor(options, self._tell)
        self._kept = KeptObjects(Path(options.folder) / "objects", max_kept_bytes)
        self._rules = RecordRules(
            run_id=options.run_id, max_ahead_s=2 * options.round_ms / 1000, now_s=time.time
        )
        self._publisher = Publisher(
            options, identity, put=self._put, get_status=self.status, now_s=time.time
        )
        self._publishing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._seeds: dict[SeedSource, finding_messages.AddSeeds] = {}

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def num_starts(self) -> int:
        """How often the process was started."""
        return self._supervisor.num_starts

    @property
    def last_failure(self) -> str:
        """Why the process ended last; empty if it never did."""
        return self._supervisor.last_failure

    def start(self) -> None:
        """Start the process and keep it running; does not wait for it.

        Raises:
            OSError: The folder cannot be made.
        """
        self._supervisor.start()
        self._publishing = asyncio.create_task(self._publisher.run())
        self._watching = asyncio.create_task(watch_for_gaps(time.time, self._publish_again))

    async def close(self) -> None:
        """End the process, serve nothing any more; idempotent."""
        if self._publishing is not None and self._watching is not None:
            self._publishing.cancel()
            self._watching.cancel()
            await asyncio.wait((self._publishing, self._watching))
            self._publishing = self._watching = None
        await self._supervisor.stop()
        self._kept.clear()

    async def status(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Status:
        """What the process sees.

        Raises:
            PeerUnavailableError: The process does not answer in time.
        """
        return await self._supervisor.ask(messages.AskStatus(), Status, timeout_s)

    async def connect(self, source: Source, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Have a connection to a peer, and know its part of the DHT.

        Args:
            source: Its addresses, all with its libp2p id.
            timeout_s: How long to try.

        Raises:
            PeerUnavailableError: It does not answer there.
            ValueError: The addresses are not what they should be.
        """
        await self._supervisor.ask(messages.Connect(addresses=source), messages.Done, timeout_s)

    async def publish(self, value: bytes) -> None:
        """Put a record of ours into the DHT, and again after every restart of the process.

        Args:
            value: A signed announcement or statement, at most 1 KiB.

        Raises:
            RecordRefusedError: No node would take it; the message begins with the code.
            PeerUnavailableError: Nobody took it just now.
        """
        try:
            request = self._publisher.to_put(value)
        except RemoteProtocolError as error:
            raise RecordRefusedError(str(error), "") from error
        await self._put(request)
        self._publisher.remember(request)

    async def look_up(
        self, peer: PeerId, kind: str, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bytes | None:
        """Find a peer's record of a kind; only a hint, it may be an old one.

        Args:
            peer: Whose.
            kind: One of `dht_records.KINDS`.
            timeout_s: How long to look.

        Returns:
            The record, signed by the peer for this run; None if none is found.

        Raises:
            PeerUnavailableError: The process does not answer in time.
        """
        key = record_key(self._options.run_id, peer, kind)
        found = await self._supervisor.ask(messages.DhtGet(key=key), messages.Found, timeout_s)
        if not found.value:
            return None
        try:
            self._rules.check(location(key), found.value, found.expires_at_s)
        except RemoteProtocolError:
            return None
        return found.value

    async def add_seeds(
        self, source: SeedSource, texts: tuple[str, ...], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Name the peers that a source knows, now and after every restart of the process.

        Args:
            source: Who names them.
            texts: Multiaddrs with ids, or /dnsaddr/ ones.
            timeout_s: How long to wait for the process.

        Raises:
            PeerUnavailableError: The process does not answer in time.
        """
        request = finding_messages.AddSeeds(source=source, addresses=texts)
        self._seeds[source] = request
        await self._supervisor.ask(request, messages.Done, timeout_s)

    async def probe_seed(
        self, source: SeedSource, text: str, timeout_s: float
    ) -> finding_messages.Probed:
        """Try one seed, an address with an id, step by step.

        Raises:
            PeerUnavailableError: The process does not answer in time.
            ValueError: It is no such address.
        """
        request = finding_messages.ProbeSeed(
            source=source, address=text, timeout_ms=int(timeout_s * 1000)
        )
        return await self._supervisor.ask(request, finding_messages.Probed, timeout_s + _MARGIN_S)

    async def ask_reach(self, timeout_s: float) -> finding_messages.Reach:
        """Ask connected peers whether they can dial this one.

        Raises:
            PeerUnavailableError: No answer in time.
        """
        request = finding_messages.AskReach(timeout_ms=int(timeout_s * 1000))
        return await self._supervisor.ask(request, finding_messages.Reach, timeout_s + _MARGIN_S)

    @property
    def own_record(self) -> bytes | None:
        """Our signed peer record, as published last; None where nobody can reach this peer."""
        own = self._publisher.own
        return None if own is None else own.value

    async def introduce(self, source: Source, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Give a peer our peer record, so that it knows us without having looked for us.

        Args:
            source: Its addresses, all with its libp2p id.
            timeout_s: How long to try.

        Raises:
            PeerUnavailableError: It does not take it, or there is no record yet.
        """
        own = self._publisher.own
        if own is None:
            raise PeerUnavailableError("this peer has no address that others may see", "")
        request = messages.DhtGive(
            addresses=source, key=own.key, value=own.value, expires_at_s=own.expires_at_s
        )
        await self._supervisor.ask(request, messages.Done, timeout_s)

    async def known_peers(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> tuple[PeerId, ...]:
        """Say whose records have passed our part of the DHT lately; only hints.

        Raises:
            PeerUnavailableError: The process does not answer in time.
        """
        found = await self._supervisor.ask(messages.AskPeers(), messages.Peers, timeout_s)
        return read_peer_keys(found.keys)

    def next_sequence(self) -> int:
        """A number for a record of ours, larger than all before it."""
        return self._publisher.next_sequence()

    @property
    def life_s(self) -> float:
        """How long a record of ours lives, seconds."""
        return self._publisher.life_s

    async def find_peer(self, peer: PeerId, timeout_s: float = DEFAULT_TIMEOUT_S) -> Source | None:
        """Find where a peer can be reached.

        Args:
            peer: Which.
            timeout_s: How long to look.

        Returns:
            Its addresses with its libp2p id, or only the id if nobody can dial it; None if it has
            published nothing.

        Raises:
            PeerUnavailableError: The process does not answer in time.
        """
        value = await self.look_up(peer, PEER_KIND, timeout_s)
        statement = None if value is None else signed_records.read(value).statement
        if not isinstance(statement, PeerRecord):
            return None
        places = tuple(f"{place}/p2p/{statement.libp2p_id}" for place in statement.addresses)
        return places or (undialled(statement.libp2p_id),)

    def kept(self, object_id: bytes) -> KeptObject | None:
        """Say whether this peer serves an object, and from which file."""
        return self._kept.find(object_id)

    async def serve(
        self, object_id: bytes, data: bytes | memoryview, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Give an object to whoever asks for its id, until `withdraw` or `close`.

        Args:
            object_id: 32 bytes.
            data: The object; copied to a file. The oldest objects make room for it.
            timeout_s: How long to wait for the process.

        Raises:
            StorageFullError: It is larger than what may be kept in all.
            PeerUnavailableError: The process is not there yet; it serves the object once it is.
            OSError: The file cannot be written.
        """
        for gone in self._kept.make_room(len(data)):
            await self._supervisor.ask(messages.Withdraw(object_id=gone), messages.Done, timeout_s)
        kept = await asyncio.to_thread(self._kept.write, object_id, data)
        await self._serve(object_id, kept, timeout_s)

    async def serve_file(
        self, object_id: bytes, path: Path, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """As `serve`, from a file of the caller's, which must stay as it is."""
        num_bytes = (await asyncio.to_thread(path.stat)).st_size
        kept = KeptObject(path, num_bytes, is_ours=False)
        await self._serve(object_id, kept, timeout_s)

    async def withdraw(self, object_id: bytes, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Serve an object no longer; idempotent.

        Raises:
            PeerUnavailableError: The process does not answer in time.
        """
        self._kept.drop(object_id)
        await self._supervisor.ask(messages.Withdraw(object_id=object_id), messages.Done, timeout_s)

    def queue_s(self, num_bytes: int) -> float:
        """How much longer a download takes behind our own cap, if many share it.

        Args:
            num_bytes: Of the object.

        Returns:
            Seconds; 0 without a cap.
        """
        cap_bytes_per_s = self._options.download_bytes_per_s
        return _MOST_AT_ONCE * num_bytes / cap_bytes_per_s if cap_bytes_per_s else 0.0

    async def allow_uploads(self, *, allowed: bool, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Say whether payloads are given away; records always are.

        Args:
            allowed: False when this node's quota is used up.
            timeout_s: How long to wait for the process.

        Raises:
            PeerUnavailableError: The process does not answer in time.
        """
        request = messages.AllowUploads(allowed=allowed)
        await self._supervisor.ask(request, messages.Done, timeout_s)

    async def ask_size(self, object_id: bytes, source: Source, timeout_s: float) -> int:
        """Ask a peer how long an object is.

        Returns:
            What it says.

        Raises:
            ObjectNotFoundError: It does not serve it.
            PeerUnavailableError: It does not answer in time.
        """
        timeout_ms = int(timeout_s * 1000)
        request = messages.AskSize(addresses=source, object_id=object_id, timeout_ms=timeout_ms)
        return (await self._supervisor.ask(request, messages.Size, timeout_s + _MARGIN_S)).num_bytes

    async def fetch(
        self,
        object_id: bytes,
        sources: Sequence[Source],
        *,
        num_bytes: int,
        timeout_s: float,
        named_by_hash: bool = True,
        more: MoreSources | None = None,
        copies: Copies | None = None,
    ) -> bytes:
        """Get an object into memory; it is not served by this.

        Args:
            object_id: 32 bytes.
            sources: Peers that may have it, the best first.
            num_bytes: Its exact length.
            timeout_s: For all of it.
            named_by_hash: Whether the id is the SHA-256 of the bytes; if not, the caller checks.
            more: Finds other sources, when these do not give it or are silent.
            copies: How to judge what others than its author give.

        Returns:
            The object.

        Raises:
            ObjectNotFoundError: No source serves it.
            ObjectSizeError: The last source that has it has another length.
            WrongBytesError: Every source that had it sent other bytes.
            PeerUnavailableError: Not within the time.
        """
        room = memoryview(bytearray(num_bytes))
        await self.fetch_into(
            object_id,
            sources,
            room,
            lambda _: None,
            timeout_s=timeout_s,
            named_by_hash=named_by_hash,
            more=more,
            copies=copies,
        )
        return bytes(room)

    async def fetch_into(
        self,
        object_id: bytes,
        sources: Sequence[Source],
        room: memoryview,
        arrived: Arrived,
        *,
        timeout_s: float,
        named_by_hash: bool = True,
        more: MoreSources | None = None,
        copies: Copies | None = None,
    ) -> None:
        """As `fetch`, into room of exactly its length; it is not served before `serve` is called.

        Args:
            object_id: 32 bytes.
            sources: Peers that may have it, the best first.
            room: Where to put it.
            arrived: Told of the progress (`storage.filling`).
            timeout_s: For all of it.
            named_by_hash: Whether the id is the SHA-256 of the bytes; if not, the caller checks.
            more: Finds other sources, when these do not give it or are silent.
            copies: How to judge what others than its author give.
        """
        sink = RoomSink(room, arrived)
        download = Download(
            object_id, room.nbytes, named_by_hash=named_by_hash, sink=sink, copies=copies
        )
        pieces = Pieces(download, self._ask_part)
        await Fetching(download, sources, pieces.ask, more).run(timeout_s)

    async def _ask_part(self, request: messages.Fetch, left_s: float, take: ChunkSink) -> None:
        connection = await self._supervisor.connection(left_s)
        await connection.ask(request, left_s + _MARGIN_S, take)

    def _publish_again(self) -> None:
        """After a sleep our records have expired: now, and when the peers are back."""
        self._publisher.restart()
        asyncio.get_running_loop().call_later(_BACK_S, self._publisher.restart)

    async def _put(self, request: DhtPut) -> None:
        await self._supervisor.ask(request, messages.Done, DEFAULT_TIMEOUT_S)

    async def _serve(self, object_id: bytes, kept: KeptObject, timeout_s: float) -> None:
        self._kept.add(object_id, kept)
        await self._supervisor.ask(_to_serve(object_id, kept), messages.Done, timeout_s)

    async def _tell(self, connection: Connection, _: Status) -> None:
        """Tell a new process what the last one knew."""
        for object_id, kept in self._kept.items():
            try:
                await connection.ask(_to_serve(object_id, kept), DEFAULT_TIMEOUT_S)
            except ConnectionLostError:
                raise
            except (StorageError, ValueError) as error:
                _log.warning("%s is served no longer: %s", kept.path, error)
                self._kept.drop(object_id)
        for request in self._seeds.values():
            await connection.ask(request, DEFAULT_TIMEOUT_S)
        self._publisher.restart()


def _to_serve(object_id: bytes, kept: KeptObject) -> messages.Serve:
    return messages.Serve(object_id=object_id, path=str(kept.path), num_bytes=kept.num_bytes)
