"""A small signed pointer: a peer takes part in a round, or its payload is there to be fetched.

An envelope of kind "announcement" with exactly one signature, at most 1 KiB in all. The body is
canonical JSON with exactly these keys:

    kind       "shoal/announcement/1"
    run        run id, 64 hex digits
    round      0 < integer < 2^53
    peer       public key, 64 hex digits; also the signer
    type       "attending" or "published"
    payload    payload id, 64 hex digits; "" when attending
    num_bytes  length of the whole payload; 0 when attending
    sequence   0 <= integer < 2^53, higher with every announcement of this peer
    where      {"provider": name} with optional "account", "bucket", "address"

`where` is never an address to fetch as it stands: the reader matches it against its manifest's
templates. The character sets keep separators of URLs out of account and bucket.

Order of the checks: length, envelope, JSON and shape (E_JSON...), run (E_RUN), round (E_ROUND_OLD,
E_ROUND_FUTURE), key (E_KEY_WEAK), roster (E_PEER_UNKNOWN), signer is the peer (E_SIG), payload
length (E_LEN), signature (E_SIG).

Not done here: comparing sequences (the node keeps the highest), looking anything up.
"""

import re
from dataclasses import InitVar, dataclass
from enum import StrEnum
from typing import Final

from shoal.protocol import strict_json
from shoal.protocol.envelope import (
    Envelope,
    MessageKind,
    open_envelope,
    seal,
    verify_signatures,
)
from shoal.protocol.errors import (
    AnnouncementError,
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    reported_as,
)
from shoal.protocol.identity import KEY_BYTES, Identity, PeerId, parse_peer_key
from shoal.protocol.json_fields import as_object, check_keys, take_hex, take_int, take_text
from shoal.protocol.payload import PayloadRules, expected_payload_bytes
from shoal.protocol.signing import DIGEST_BYTES
from shoal.protocol.strict_json import INT_LIMIT, JsonValue

MAX_ANNOUNCEMENT_BYTES: Final = 1024
KIND: Final = "shoal/announcement/1"

_TOKEN: Final = object()
_KEYS: Final = frozenset(
    ("kind", "run", "round", "peer", "type", "payload", "num_bytes", "sequence", "where")
)
_KIND_PATTERN: Final = re.compile(re.escape(KIND))
_TYPE_PATTERN: Final = re.compile("attending|published")
_WHERE_PATTERNS: Final = {
    "provider": re.compile(r"[a-z0-9-]{1,32}"),
    "account": re.compile(r"[A-Za-z0-9_-]{1,64}"),
    "bucket": re.compile(r"[a-z0-9][a-z0-9.-]{0,62}"),
    "address": re.compile(r"[A-Za-z0-9/.:_-]{1,256}"),
}


