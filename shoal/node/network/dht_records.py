"""Which records a DHT node takes: the rules, without the DHT.

A value is an announcement (`protocol.announcement`) or a signed statement (`signed_records`), at
most 1 KiB. Its key is SHA-256 over the domain, run id, peer key and kind, so a key has one writer
and a peer at most four keys: its two types of announcements do not push each other out. The DHT
works with the SHA-1 of the key, the location.

Rules in their order, cheapest first; the first that fails gives the code:

 1. length (E_LEN), magic, version, JSON and shape
 2. run (E_RUN)
 3. location is that of the peer's key (E_OBJECT_KEY)
 4. in the roster, if there is one (E_PEER_UNKNOWN)
 5. expiry: a number, at most two rounds ahead (E_DHT_EXPIRY_FAR), and not over (E_ROLLBACK)
 6. sequence not lower than known (E_ROLLBACK)
 7. signature (E_SIG), also where the expiry is not the one that the body has
 8. room for one more peer (E_PEER_UNKNOWN)
 9. an equal sequence has the equal body (E_EQUIVOCATION; both are kept as evidence)

Guarantees: memory is bounded; only a verified signature changes what is known; what is known of a
key outlives every record that could be replayed under it. Announcements carry no expiry of their
own, therefore an old one can be replayed to a node that has forgotten or never seen a newer one;
readers compare rounds. The same bytes may come again with another expiry.
"""

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from shoal.node.network import signed_records
from shoal.node.network.signed_records import MAX_RECORD_BYTES, SignedKind
from shoal.protocol import strict_json
from shoal.protocol.announcement import KIND as ANNOUNCEMENT_KIND
from shoal.protocol.announcement import AnnouncementType
from shoal.protocol.envelope import MAGIC as ENVELOPE_MAGIC
from shoal.protocol.envelope import MessageKind, open_envelope, verify_signatures
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.protocol.identity import KEY_BYTES, PeerId, parse_peer_key
from shoal.protocol.json_fields import take_hex, take_int, take_text
from shoal.protocol.signing import DIGEST_BYTES
from shoal.protocol.strict_json import INT_LIMIT

PEER_KIND: Final = SignedKind.PEER.domain
POINTER_KIND: Final = SignedKind.POINTER.domain
ATTENDING_KIND: Final = f"{ANNOUNCEMENT_KIND}/{AnnouncementType.ATTENDING}"
PUBLISHED_KIND: Final = f"{ANNOUNCEMENT_KIND}/{AnnouncementType.PUBLISHED}"
KINDS: Final = (ATTENDING_KIND, PUBLISHED_KIND, PEER_KIND, POINTER_KIND)
MAX_PEERS: Final = 4096
MAX_EVIDENCE: Final = 64

_KEY_DOMAIN: Final = b"shoal/dht-key/1\0"
_ANNOUNCEMENT_KEYS: Final = {"run", "peer", "sequence", "type"}
_TYPES: Final = re.compile("|".join(AnnouncementType))
_BIN_8: Final = 0xC4
_BIN_16: Final = 0xC5


def record_key(run_id: bytes, peer: PeerId, kind: str) -> bytes:
    """Compute the one key under which a peer publishes a kind of records.

    Args:
        run_id: 32 bytes.
        peer: Whose record.
        kind: One of `KINDS`.

    Returns:
        32 bytes.
    """
    return hashlib.sha256(_KEY_DOMAIN + run_id + peer.key + kind.encode("ascii")).digest()


def location(key: bytes) -> bytes:
    """Where the DHT keeps a key: its SHA-1, a matter of addressing and not of security."""
    return hashlib.sha1(key, usedforsecurity=False).digest()


