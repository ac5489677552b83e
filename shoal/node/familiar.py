"""Whose payloads counted in the last rounds, and how many others a round has room for.

In an open run keys cost nothing. Whoever counted lately therefore goes before whoever did not:
where announcements are looked at, where a validator takes objects in, where the target of a round
is counted and where seats of a record are given. What is left, always a fifth, is for newcomers.

Guarantees: what is remembered is bounded and comes from records alone. Does not tell a newcomer
that means well from one that does not, and cannot: with enough keys and patience a crowd gets in.
In a run with a roster those on it are known, all alike.
"""

from typing import Final

from shoal.protocol.identity import PeerId
from shoal.protocol.record_body import RoundRecord

CANDIDATE_FACTOR: Final = 2
"""A round has room for this many times the gather limit of candidates (they are cheap)."""
_NEWCOMER_SHARE: Final = 5


class Familiar:
    """Who counted lately.

    Args:
        gather_limit: the most payloads that count in a round.
        roster: who may take part; None: an open run.
    """

    def __init__(self, gather_limit: int, roster: frozenset[PeerId] | None) -> None:
        self._gather_limit = gather_limit
        self._roster = None if roster is None else {peer.key.hex() for peer in roster}
        self._counted: dict[str, None] = {}
        """Hex keys, those that counted last first."""
        self._steady: frozenset[PeerId] = frozenset()
        self.is_recalled = roster is not None
        """Whether the records before this process's start were read."""

    def note(self, record: RoundRecord) -> None:
        """Takes up who counted in a record; of several the oldest goes first."""
        if record.void:
            return
        self._steady = frozenset(entry.peer for entry in record.counted)
        newest = (entry.peer.key.hex() for entry in record.counted)
        known = dict.fromkeys((*newest, *self._counted))
        self._counted = dict.fromkeys(list(known)[: CANDIDATE_FACTOR * self._gather_limit])

    def knows(self, peer_hex: str) -> bool:
        """Whether a peer, by its hex key, counted lately; with a roster, whether it is on it."""
        return peer_hex in (self._counted if self._roster is None else self._roster)

    @property
    def steady(self) -> frozenset[PeerId] | None:
        """Who counted in the last record that counted anybody; None: with a roster, all do."""
        return self._steady if self._roster is None else None

    @property
    def num_newcomers(self) -> int:
        """How many that are not known a round has room for."""
        most = CANDIDATE_FACTOR * self._gather_limit
        if self._roster is not None:
            return most
        return max(most - len(self._counted), self._share)

    def num_newcomer_seats(self, num_known: int) -> int:
        """How many newcomers may count beside so many that are known."""
        return max(self._gather_limit - num_known, min(self._share, self._gather_limit - 1))

    @property
    def _share(self) -> int:
        return max(self._gather_limit // _NEWCOMER_SHARE, 1)


class NewcomerLimit:
    """Lets so many newcomers of a round in as it has room for; the others have to wait."""

    def __init__(self, familiar: Familiar) -> None:
        self._familiar = familiar
        self._round_id = 0
        self._admitted: set[str] = set()

    def has_room(self, round_id: int, peer_hex: str) -> bool:
        """Whether a peer may put something into the round."""
        if self._familiar.knows(peer_hex):
            return True
        admitted = self._admitted if round_id == self._round_id else set()
        return peer_hex in admitted or len(admitted) < self._familiar.num_newcomers

    def admit(self, round_id: int, peer_hex: str) -> bool:
        """Lets a peer in for the round; false if there is no room."""
        if not self.has_room(round_id, peer_hex):
            return False
        if round_id != self._round_id:
            self._round_id, self._admitted = round_id, set()
        if not self._familiar.knows(peer_hex):
            self._admitted.add(peer_hex)
        return True