class AnnouncementType(StrEnum):
    """What is announced."""

    ATTENDING = "attending"
    PUBLISHED = "published"


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Where a payload can be found, in the terms of the manifest's templates; "" = not given."""

    provider: str
    """1 to 32 of a-z, 0-9 and hyphen."""
    account: str = ""
    """Up to 64 letters, digits, hyphens and underscores."""
    bucket: str = ""
    """Up to 63 of a-z, 0-9, dot and hyphen."""
    address: str = ""
    """A multiaddr of up to 256 characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Announcement:
    """What a peer says about itself; a claim until it is a `VerifiedAnnouncement`."""

    run_id: bytes
    round_id: int
    peer_key: bytes
    type: AnnouncementType
    payload_id: bytes = b""
    """32 bytes when published, else empty."""
    num_bytes: int = 0
    sequence: int
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedAnnouncement:
    """An announcement that its peer signed; only `read_announcement` makes one."""

    announcement: Announcement
    peer: PeerId
    token: InitVar[object]

    def __post_init__(self, token: object) -> None:
        if token is not _TOKEN:
            raise LocalProtocolError("only read_announcement makes a verified announcement")


def build_announcement(identity: Identity, announcement: Announcement) -> bytes:
    """Sign an announcement.

    Args:
        identity: Its peer.
        announcement: What to say.

    Returns:
        The envelope's bytes.

    Raises:
        LocalProtocolError: The identity is another peer's, or a field has a form or length that
            readers would refuse.
    """
    if announcement.peer_key != identity.peer.key:
        raise LocalProtocolError("an announcement is signed by the peer that it names")
    body = strict_json.dump(_to_fields(announcement))
    raw = seal(MessageKind.ANNOUNCEMENT, body, (identity,))
    try:
        _open(raw)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"this announcement would be refused: {error}") from error
    return raw


def read_announcement(
    raw: bytes | memoryview, rules: PayloadRules, round_id: int
) -> VerifiedAnnouncement:
    """Check an announcement by the rules of this module, in their order; nobody is trusted.

    Args:
        raw: The bytes as received.
        rules: From the manifest.
        round_id: The round in progress.

    Returns:
        The checked announcement.

    Raises:
        AnnouncementError: The first that applies of E_LEN, E_MAGIC, E_VERSION, E_FLAGS, E_QUORUM
            (no signature), E_JSON and its kin, E_RUN, E_ROUND_OLD, E_ROUND_FUTURE, E_KEY_WEAK,
            E_PEER_UNKNOWN, E_SIG, E_LEN (of the payload), E_SIG.
    """
    with reported_as(AnnouncementError):
        envelope, announcement = _open(raw)
        _check_place(announcement, rules, round_id)
        peer = _check_sender(announcement, envelope, rules)
        _check_size(announcement, rules)
        verify_signatures(envelope)
    return VerifiedAnnouncement(announcement=announcement, peer=peer, token=_TOKEN)


def _open(raw: bytes | memoryview) -> tuple[Envelope, Announcement]:
    envelope = open_envelope(
        raw, MessageKind.ANNOUNCEMENT, max_bytes=MAX_ANNOUNCEMENT_BYTES, max_signatures=1
    )
    fields = strict_json.load(envelope.body, MAX_ANNOUNCEMENT_BYTES)
    return envelope, _from_fields(fields)


def _to_fields(announcement: Announcement) -> dict[str, object]:
    places = {name: getattr(announcement.where, name) for name in _WHERE_PATTERNS}
    return {
        "kind": KIND,
        "run": announcement.run_id.hex(),
        "round": announcement.round_id,
        "peer": announcement.peer_key.hex(),
        "type": announcement.type.value,
        "payload": announcement.payload_id.hex(),
        "num_bytes": announcement.num_bytes,
        "sequence": announcement.sequence,
        "where": {name: text for name, text in places.items() if text},
    }


def _from_fields(fields: dict[str, JsonValue]) -> Announcement:
    check_keys(fields, _KEYS)
    take_text(fields, "kind", _KIND_PATTERN)
    kind = AnnouncementType(take_text(fields, "type", _TYPE_PATTERN))
    published = kind is AnnouncementType.PUBLISHED
    announcement = Announcement(
        run_id=take_hex(fields, "run", DIGEST_BYTES),
        round_id=take_int(fields, "round", 1, INT_LIMIT - 1),
        peer_key=take_hex(fields, "peer", KEY_BYTES),
        type=kind,
        payload_id=take_hex(fields, "payload", DIGEST_BYTES, empty=True),
        num_bytes=take_int(fields, "num_bytes", 0, INT_LIMIT - 1),
        sequence=take_int(fields, "sequence", 0, INT_LIMIT - 1),
        where=_to_where(as_object(fields["where"], "where")),
    )
    if bool(announcement.payload_id) != published or bool(announcement.num_bytes) != published:
        detail = "payload and num_bytes are given when published and only then"
        raise AnnouncementError(ErrorCode.E_JSON, detail)
    return announcement


def _to_where(fields: dict[str, JsonValue]) -> Where:
    check_keys(fields, frozenset(("provider",)), frozenset(_WHERE_PATTERNS))
    return Where(**{name: take_text(fields, name, _WHERE_PATTERNS[name]) for name in fields})


def _check_place(announcement: Announcement, rules: PayloadRules, round_id: int) -> None:
    if announcement.run_id != rules.run_id:
        raise AnnouncementError(ErrorCode.E_RUN, f"run {announcement.run_id.hex()}")
    if announcement.round_id != round_id:
        old = announcement.round_id < round_id
        code = ErrorCode.E_ROUND_OLD if old else ErrorCode.E_ROUND_FUTURE
        raise AnnouncementError(code, f"round {announcement.round_id}, expected {round_id}")


def _check_sender(announcement: Announcement, envelope: Envelope, rules: PayloadRules) -> PeerId:
    peer = parse_peer_key(announcement.peer_key)
    if rules.roster is not None and peer not in rules.roster:
        raise AnnouncementError(ErrorCode.E_PEER_UNKNOWN, f"{peer.text} is not in the roster")
    if envelope.signatures[0].key != peer.key:
        raise AnnouncementError(ErrorCode.E_SIG, "signed by another key than the peer's")
    return peer


def _check_size(announcement: Announcement, rules: PayloadRules) -> None:
    expected = expected_payload_bytes(rules.body_bytes)
    if announcement.type is AnnouncementType.PUBLISHED and announcement.num_bytes != expected:
        detail = f"announces a payload of {announcement.num_bytes} bytes, expected {expected}"
        raise AnnouncementError(ErrorCode.E_LEN, detail)