def unwrap_value(packed: bytes) -> bytes | None:
    """Take the bytes out of the one msgpack form in which the DHT keeps them.

    Args:
        packed: What is stored.

    Returns:
        The bytes; None if it is anything else.
    """
    if len(packed) >= 2 and packed[0] == _BIN_8 and len(packed) == 2 + packed[1]:
        return packed[2:]
    if len(packed) >= 3 and packed[0] == _BIN_16:
        length = int.from_bytes(packed[1:3], "big")
        return packed[3:] if length > 255 and len(packed) == 3 + length else None
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class DhtRecord:
    """A well-formed record whose signature is not checked."""

    kind: str
    run_id: bytes
    peer: PeerId
    sequence: int
    expires_at_s: int | None
    """As signed; None where the kind has none."""
    body: bytes
    verify: Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Equivocation:
    """Two records of one peer with one sequence, both verified, as received."""

    peer: PeerId
    first: bytes
    second: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    peer: PeerId
    sequence: int
    body: bytes
    value: bytes
    forget_at_s: float


def read_record(value: bytes | memoryview) -> DhtRecord:
    """Take a record apart; nobody is trusted and the signature is not checked.

    Args:
        value: The bytes as received.

    Returns:
        What the rules need of it.

    Raises:
        RemoteProtocolError: Rule 1; E_SIG where the signer is not the peer.
    """
    if len(value) > MAX_RECORD_BYTES:
        detail = f"record has {len(value)} bytes, at most {MAX_RECORD_BYTES} allowed"
        raise RemoteProtocolError(ErrorCode.E_LEN, detail)
    if bytes(value[: len(ENVELOPE_MAGIC)]) == ENVELOPE_MAGIC:
        return _read_announcement(value)
    signed = signed_records.read(value)
    return DhtRecord(
        kind=signed.kind.domain,
        run_id=signed.statement.run_id,
        peer=signed.peer,
        sequence=signed.statement.sequence,
        expires_at_s=signed.statement.expires_at_s,
        body=signed.body,
        verify=lambda: signed_records.verify(signed),
    )


def _read_announcement(value: bytes | memoryview) -> DhtRecord:
    # Only what the rules need; readers check the rest against their round (`read_announcement`).
    envelope = open_envelope(
        value, MessageKind.ANNOUNCEMENT, max_bytes=MAX_RECORD_BYTES, max_signatures=1
    )
    fields = strict_json.load(envelope.body, MAX_RECORD_BYTES)
    if fields.get("kind") != ANNOUNCEMENT_KIND or not fields.keys() >= _ANNOUNCEMENT_KEYS:
        raise RemoteProtocolError(ErrorCode.E_JSON, "not an announcement")
    peer = parse_peer_key(take_hex(fields, "peer", KEY_BYTES))
    if envelope.signatures[0].key != peer.key:
        raise RemoteProtocolError(ErrorCode.E_SIG, "signed by another key than the peer's")
    return DhtRecord(
        kind=f"{ANNOUNCEMENT_KIND}/{take_text(fields, 'type', _TYPES)}",
        run_id=take_hex(fields, "run", DIGEST_BYTES),
        peer=peer,
        sequence=take_int(fields, "sequence", 0, INT_LIMIT - 1),
        expires_at_s=None,
        body=envelope.body,
        verify=lambda: verify_signatures(envelope),
    )


