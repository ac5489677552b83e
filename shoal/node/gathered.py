"""What a gather knows of each peer: a verified payload, or why there is none; who is looked at.

Guarantees: names that anybody may write into the store are bounded, and those that are not on the
roster cannot take the places of those that are. Does not read payloads.
"""

from dataclasses import dataclass
from typing import Final

from shoal.compression import CheckedBody
from shoal.node.run_context import RunContext
from shoal.protocol.errors import ErrorCode, PayloadError, RemoteProtocolError
from shoal.protocol.identity import PeerId, parse_peer_key
from shoal.protocol.payload import Payload

_CANDIDATE_FACTOR: Final = 2
"""One open round may hold this many times the gather limit of candidates (they are cheap)."""
_MAX_LISTED: Final = 20_000
"""Names under one prefix that are looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """A verified payload and how it came."""

    payload: Payload[CheckedBody]
    announced_at_s: float
    latency_s: float
    """From the announcement's appearance to the verified payload; 0 for this node's own."""
    download_s: float
    """Its part until the last byte had come; 0 for this node's own."""
    check_s: float
    """What the checks took after that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """Why one peer's payload does not count for this node."""

    peer: str
    """Hex key as in the store; not verified."""
    code: ErrorCode
    detail: str


class Candidates:
    """Whose announcements of a round are read.

    Args:
        run: shared.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        roster = run.manifest.roster
        self._roster = None if roster is None else {peer.key.hex() for peer in roster}
        self._limit = _CANDIDATE_FACTOR * run.manifest.outer.gather_limit
        self._taken: set[str] = set()

    async def list(self, prefix: str) -> list[str]:
        """The keys under `prefix`, the roster's first; how many is bounded, whoever writes there.

        A flood of names that sort before everybody's must not hide those that are on the roster.

        Raises:
            StorageError: the store did not answer.
        """
        store = self._run.store.labelled(peer="run", kind="list")
        page = await store.list(prefix)
        keys = list(page.keys)
        while page.next_after is not None and len(keys) < _MAX_LISTED:
            page = await store.list(prefix, after=page.next_after)
            keys += page.keys
        return sorted(keys, key=self._is_stranger)[: 10 * self._limit]

    def take(self, key: str) -> bool:
        """Takes a key, once; false if it is taken, or if there are too many of its kind."""
        folder, is_stranger = key.rsplit("/", 1)[0], self._is_stranger(key)
        alike = [
            name
            for name in self._taken
            if name.startswith(folder) and self._is_stranger(name) == is_stranger
        ]
        if key in self._taken or len(alike) >= self._limit:
            return False
        self._taken.add(key)
        return True

    def give_back(self, key: str) -> None:
        """It will be looked at again."""
        self._taken.discard(key)

    def _is_stranger(self, key: str) -> bool:
        return self._roster is not None and key.rsplit("/", 1)[1] not in self._roster


def check_announced(payload: Payload[CheckedBody], peer: PeerId, payload_id: bytes) -> None:
    """Compares a payload with what was announced.

    The announcement is signed too: another payload under it is a second, conflicting word.

    Raises:
        PayloadError: E_EQUIVOCATION, they differ.
    """
    if payload.peer != peer or payload.payload_id != payload_id:
        raise PayloadError(
            ErrorCode.E_EQUIVOCATION,
            f"announced {payload_id.hex()}, found {payload.payload_id.hex()}",
            peer,
        )


def is_peer_hex(peer_hex: str) -> bool:
    """Whether a name in the store is a peer's key."""
    try:
        parse_peer_key(bytes.fromhex(peer_hex))
    except (ValueError, RemoteProtocolError):
        return False
    return True
