"""What a gather knows of each peer: a verified payload, or why there is none; who is looked at.

Guarantees: names that anybody may write into the store are bounded, and those of strangers (not on
the roster; in an open run, of peers that did not count lately) cannot take the places of others.
Among more strangers than there is room for, who is looked at is this node's own secret draw, which
nobody can aim a key at; those whose payload cannot be had go last. Does not read payloads.
"""

import hashlib
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import Final

from shoal.compression import CheckedBody
from shoal.node.familiar import CANDIDATE_FACTOR
from shoal.node.run_context import RunContext
from shoal.protocol.errors import ErrorCode, PayloadError, RemoteProtocolError
from shoal.protocol.identity import PeerId, parse_peer_key
from shoal.protocol.payload import Payload

_LISTED_FACTOR: Final = 10
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
        self._limit = CANDIDATE_FACTOR * run.manifest.outer.gather_limit
        self._num_newcomers = run.familiar.num_newcomers
        self._secret = secrets.token_bytes(16)
        self._taken: set[str] = set()
        self._refused: set[str] = set()
        self._num_failed: Counter[str] = Counter()
        self._not_before_s: dict[str, float] = {}

    async def list(self, prefix: str) -> list[str]:
        """The keys under `prefix`, strangers last; how many is bounded, whoever writes there.

        A flood of names that sort before everybody's must not hide those that are known.

        Raises:
            StorageError: the store did not answer.
        """
        names = await keys_below(self._run, prefix)
        strangers = [key for key in names if self._is_stranger(key)]
        known = [key for key in names if not self._is_stranger(key)]
        if len(strangers) > self._num_newcomers:
            strangers.sort(key=self._turn)
        return (known + strangers)[: _LISTED_FACTOR * self._limit]

    def take(self, key: str) -> bool:
        """Takes a key, once; false if it is taken, or if there are too many of its kind."""
        if key in self._taken or key in self._refused:
            return False
        if self._run.clock.now_s() < self._not_before_s.get(key, 0.0):
            return False
        is_stranger = self._is_stranger(key)
        room = self._num_newcomers if is_stranger else self._limit
        num_refused = self._num_alike(self._refused, key)
        if self._num_alike(self._taken, key) >= room or num_refused >= self._limit:
            return False
        self._taken.add(key)
        return True

    def give_back(self, key: str, pause_s: float = 0.0) -> None:
        """It will be looked at again, after those that were not looked at yet."""
        self._taken.discard(key)
        self._not_before_s[key] = self._run.clock.now_s() + pause_s
        self._num_failed[key] += 1

    def refuse(self, key: str) -> None:
        """It is never looked at again; in an open run another one may take its place."""
        if self._run.manifest.roster is None:
            self._taken.discard(key)
            self._refused.add(key)

    def _num_alike(self, keys: set[str], key: str) -> int:
        folder, is_stranger = key.rsplit("/", 1)[0] + "/", self._is_stranger(key)
        alike = (one for one in keys if one.startswith(folder))
        return sum(self._is_stranger(one) == is_stranger for one in alike)

    def _turn(self, key: str) -> tuple[int, bytes]:
        drawn = hashlib.blake2b(key.encode(), key=self._secret, digest_size=16).digest()
        return self._num_failed[key], drawn

    def _is_stranger(self, key: str) -> bool:
        return not self._run.familiar.knows(key.rsplit("/", 1)[1])


async def keys_below(run: RunContext, prefix: str) -> list[str]:
    """The keys of names right below a prefix of the run's store, in order; how many is bounded.

    Raises:
        StorageError: the store did not answer.
    """
    store = run.store.labelled(peer="run", kind="list")
    page = await store.list(prefix)
    keys = list(page.keys)
    while page.next_after is not None and len(keys) < _MAX_LISTED:
        page = await store.list(prefix, after=page.next_after)
        keys += page.keys
    # What lies deeper, or elsewhere, is nobody's name.
    return [key for key in keys if key.startswith(prefix) and "/" not in key[len(prefix) :]]


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