class RecordRules:
    """The rules of one node, with what it has seen.

    Args:
        run_id: The run; records of others are refused.
        max_ahead_s: How far ahead a record may expire: two rounds, in seconds.
        roster: Who may publish; None: anyone.
        now_s: Unix seconds.

    Attributes:
        equivocations: Evidence against peers, the first `MAX_EVIDENCE` of it.
    """

    def __init__(
        self,
        *,
        run_id: bytes,
        max_ahead_s: float,
        roster: frozenset[PeerId] | None = None,
        now_s: Callable[[], float],
    ) -> None:
        self._run_id = run_id
        self._max_ahead_s = max_ahead_s
        self._roster = roster
        self._now_s = now_s
        self._known: dict[bytes, _Known] = {}
        self.equivocations: list[Equivocation] = []

    def check(self, place: bytes, value: bytes, expires_at_s: float) -> DhtRecord:
        """Let a record pass and remember it.

        Args:
            place: The location it is stored under or was found at.
            value: The record.
            expires_at_s: When the DHT would drop it, unix seconds.

        Returns:
            The record; its signature is verified.

        Raises:
            RemoteProtocolError: The first rule that fails.
        """
        record = read_record(value)
        self._check_place(record, place)
        self._check_expiry(expires_at_s)
        known = self._known.get(place)
        if known is not None and record.sequence < known.sequence:
            detail = f"sequence {record.sequence}, {known.sequence} is known"
            raise RemoteProtocolError(ErrorCode.E_ROLLBACK, detail)
        if known is None or known.value != value:
            record.verify()
        if record.expires_at_s not in {None, expires_at_s}:
            detail = f"expires at {expires_at_s}, signed is {record.expires_at_s}"
            raise RemoteProtocolError(ErrorCode.E_SIG, detail)
        self._remember(place, record, value, known)
        return record

    def peers(self) -> tuple[PeerId, ...]:
        """Whose records passed lately, the latest first; in an open run these are the peers."""
        now_s = self._now_s()
        alive = [one for one in self._known.values() if one.forget_at_s > now_s]
        alive.sort(key=lambda one: one.forget_at_s, reverse=True)
        return tuple(dict.fromkeys(one.peer for one in alive))

    def _check_place(self, record: DhtRecord, place: bytes) -> None:
        if record.run_id != self._run_id:
            raise RemoteProtocolError(ErrorCode.E_RUN, f"run {record.run_id.hex()}")
        if place != location(record_key(record.run_id, record.peer, record.kind)):
            detail = f"not the location of {record.kind} of {record.peer.short}"
            raise RemoteProtocolError(ErrorCode.E_OBJECT_KEY, detail)
        if self._roster is not None and record.peer not in self._roster:
            detail = f"{record.peer.text} is not in the roster"
            raise RemoteProtocolError(ErrorCode.E_PEER_UNKNOWN, detail)

    def _check_expiry(self, expires_at_s: float) -> None:
        ahead_s = expires_at_s - self._now_s()
        if not math.isfinite(ahead_s) or ahead_s > self._max_ahead_s:
            detail = f"expires in {ahead_s:.0f} s, at most {self._max_ahead_s:.0f} s allowed"
            raise RemoteProtocolError(ErrorCode.E_DHT_EXPIRY_FAR, detail)
        if ahead_s <= 0:
            raise RemoteProtocolError(ErrorCode.E_ROLLBACK, f"expired {-ahead_s:.0f} s ago")

    def _remember(
        self, place: bytes, record: DhtRecord, value: bytes, known: _Known | None
    ) -> None:
        if known is None:
            self._make_room()
        elif record.sequence == known.sequence and record.body != known.body:
            self._accuse(record.peer, known.value, value)
        # Whatever is valid now has expired by then, so nothing older can come back.
        forget_at_s = self._now_s() + self._max_ahead_s
        self._known[place] = _Known(
            peer=record.peer,
            sequence=record.sequence,
            body=record.body,
            value=value,
            forget_at_s=forget_at_s,
        )

    def _make_room(self) -> None:
        if len(self._known) < len(KINDS) * MAX_PEERS:
            return
        now_s = self._now_s()
        self._known = {key: one for key, one in self._known.items() if one.forget_at_s > now_s}
        if len(self._known) >= len(KINDS) * MAX_PEERS:
            raise RemoteProtocolError(ErrorCode.E_PEER_UNKNOWN, "no room for one more peer")

    def _accuse(self, peer: PeerId, first: bytes, second: bytes) -> NoReturn:
        if len(self.equivocations) < MAX_EVIDENCE:
            self.equivocations.append(Equivocation(peer=peer, first=first, second=second))
        detail = f"two records with one sequence; first {first.hex()}, second {second.hex()}"
        raise RemoteProtocolError(ErrorCode.E_EQUIVOCATION, detail, peer)
