"""A network in memory: what peers published and serve, and one peer's client of it."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from shoal.node.network import signed_records
from shoal.node.network.dht_records import read_record
from shoal.node.network.downloads import Copies, Source
from shoal.node.network.errors import PeerUnavailableError, WrongBytesError
from shoal.node.network.fetching import MoreSources
from shoal.node.network.kept_objects import KeptObject, KeptObjects
from shoal.node.network.signed_records import RecordPointer
from shoal.protocol.identity import Identity, PeerId
from shoal.storage.errors import ObjectNotFoundError, ObjectSizeError
from shoal.storage.filling import Arrived


def source_of(peer: PeerId) -> Source:
    """Where a peer of this world is."""
    return (f"/ip4/127.0.0.1/tcp/1/p2p/Qm{peer.short}",)


class World:
    """The DHT and the peers.

    Attributes:
        served: By source: objects by id.
        records: The DHT: by peer and kind.
        away: Sources that do not answer.
        is_down: The network process of whoever asks is not there.
        num_looked: Look-ups, by peer and kind.
    """

    def __init__(self) -> None:
        self.served: dict[Source, dict[bytes, bytes]] = {}
        self.records: dict[tuple[PeerId, str], bytes] = {}
        self.away: set[Source] = set()
        self.is_down = False
        self.num_looked: Counter[tuple[PeerId, str]] = Counter()

    def publish(self, raw: bytes) -> None:
        """Put a record into the DHT."""
        record = read_record(raw)
        self.records[record.peer, record.kind] = raw

    def serve(self, peer: PeerId, object_id: bytes, data: bytes) -> None:
        """Let a peer serve an object."""
        self.served.setdefault(source_of(peer), {})[object_id] = data

    def point(self, validator: Identity, run_id: bytes, round_id: int, raw: bytes) -> None:
        """Let a validator point to a record."""
        pointer = RecordPointer(
            run_id=run_id,
            peer_key=validator.peer.key,
            sequence=round_id,
            expires_at_s=1,
            round_id=round_id,
            record_sha256=hashlib.sha256(raw).digest(),
            num_bytes=len(raw),
        )
        self.publish(signed_records.build(validator, pointer))


class WorldClient:
    """What a node uses of `NetworkClient`."""

    life_s = 90.0

    def __init__(self, world: World, folder: Path, me: PeerId) -> None:
        self.world = world
        self.me = me
        self.objects = KeptObjects(folder / "objects", 1 << 20)
        self.num_fetched = 0
        self.known: tuple[PeerId, ...] = ()
        self.introduced: list[Source] = []
        self._sequence = 0

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def queue_s(self, _: int) -> float:
        return 0.0

    def kept(self, object_id: bytes) -> KeptObject | None:
        return self.objects.find(object_id)

    async def serve(self, object_id: bytes, data: bytes) -> None:
        self.objects.add(object_id, self.objects.write(object_id, data))
        self.world.serve(self.me, object_id, bytes(data))

    async def withdraw(self, object_id: bytes) -> None:
        self.objects.drop(object_id)

    async def publish(self, raw: bytes) -> None:
        self._check()
        self.world.publish(raw)

    async def look_up(self, peer: PeerId, kind: str, _: float) -> bytes | None:
        self._check()
        self.world.num_looked[peer, kind] += 1
        return self.world.records.get((peer, kind))

    async def find_peer(self, peer: PeerId, _: float) -> Source | None:
        self._check()
        source = source_of(peer)
        return source if source in self.world.served else None

    async def introduce(self, source: Source) -> None:
        self.introduced.append(source)

    async def known_peers(self) -> tuple[PeerId, ...]:
        return self.known

    async def ask_size(self, object_id: bytes, source: Source, _: float) -> int:
        return len(self._object(object_id, source))

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
        assert timeout_s > 0
        error: Exception = ObjectNotFoundError("no source", "")
        for source in (*sources, *(await more() if more else ())):
            try:
                data = self._object(object_id, source)
            except (ObjectNotFoundError, PeerUnavailableError) as found:
                error = found
                continue
            if len(data) != num_bytes:
                error = ObjectSizeError(f"{len(data)} bytes", "")
                continue
            if named_by_hash and hashlib.sha256(data).digest() != object_id:
                error = WrongBytesError("other bytes", "")
                continue
            is_copy = copies is not None and source not in copies.authors
            if copies and is_copy and not copies.check(object_id, memoryview(data)):
                error = WrongBytesError("not what its author signed", "")
                continue
            self.num_fetched += 1
            return data
        raise error

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
        data = await self.fetch(
            object_id,
            sources,
            num_bytes=room.nbytes,
            timeout_s=timeout_s,
            named_by_hash=named_by_hash,
            more=more,
            copies=copies,
        )
        room[:] = data
        arrived(len(data))

    def _object(self, object_id: bytes, source: Source) -> bytes:
        self._check()
        if source in self.world.away or source not in self.world.served:
            raise PeerUnavailableError("away", "")
        found = self.world.served[source].get(object_id)
        if found is None:
            raise ObjectNotFoundError("not served", "")
        return found

    def _check(self) -> None:
        if self.world.is_down:
            raise PeerUnavailableError("no network process", "")
