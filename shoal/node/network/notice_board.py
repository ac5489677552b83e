"""What peers announce, by way of the DHT: who attends a round, whose payload is there.

Guarantees: what is shown was signed by the peer under whose name it stands, for the round it stands
under; memory is bounded by the known peers and a few rounds. What was seen once stays for its
round, also when the DHT has forgotten it. Does not check what else an announcement must be.
"""

import logging
from dataclasses import dataclass
from typing import Final

from shoal.node.network.client import NetworkClient
from shoal.node.network.dht_records import ATTENDING_KIND, PUBLISHED_KIND
from shoal.node.network.look_ups import LookUps
from shoal.node.network.peer_book import LOOK_UP_TIMEOUT_S, PeerBook
from shoal.node.network.run_keys import RunKeyKind
from shoal.protocol.announcement import read_announcement
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.protocol.identity import PeerId
from shoal.protocol.payload import PayloadRules

KEPT_ROUNDS: Final = 3
MAX_WATCHED: Final = 256
"""Peers that are looked up for one poll."""
WAIT_S: Final = 1.5

_KINDS: Final = {RunKeyKind.ATTENDING: ATTENDING_KIND, RunKeyKind.PUBLISHED: PUBLISHED_KIND}

_log = logging.getLogger(__name__)

_Name = tuple[RunKeyKind, PeerId]


@dataclass(frozen=True, slots=True)
class Notice:
    """One announcement."""

    raw: bytes
    payload_id: bytes
    """Empty when attending."""


class NoticeBoard:
    """The announcements of the last rounds.

    Args:
        network: A started client.
        book: Whose announcements to look for.
        rules: From the manifest.
        pause_s: How often one peer is looked up.
    """

    def __init__(
        self, network: NetworkClient, book: PeerBook, rules: PayloadRules, pause_s: float
    ) -> None:
        self._network = network
        self._book = book
        self._rules = rules
        self._look_ups: LookUps[_Name] = LookUps(self._look_up, pause_s)
        self._rounds: dict[int, dict[_Name, Notice]] = {}
        self._latest = 0
        self._next_watched = 0

    async def peers(self, round_id: int, kind: RunKeyKind) -> list[PeerId]:
        """Who has announced something for a round, as far as it is known after a short wait."""
        self._open(round_id)
        if round_id == self._latest:
            await self._look_ups.refresh(self._missing(round_id, kind), WAIT_S)
        return [peer for one, peer in self._rounds.get(round_id, {}) if one is kind]

    async def find(self, round_id: int, kind: RunKeyKind, peer: PeerId) -> Notice | None:
        """One peer's announcement; None if it has made none that is known."""
        self._open(round_id)
        known = self._rounds.get(round_id, {}).get((kind, peer))
        if known is None and round_id == self._latest:
            await self._look_ups.refresh([(kind, peer)], WAIT_S)
            known = self._rounds.get(round_id, {}).get((kind, peer))
        return known

    def author_of(self, payload_id: bytes) -> PeerId | None:
        """Who announced a payload; None if that is not known."""
        for notices in self._rounds.values():
            for (_, peer), notice in notices.items():
                if notice.payload_id == payload_id:
                    return peer
        return None

    async def put(self, round_id: int, kind: RunKeyKind, peer: PeerId, raw: bytes) -> None:
        """Publish an announcement, of this peer or of one that cannot do so itself.

        Raises:
            RecordRefusedError: No node would take it.
            PeerUnavailableError: Nobody took it just now.
            RemoteProtocolError: It is none of this peer for this round.
        """
        notice = self._read(raw, round_id, kind, peer)
        await self._network.publish(raw)
        self._open(round_id)
        self._rounds.setdefault(round_id, {})[kind, peer] = notice

    def close(self) -> None:
        """End all look-ups."""
        self._look_ups.close()

    def _open(self, round_id: int) -> None:
        """Forget what is too old once a later round is asked for."""
        if round_id > self._latest:
            self._latest = round_id
            oldest = round_id - KEPT_ROUNDS + 1
            self._rounds = {one: found for one, found in self._rounds.items() if one >= oldest}

    def _missing(self, round_id: int, kind: RunKeyKind) -> list[_Name]:
        """Who has not announced yet; all in turn where there are too many for one poll."""
        known = self._rounds.get(round_id, {})
        missing = [(kind, peer) for peer in self._book.known if (kind, peer) not in known]
        if len(missing) <= MAX_WATCHED:
            return missing
        at = self._next_watched % len(missing)
        self._next_watched += MAX_WATCHED
        return (missing[at:] + missing[:at])[:MAX_WATCHED]

    async def _look_up(self, name: _Name) -> None:
        kind, peer = name
        raw = await self._network.look_up(peer, _KINDS[kind], LOOK_UP_TIMEOUT_S)
        if raw is None:
            return
        # An announcement for the round before may still come in time to be known as late.
        for round_id in (self._latest, self._latest - 1):
            try:
                notice = self._read(raw, round_id, kind, peer)
            except RemoteProtocolError as error:
                _log.debug("announcement of %s: %s", peer.short, error)
            else:
                self._rounds.setdefault(round_id, {}).setdefault(name, notice)
                return

    def _read(self, raw: bytes, round_id: int, kind: RunKeyKind, peer: PeerId) -> Notice:
        verified = read_announcement(raw, self._rules, round_id)
        found = verified.announcement
        if verified.peer != peer or found.type.value != kind.value:
            detail = f"{found.type} of {verified.peer.short}, expected {kind} of {peer.short}"
            raise RemoteProtocolError(ErrorCode.E_OBJECT_KEY, detail)
        return Notice(raw, found.payload_id)
