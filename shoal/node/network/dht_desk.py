"""The network process's dealings with the DHT: what it asks there, and what it lets pass.

Guarantees: a record is kept, handed on or found only if it passes `dht_records`; every request ends
within a time limit; nothing that others store raises here.
"""

import asyncio
import itertools
import logging
import random
import time
from collections import Counter
from typing import Final, TypeAlias

from shoal.node.network import messages
from shoal.node.network.addresses import parse_peer
from shoal.node.network.dht_records import RecordRules, location
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.libp2p import Libp2p
from shoal.node.network.messages import Answer, Start
from shoal.node.network.object_ids import MAX_KNOWN_PEERS
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.protocol.identity import PeerId

DHT_TIMEOUT_S: Final = 30.0
_REJOIN_S: Final = 5.0
_REFRESH_EVERY: Final = 6
_MAX_REJOINED: Final = 4
"""Some of the connected peers are no DHT nodes at all, and are asked in vain."""

DhtRequest: TypeAlias = messages.DhtPut | messages.DhtGet | messages.DhtGive | messages.AskPeers

_log = logging.getLogger(__name__)


class DhtDesk:
    """Answers the requests that concern the DHT.

    Args:
        options: Of the process.

    Attributes:
        host: What reaches the DHT; to be set before `do` and `refresh`.
        refused: Refused records by code.
    """

    def __init__(self, options: Start) -> None:
        self._options = options
        self.refused: Counter[str] = Counter()
        self._rules = RecordRules(
            run_id=options.run_id,
            max_ahead_s=2 * options.round_ms / 1000,
            roster=_to_roster(options.roster),
            now_s=time.time,
        )
        self.host: Libp2p

    def may_store(self, place: bytes, value: bytes, expires_at_s: float) -> bool:
        """Whether the DHT may have a record here."""
        try:
            self._rules.check(place, value, expires_at_s)
        except RemoteProtocolError as error:
            self.refused[error.code] += 1
            level = logging.WARNING if error.code == ErrorCode.E_EQUIVOCATION else logging.DEBUG
            _log.log(level, "record refused: %s", error)
            return False
        return True

    async def do(self, request: DhtRequest) -> Answer:
        """Answer a request.

        Raises:
            RemoteProtocolError: A record breaks a rule.
            PeerUnavailableError: Nobody has taken a record.
            OSError: A peer cannot be reached.
        """
        async with asyncio.timeout(DHT_TIMEOUT_S):
            match request:
                case messages.DhtPut():
                    await self._put(request)
                case messages.DhtGet():
                    return await self._get(request.key)
                case messages.DhtGive():
                    await self._give(request)
                case messages.AskPeers():
                    peers = self._rules.peers()[:MAX_KNOWN_PEERS]
                    return messages.Peers(keys=b"".join(peer.key for peer in peers))
        return messages.Done()

    async def refresh_for_ever(self) -> None:
        """Drop nodes that no longer answer, and take back connected ones that were dropped."""
        for number in itertools.count(1):
            await asyncio.sleep(_REJOIN_S)
            try:
                async with asyncio.timeout(DHT_TIMEOUT_S):
                    await self._rejoin()
                    if number % _REFRESH_EVERY == 0:
                        await self.host.refresh()
            except OSError as error:
                _log.debug("refreshing the routing table: %s", error)

    async def _rejoin(self) -> None:
        strangers = await self.host.strangers()
        some = random.sample(strangers, min(len(strangers), _MAX_REJOINED))
        await asyncio.gather(*(self.host.join(one) for one in some))

    async def _put(self, request: messages.DhtPut) -> None:
        self._rules.check(location(request.key), request.value, request.expires_at_s)
        if not await self.host.put(request.key, request.value, request.expires_at_s):
            raise PeerUnavailableError("no DHT node has taken the record", request.key.hex())

    async def _get(self, key: bytes) -> messages.Found:
        found = await self.host.get(key)
        if found is None:
            return messages.Found()
        return messages.Found(value=found.value, expires_at_s=int(found.expires_at_s))

    async def _give(self, request: messages.DhtGive) -> None:
        private = self._options.allow_private
        libp2p_id, addresses = parse_peer(request.addresses, allow_private=private)
        await self.host.dial(libp2p_id, addresses)
        if not await self.host.give(libp2p_id, request.key, request.value, request.expires_at_s):
            raise PeerUnavailableError("the peer has not taken the record", request.key.hex())


def _to_roster(keys: tuple[str, ...]) -> frozenset[PeerId] | None:
    return frozenset(PeerId(bytes.fromhex(key)) for key in keys) or None
