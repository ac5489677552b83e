"""Who is in the run, and where they can be reached now.

With a roster these are its peers and the validators. In an open run this peer shows itself to the
validators, which say whom they know; a validator takes that from the records that pass its part of
the DHT. Addresses come from the peers' own signed records.

Guarantees: at most so many peers, look-ups and sources; an answer is kept for some seconds, so that
polls do not flood the DHT. Everything here is a hint. Does not fetch the run's objects.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from shoal.node.network.client import NetworkClient
from shoal.node.network.downloads import Source
from shoal.node.network.object_ids import MAX_KNOWN_PEERS, known_peers_id, read_peer_keys
from shoal.protocol.identity import KEY_BYTES, PeerId
from shoal.storage.errors import StorageError

MAX_SOURCES: Final = 8
"""Peers that are asked for an object besides its author and the validators."""
MAX_SCANNED: Final = 64
LOOK_UP_TIMEOUT_S: Final = 10.0
_KEPT_S: Final = 5.0
_MISSING_S: Final = 1.0
_LEARN_TIMEOUT_S: Final = 20.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    source: Source | None
    until_s: float


class PeerBook:
    """The peers of a run.

    Args:
        network: A started client.
        run_id: The run.
        me: This peer; never in the book.
        validators: Always in it, and asked first.
        roster: Who else is in it; None: an open run.
        now_s: A monotonic clock.
    """

    def __init__(
        self,
        network: NetworkClient,
        *,
        run_id: bytes,
        me: PeerId,
        validators: tuple[PeerId, ...],
        roster: frozenset[PeerId] | None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._network = network
        self._list_id = known_peers_id(run_id)
        self._me = me
        self._is_validator = me in validators
        self.validators = tuple(peer for peer in validators if peer != me)
        self._roster = roster
        self._learned: tuple[PeerId, ...] = ()
        self._now_s = now_s
        self._found: dict[PeerId, _Found] = {}

    @property
    def known(self) -> tuple[PeerId, ...]:
        """Everybody but this peer, validators first."""
        others = self._learned if self._roster is None else sorted(self._roster, key=_by_key)
        return tuple(
            peer for peer in dict.fromkeys((*self.validators, *others)) if peer != self._me
        )

    async def find(self, peer: PeerId) -> Source | None:
        """Where a peer says that it can be reached.

        Raises:
            PeerUnavailableError: The network process does not answer in time.
        """
        kept = self._found.get(peer)
        if kept is not None and kept.until_s > self._now_s():
            return kept.source
        source = await self._network.find_peer(peer, LOOK_UP_TIMEOUT_S)
        kept_s = _MISSING_S if source is None else _KEPT_S
        if len(self._found) >= 2 * MAX_KNOWN_PEERS:
            self._found.clear()
        self._found[peer] = _Found(source, self._now_s() + kept_s)
        return source

    async def sources(self, first: Iterable[PeerId] = ()) -> list[Source]:
        """Whom to ask for an object: these first, then the validators, then some others.

        Raises:
            PeerUnavailableError: The network process does not answer in time.
        """
        others = [peer for peer in self.known if peer not in self.validators]
        some = random.sample(others, min(len(others), MAX_SOURCES))
        wanted = dict.fromkeys((*first, *self.validators, *some))
        wanted.pop(self._me, None)
        found = await asyncio.gather(*(self.find(peer) for peer in wanted))
        return [source for source in found if source is not None]

    async def current(self, address: str) -> Source | None:
        """Where the peer of an old address is now, by the libp2p id at the address's end.

        Raises:
            PeerUnavailableError: The network process does not answer in time.
        """
        _, _, libp2p_id = address.rpartition("/p2p/")
        found = await asyncio.gather(*(self.find(peer) for peer in self.known[:MAX_SCANNED]))
        for source in found:
            if libp2p_id and source and source[0].endswith(f"/p2p/{libp2p_id}"):
                return source
        return None

    async def learn_for_ever(self, every_s: float) -> None:
        """In an open run: show this peer to the validators, and learn whom they know."""
        while self._roster is None:
            try:
                await self._learn()
            except (StorageError, OSError) as error:
                _log.debug("learning who is in the run: %s", error)
            await asyncio.sleep(every_s)

    async def _learn(self) -> None:
        if self._is_validator:
            self._learned = await self._network.known_peers()
            await self._network.serve(self._list_id, b"".join(one.key for one in self._learned))
        # At once: one that cannot be reached must not delay the others.
        await asyncio.gather(*map(self._learn_from, self.validators))

    async def _learn_from(self, validator: PeerId) -> None:
        try:
            source = await self.find(validator)
            if source is not None:
                await self._meet(source)
        except StorageError as error:
            _log.debug("validator %s: %s", validator.short, error)

    async def _meet(self, source: Source) -> None:
        try:
            await self._network.introduce(source)
        except StorageError as error:
            # It has it already, or nobody can reach this peer: both are no reason not to ask.
            _log.debug("showing this peer to a validator: %s", error)
        num_bytes = await self._network.ask_size(self._list_id, source, _LEARN_TIMEOUT_S)
        if not 0 < num_bytes <= KEY_BYTES * MAX_KNOWN_PEERS:
            return
        raw = await self._network.fetch(
            self._list_id,
            [source],
            num_bytes=num_bytes,
            timeout_s=_LEARN_TIMEOUT_S,
            named_by_hash=False,
        )
        merged = dict.fromkeys((*read_peer_keys(raw), *self._learned))
        self._learned = tuple(merged)[:MAX_KNOWN_PEERS]


def _by_key(peer: PeerId) -> bytes:
    return peer.key
