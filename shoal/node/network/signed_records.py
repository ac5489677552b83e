"""The two kinds of DHT records that are the network's own: where a peer is, which round is closed.

Layout: magic b"SHOALDHT" (8) | version u16 = 1 | kind u16 | public key (32) | signature (64) |
body. The signature covers the domain of the kind, one zero byte, and the body, which is canonical
JSON with exactly these keys:

    peer record     kind "shoal/peer-record/1", run, peer, sequence, expires_at (unix seconds),
                    libp2p (its libp2p id), addresses (0 to 8 multiaddrs; none: nobody can
                    dial this peer)
    record pointer  kind "shoal/record-pointer/1", run, peer, sequence, expires_at, round,
                    record (SHA-256 of the record's bytes, 64 hex digits), num_bytes (their number)

At most 1 KiB. The peer record is what binds a libp2p id, which is of another kind of key, to a
peer's own key. A pointer says that a round was closed; it proves nothing, the round's record does.

Order of the checks: length, magic and kind, version, JSON and shape, key, signer is the peer.
Not done here: the signature (`verify`), expiry, sequences and places (`dht_records`).
"""

import re
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from shoal.protocol import identity as ed25519
from shoal.protocol import strict_json
from shoal.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from shoal.protocol.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, PeerId, parse_peer_key
from shoal.protocol.json_fields import check_keys, take_hex, take_int, take_list, take_text
from shoal.protocol.signing import DIGEST_BYTES
from shoal.protocol.strict_json import INT_LIMIT, JsonValue

MAX_RECORD_BYTES: Final = 1024
MAX_ADDRESSES: Final = 8
MAGIC: Final = b"SHOALDHT"
VERSION: Final = 1

_HEAD: Final = struct.Struct(f"<8sHH{KEY_BYTES}s{SIGNATURE_BYTES}s")
HEAD_BYTES: Final = _HEAD.size
_COMMON_KEYS: Final = frozenset(("kind", "run", "peer", "sequence", "expires_at"))
_LIBP2P_PATTERN: Final = re.compile(r"[1-9A-HJ-NP-Za-km-z]{32,64}")
_ADDRESS_PATTERN: Final = re.compile(r"/[A-Za-z0-9/.:_-]{1,127}")


class SignedKind(Enum):
    """What a body is; the value is its number on the wire."""

    PEER = 1
    POINTER = 2

    @property
    def domain(self) -> str:
        """The body's "kind" and the domain that it is signed under."""
        return _DOMAINS[self]


_DOMAINS: Final = {
    SignedKind.PEER: "shoal/peer-record/1",
    SignedKind.POINTER: "shoal/record-pointer/1",
}


_OWN_KEYS: Final = {
    SignedKind.PEER: frozenset(("libp2p", "addresses")),
    SignedKind.POINTER: frozenset(("round", "record", "num_bytes")),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerRecord:
    """Where a peer can be dialled."""

    run_id: bytes
    peer_key: bytes
    sequence: int
    expires_at_s: int
    libp2p_id: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordPointer:
    """Which round record its peer has seen last."""

    run_id: bytes
    peer_key: bytes
    sequence: int
    expires_at_s: int
    round_id: int
    record_sha256: bytes
    """Of the record's bytes as this peer serves them."""
    num_bytes: int


Statement: TypeAlias = PeerRecord | RecordPointer


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedStatement:
    """A well-formed statement whose signature is not checked."""

    kind: SignedKind
    peer: PeerId
    statement: Statement
    body: bytes
    signature: bytes


def build(identity: Identity, statement: Statement) -> bytes:
    """Sign a statement.

    Args:
        identity: Its peer.
        statement: What to say.

    Returns:
        The record's bytes.

    Raises:
        LocalProtocolError: The identity is another peer's, or readers would refuse a field.
    """
    if statement.peer_key != identity.peer.key:
        raise LocalProtocolError("a statement is signed by the peer that it names")
    kind = SignedKind.PEER if isinstance(statement, PeerRecord) else SignedKind.POINTER
    body = strict_json.dump(_to_fields(kind, statement))
    signature = identity.sign(_signed_bytes(kind, body))
    raw = _HEAD.pack(MAGIC, VERSION, kind.value, identity.peer.key, signature) + body
    try:
        read(raw)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"this statement would be refused: {error}") from error
    return raw


