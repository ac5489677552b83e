"""Signed control messages: who signed which body.

Layout, little-endian, 20 bytes, then the signatures, then the body:

    magic b"SHOALMSG" (8) | version u16 = 1 | kind u16 | num_signatures u16 | reserved u16 = 0 |
    body_len u32 | num_signatures x (public key (32) | signature (64)) | body

Each signature covers the body under the domain of the kind. The order of the signers is free and
any subset is a valid envelope of its own, so an envelope's bytes never identify content: hash the
body. The total length must follow from the two counts exactly, and the caller's limits apply before
anything is parsed.

Opening and verifying are two steps, because the body usually decides cheaply that the signatures
are not worth looking at. Not done here: what a body means, and whose signature counts.
"""

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final, NoReturn

from shoal.protocol import signing
from shoal.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from shoal.protocol.identity import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    PeerId,
    parse_peer_key,
)
from shoal.protocol.signing import Domain

MAGIC: Final = b"SHOALMSG"
VERSION: Final = 1

_HEAD: Final = struct.Struct("<8sHHHHI")
_SIGNATURE: Final = struct.Struct(f"<{KEY_BYTES}s{SIGNATURE_BYTES}s")
HEAD_BYTES: Final = _HEAD.size
BYTES_PER_SIGNATURE: Final = _SIGNATURE.size
_MAX_SIGNATURES: Final = 2**16 - 1
_MAX_BODY_BYTES: Final = 2**32 - 1


class MessageKind(Enum):
    """What a body is; the value is its number on the wire."""

    ANNOUNCEMENT = 1
    RECORD = 2
    VOTE = 3

    @property
    def domain(self) -> Domain:
        """The domain that bodies of this kind are signed under."""
        return _DOMAINS[self]


_DOMAINS: Final = {
    MessageKind.ANNOUNCEMENT: Domain.ANNOUNCEMENT,
    MessageKind.RECORD: Domain.RECORD,
    MessageKind.VOTE: Domain.VOTE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A public key and what it is said to have signed with; neither is checked."""

    key: bytes
    signature: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """A well-formed message whose signatures are not checked."""

    kind: MessageKind
    body: bytes
    signatures: tuple[Signature, ...]

    def pack(self) -> bytes:
        """Write the envelope.

        Returns:
            The bytes that `open_envelope` reads.

        Raises:
            LocalProtocolError: No signature, a key twice, or more than the layout can hold.
        """
        count = len(self.signatures)
        if not 0 < count <= _MAX_SIGNATURES or len(self.body) > _MAX_BODY_BYTES:
            raise LocalProtocolError(f"no envelope holds {count} signers, {len(self.body)} bytes")
        if len({one.key for one in self.signatures}) != count:
            raise LocalProtocolError("one key signs an envelope once")
        head = _HEAD.pack(MAGIC, VERSION, self.kind.value, count, 0, len(self.body))
        packed = [_SIGNATURE.pack(one.key, one.signature) for one in self.signatures]
        return head + b"".join(packed) + self.body


def sign_body(kind: MessageKind, body: bytes, identity: Identity) -> Signature:
    """Sign a body under the domain of its kind.

    Args:
        kind: What the body is.
        body: The message.
        identity: Who signs.

    Returns:
        The signature with its key.
    """
    return Signature(key=identity.peer.key, signature=signing.sign(identity, kind.domain, body))


def seal(kind: MessageKind, body: bytes, identities: tuple[Identity, ...]) -> bytes:
    """Sign a body and put it into an envelope.

    Args:
        kind: What the body is.
        body: The message.
        identities: Who signs, in this order.

    Returns:
        The envelope's bytes.

    Raises:
        LocalProtocolError: No identity, one twice, or more than the layout can hold.
    """
    signatures = tuple(sign_body(kind, body, identity) for identity in identities)
    return Envelope(kind=kind, body=body, signatures=signatures).pack()


def open_envelope(
    raw: bytes | memoryview, kind: MessageKind, *, max_bytes: int, max_signatures: int
) -> Envelope:
    """Take an envelope apart; nobody is trusted and no signature is checked.

    Args:
        raw: The bytes as received.
        kind: The kind that is expected here.
        max_bytes: Longest accepted envelope.
        max_signatures: Most accepted signatures.

    Returns:
        Body and signatures, copied.

    Raises:
        RemoteProtocolError: In this order: E_LEN if longer than `max_bytes` or shorter than the
            fixed part; E_MAGIC for other bytes in front; E_VERSION; E_MAGIC for another kind;
            E_FLAGS for a reserved field; E_QUORUM for no signature; E_LEN for too many, or a total
            length that is not what the counts give; E_SIGNER_REPEATED for one key twice.
    """
    if not HEAD_BYTES <= len(raw) <= max_bytes:
        _refuse_length(len(raw), f"{HEAD_BYTES} to {max_bytes}")
    data = bytes(raw)
    count, body_bytes = _check_head(data, kind)
    if count == 0:
        raise RemoteProtocolError(ErrorCode.E_QUORUM, "envelope without a signature")
    if count > max_signatures:
        detail = f"envelope has {count} signatures, at most {max_signatures} allowed"
        raise RemoteProtocolError(ErrorCode.E_LEN, detail)
    body_at = HEAD_BYTES + count * BYTES_PER_SIGNATURE
    if len(data) != body_at + body_bytes:
        _refuse_length(len(data), f"{body_at + body_bytes}")
    pairs = _SIGNATURE.iter_unpack(data[HEAD_BYTES:body_at])
    signatures = tuple(Signature(key=key, signature=signature) for key, signature in pairs)
    if len({one.key for one in signatures}) != count:
        raise RemoteProtocolError(ErrorCode.E_SIGNER_REPEATED, "one key signed more than once")
    return Envelope(kind=kind, body=data[body_at:], signatures=signatures)


def verify_signatures(envelope: Envelope) -> tuple[PeerId, ...]:
    """Verify every signature of an envelope; whether these signers matter is the caller's question.

    Args:
        envelope: What `open_envelope` returned.

    Returns:
        The signers, in the envelope's order, all different.

    Raises:
        RemoteProtocolError: At the first bad one: E_KEY_WEAK for its key, E_SIG for its signature.
    """
    signers = []
    for one in envelope.signatures:
        peer = parse_peer_key(one.key)
        signing.verify(peer, envelope.kind.domain, envelope.body, one.signature)
        signers.append(peer)
    return tuple(signers)


def _check_head(data: bytes, kind: MessageKind) -> tuple[int, int]:
    magic, version, number, count, reserved, body_bytes = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise RemoteProtocolError(ErrorCode.E_MAGIC, "not a signed message")
    if version != VERSION:
        detail = f"envelope version {version}, expected {VERSION}"
        raise RemoteProtocolError(ErrorCode.E_VERSION, detail)
    if number != kind.value:
        detail = f"message of kind {number}, expected {kind.value} ({kind.name.lower()})"
        raise RemoteProtocolError(ErrorCode.E_MAGIC, detail)
    if reserved != 0:
        detail = f"reserved field of the envelope is {reserved}, expected 0"
        raise RemoteProtocolError(ErrorCode.E_FLAGS, detail)
    return count, body_bytes


def _refuse_length(found: int, expected: str) -> NoReturn:
    raise RemoteProtocolError(ErrorCode.E_LEN, f"envelope has {found} bytes, expected {expected}")
