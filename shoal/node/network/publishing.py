"""What this peer has in the DHT: its peer record, and whatever else it published.

Guarantees: the peer record says what the process says of itself, is renewed well before it
expires and after every start of the process, with sequences that grow also over restarts of the
node; other records come back after a restart for as long as they are valid.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from shoal.node.network import signed_records
from shoal.node.network.addresses import parse_address
from shoal.node.network.dht_records import PEER_KIND, read_record, record_key
from shoal.node.network.messages import DhtPut, Start, Status
from shoal.node.network.signed_records import MAX_ADDRESSES, PeerRecord
from shoal.protocol.identity import Identity
from shoal.storage.errors import StorageError

MAX_LIFE_ROUNDS: Final = 2.0
LIFE_ROUNDS: Final = 1.5
"""Half a round less than what is allowed: room for clocks that differ."""
_POLL_S: Final = 0.5
_MAX_POLLS: Final = 20

_log = logging.getLogger(__name__)

PutRecord = Callable[[DhtPut], Awaitable[None]]
GetStatus = Callable[[], Awaitable[Status]]


class Publisher:
    """Keeps a peer's records in the DHT.

    Args:
        options: Of the network process.
        identity: The peer.
        put: Stores a record.
        get_status: Asks the process how it can be reached.
        now_s: Unix seconds.

    Attributes:
        own: The peer record published last; None before, and where nobody can reach this peer.
    """

    def __init__(
        self,
        options: Start,
        identity: Identity,
        *,
        put: PutRecord,
        get_status: GetStatus,
        now_s: Callable[[], float],
    ) -> None:
        self._options = options
        self._identity = identity
        self._put = put
        self._get_status = get_status
        self._now_s = now_s
        self._records: dict[bytes, DhtPut] = {}
        self._last_sequence = 0
        self.own: DhtPut | None = None
        self._last_expiries_s: dict[bytes, int] = {}
        self._restarted = asyncio.Event()

    @property
    def life_s(self) -> float:
        """How long a record of ours lives, seconds."""
        return LIFE_ROUNDS * self._options.round_ms / 1000

    def to_put(self, value: bytes) -> DhtPut:
        """Make the request that publishes a record now.

        Args:
            value: An announcement or a signed statement of ours.

        Returns:
            The request, with key and expiry.

        Raises:
            RemoteProtocolError: It is none.
        """
        record = read_record(value)
        key = record_key(record.run_id, record.peer, record.kind)
        expires_at_s = record.expires_at_s or self._next_expiry_s(key)
        return DhtPut(key=key, value=value, expires_at_s=expires_at_s)

    def remember(self, request: DhtPut) -> None:
        """Publish it again after a restart."""
        self._records[request.key] = request

    def next_sequence(self) -> int:
        """A number that is larger than all before it, also those of earlier processes."""
        self._last_sequence = max(self._last_sequence + 1, int(self._now_s() * 1000))
        return self._last_sequence

    def restart(self) -> None:
        """A new process knows nothing: publish everything again."""
        self._restarted.set()

    async def run(self) -> None:
        """Publish and renew, for ever."""
        while True:
            try:
                status = await self._with_peers()
                self._restarted.clear()
                await self._publish_all(status)
                pause_s = self.life_s / 3 if status.routing_table_size else _POLL_S * _MAX_POLLS
            except StorageError as error:
                _log.warning("publishing own records: %s", error)
                pause_s = _POLL_S * _MAX_POLLS
            try:
                async with asyncio.timeout(min(pause_s, self.life_s / 3)):
                    await self._restarted.wait()
            except TimeoutError:
                continue

    async def _with_peers(self) -> Status:
        """Wait a little for the first peers, so that the records reach somebody."""
        status = await self._get_status()
        for _ in range(_MAX_POLLS):
            if status.routing_table_size:
                break
            await asyncio.sleep(_POLL_S)
            status = await self._get_status()
        return status

    async def _publish_all(self, status: Status) -> None:
        self.own = self.to_put(self._peer_record(status))
        await self._put(self.own)
        now_s = self._now_s()
        self._records = {key: one for key, one in self._records.items() if one.expires_at_s > now_s}
        for request in tuple(self._records.values()):
            try:
                await self._put(request)
            except StorageError as error:
                # Whoever has it already does not take it a second time.
                _log.debug("publishing again: %s", error)

    def _peer_record(self, status: Status) -> bytes:
        # None is a statement too: others can reach us over the connections that we open.
        addresses = [text for text in status.addresses if self._may_show(text)]
        key = record_key(self._options.run_id, self._identity.peer, PEER_KIND)
        record = PeerRecord(
            run_id=self._options.run_id,
            peer_key=self._identity.peer.key,
            sequence=self.next_sequence(),
            expires_at_s=self._next_expiry_s(key),
            libp2p_id=status.peer_id,
            addresses=tuple(addresses[:MAX_ADDRESSES]),
        )
        return signed_records.build(self._identity, record)

    def _next_expiry_s(self, key: bytes) -> int:
        # A store refuses what does not live longer than what it has.
        expires_at_s = int(self._now_s() + self.life_s)
        last_s = self._last_expiries_s.get(key, 0)
        # After the clock was set back nobody takes what would still live longer than that.
        if last_s < self._now_s() + MAX_LIFE_ROUNDS * self._options.round_ms / 1000:
            expires_at_s = max(expires_at_s, last_s + 1)
        self._last_expiries_s[key] = expires_at_s
        return expires_at_s

    def _may_show(self, text: str) -> bool:
        try:
            address = parse_address(text)
        except ValueError:
            return False
        return self._options.allow_private or address.is_public or address.is_name