def read(raw: bytes | memoryview) -> SignedStatement:
    """Take a statement apart; nobody is trusted and the signature is not checked.

    Args:
        raw: The bytes as received.

    Returns:
        The statement.

    Raises:
        RemoteProtocolError: E_LEN, E_MAGIC, E_VERSION, E_JSON and its kin, E_KEY_WEAK, E_SIG.
    """
    if not HEAD_BYTES < len(raw) <= MAX_RECORD_BYTES:
        detail = f"record has {len(raw)} bytes, expected {HEAD_BYTES + 1} to {MAX_RECORD_BYTES}"
        raise RemoteProtocolError(ErrorCode.E_LEN, detail)
    magic, version, number, key, signature = _HEAD.unpack_from(raw)
    if magic != MAGIC or number not in {kind.value for kind in SignedKind}:
        raise RemoteProtocolError(ErrorCode.E_MAGIC, "not a statement of a known kind")
    if version != VERSION:
        detail = f"statement of version {version}, expected {VERSION}"
        raise RemoteProtocolError(ErrorCode.E_VERSION, detail)
    kind, body = SignedKind(number), bytes(raw[HEAD_BYTES:])
    statement = _from_fields(kind, strict_json.load(body, MAX_RECORD_BYTES))
    peer = parse_peer_key(statement.peer_key)
    if key != peer.key:
        raise RemoteProtocolError(ErrorCode.E_SIG, "signed by another key than the peer's")
    return SignedStatement(
        kind=kind, peer=peer, statement=statement, body=body, signature=signature
    )


def verify(signed: SignedStatement) -> None:
    """Verify the signature.

    Args:
        signed: What `read` returned.

    Raises:
        RemoteProtocolError: E_SIG.
    """
    ed25519.verify(signed.peer, _signed_bytes(signed.kind, signed.body), signed.signature)


def _signed_bytes(kind: SignedKind, body: bytes) -> bytes:
    return kind.domain.encode("ascii") + b"\0" + body


def _to_fields(kind: SignedKind, statement: Statement) -> dict[str, object]:
    fields: dict[str, object] = {
        "kind": kind.domain,
        "run": statement.run_id.hex(),
        "peer": statement.peer_key.hex(),
        "sequence": statement.sequence,
        "expires_at": statement.expires_at_s,
    }
    if isinstance(statement, PeerRecord):
        return {**fields, "libp2p": statement.libp2p_id, "addresses": statement.addresses}
    return {
        **fields,
        "round": statement.round_id,
        "record": statement.record_sha256.hex(),
        "num_bytes": statement.num_bytes,
    }


def _from_fields(kind: SignedKind, fields: dict[str, JsonValue]) -> Statement:
    check_keys(fields, _COMMON_KEYS.union(_OWN_KEYS[kind]))
    take_text(fields, "kind", re.compile(re.escape(kind.domain)))
    run_id, peer_key = take_hex(fields, "run", DIGEST_BYTES), take_hex(fields, "peer", KEY_BYTES)
    sequence = take_int(fields, "sequence", 0, INT_LIMIT - 1)
    expires_at_s = take_int(fields, "expires_at", 0, INT_LIMIT - 1)
    if kind is SignedKind.PEER:
        return PeerRecord(
            run_id=run_id,
            peer_key=peer_key,
            sequence=sequence,
            expires_at_s=expires_at_s,
            libp2p_id=take_text(fields, "libp2p", _LIBP2P_PATTERN),
            addresses=_take_addresses(fields),
        )
    return RecordPointer(
        run_id=run_id,
        peer_key=peer_key,
        sequence=sequence,
        expires_at_s=expires_at_s,
        round_id=take_int(fields, "round", 1, INT_LIMIT - 1),
        record_sha256=take_hex(fields, "record", DIGEST_BYTES),
        num_bytes=take_int(fields, "num_bytes", 1, INT_LIMIT - 1),
    )


def _take_addresses(fields: dict[str, JsonValue]) -> tuple[str, ...]:
    items = take_list(fields, "addresses")
    if len(items) > MAX_ADDRESSES:
        detail = f"{len(items)} addresses, expected at most {MAX_ADDRESSES}"
        raise RemoteProtocolError(ErrorCode.E_JSON, detail)
    return tuple(take_text({"address": item}, "address", _ADDRESS_PATTERN) for item in items)
