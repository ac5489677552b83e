"""The header of a payload: its bytes, its signature, and what two signatures prove.

Layout, little-endian: a header of 208 bytes, a signature of 64, the body:

    offset size field
         0    8 magic b"SHOALPAY"
         8    2 version u16 = 1
        10    2 flags u16 = 0
        12    2 codec u16 = value_bits of the manifest
        14    2 reserved u16 = 0
        16   32 run id
        48   32 manifest hash
        80    8 round u64
        88   32 peer key
       120   32 base state: the state hash that the round begins with
       152    4 inner steps done u32, 1 to the manifest's number
       156    4 reserved u32 = 0
       160    8 tokens seen u64, below 2^53
       168    8 body length u64
       176   32 SHA-256 of the body
       208   64 Ed25519 signature of domain || 0x00 || header
       272    - body, in the codec's layout

Guarantees: any 208 bytes are exactly one header and back; the id is a hash of the header, which
pins the body, so signature bytes never identify content; two different headers that one peer signed
for one round prove equivocation whatever else is wrong with them.

Not done here: judging the fields (`payload.validate`). Nobody is trusted.
"""

import struct
from dataclasses import InitVar, astuple, dataclass, field
from typing import Final

from shoal.protocol import signing
from shoal.protocol.errors import ErrorCode, LocalProtocolError, PayloadError, reported_as
from shoal.protocol.identity import SIGNATURE_BYTES, Identity, PeerId, parse_peer_key
from shoal.protocol.signing import Domain, digest

MAGIC: Final = b"SHOALPAY"
VERSION: Final = 1

_HEADER: Final = struct.Struct("<8sHHHH32s32sQ32s32sIIQQ32s")
HEADER_BYTES: Final = _HEADER.size
PAYLOAD_PREFIX_BYTES: Final = HEADER_BYTES + SIGNATURE_BYTES
MAX_TOKENS: Final = 2**53 - 1
_HASH_BYTES: Final = 32
_TOKEN: Final = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadHeader:
    """The header's fields as the bytes say them, in wire order; nothing is checked."""

    magic: bytes = MAGIC
    version: int = VERSION
    flags: int = 0
    codec: int
    reserved: int = 0
    run_id: bytes
    manifest_hash: bytes
    round_id: int
    peer_key: bytes
    base_state: bytes
    inner_steps: int
    reserved2: int = 0
    tokens: int
    body_len: int
    body_sha256: bytes

    def pack(self) -> bytes:
        """Write the header.

        Returns:
            208 bytes.

        Raises:
            LocalProtocolError: A field does not fit its width.
        """
        hashes = (self.run_id, self.manifest_hash, self.peer_key, self.base_state, self.body_sha256)
        if len(self.magic) != len(MAGIC) or any(len(one) != _HASH_BYTES for one in hashes):
            raise LocalProtocolError("a hash or key of a payload header has not 32 bytes")
        try:
            return _HEADER.pack(*astuple(self))
        except struct.error as error:
            raise LocalProtocolError(f"a payload header field does not fit: {error}") from error

    @staticmethod
    def unpack(raw: bytes | memoryview) -> "PayloadHeader":
        """Read the fields without judging them; any 208 bytes are some header.

        Args:
            raw: Exactly the header.

        Returns:
            The fields; packing them again gives `raw`.

        Raises:
            PayloadError: E_LEN for another length.
        """
        if len(raw) != HEADER_BYTES:
            detail = f"payload header has {len(raw)} bytes, expected {HEADER_BYTES}"
            raise PayloadError(ErrorCode.E_LEN, detail)
        names = PayloadHeader.__dataclass_fields__
        return PayloadHeader(**dict(zip(names, _HEADER.unpack(raw), strict=True)))


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadPeek:
    """What a file claims to be; for people to look at, never for decisions."""

    header: PayloadHeader
    payload_id: bytes
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EquivocationProof:
    """Two different headers that one peer signed for one round; only `check_equivocation` does."""

    peer: PeerId
    run_id: bytes
    round_id: int
    first: bytes = field(repr=False)
    second: bytes = field(repr=False)
    token: InitVar[object]

    def __post_init__(self, token: object) -> None:
        if token is not _TOKEN:
            raise LocalProtocolError("only check_equivocation makes a proof")


def expected_payload_bytes(body_bytes: int) -> int:
    """Compute the exact length of a payload.

    Args:
        body_bytes: The length of every body of the run.

    Returns:
        Header, signature and body together.
    """
    return PAYLOAD_PREFIX_BYTES + body_bytes


def payload_id(header: bytes) -> bytes:
    """Name a payload by its 208 header bytes; the signature is not part of the name.

    Args:
        header: The packed header.

    Returns:
        32 bytes.
    """
    return digest(Domain.PAYLOAD_ID, header)


def sign_header(identity: Identity, header: PayloadHeader) -> bytes:
    """Make the first 272 bytes of a payload whose body is written elsewhere.

    Args:
        identity: Who contributes.
        header: All fields; `peer_key` is the identity's.

    Returns:
        Header and signature.

    Raises:
        LocalProtocolError: A field does not fit, or the key is another identity's.
    """
    if header.peer_key != identity.peer.key:
        raise LocalProtocolError("a payload header is signed by the key that it names")
    raw = header.pack()
    return raw + signing.sign(identity, Domain.PAYLOAD, raw)


def check_signature(peer: PeerId, signed_header: bytes) -> None:
    """Verify the signature of a signed header.

    Args:
        peer: Whose it should be.
        signed_header: Header and signature, 272 bytes.

    Raises:
        RemoteProtocolError: E_SIG if it does not verify.
    """
    signature = signed_header[HEADER_BYTES:]
    signing.verify(peer, Domain.PAYLOAD, signed_header[:HEADER_BYTES], signature)


def peek(raw: bytes | memoryview) -> PayloadPeek:
    """Read what the bytes claim, for inspection only; nothing is checked but that a header fits.

    Args:
        raw: A payload or the beginning of one.

    Returns:
        The header's fields as they stand.

    Raises:
        PayloadError: E_LEN, fewer bytes than a header has.
    """
    view = memoryview(raw).cast("B")
    head = bytes(view[:HEADER_BYTES])
    header = PayloadHeader.unpack(head)
    return PayloadPeek(header=header, payload_id=payload_id(head), num_bytes=len(view))


def check_equivocation(first: bytes, second: bytes) -> EquivocationProof:
    """Check that two signed headers prove equivocation, whatever else is wrong with them.

    Args:
        first: Header and signature, 272 bytes.
        second: The same of another payload.

    Returns:
        The proof.

    Raises:
        PayloadError: E_LEN for another length; E_KEY_WEAK or E_SIG where a header was not validly
            signed by the key it names; E_PEER_UNKNOWN, E_RUN or E_ROUND_OLD where peer, run or
            round of the two differ; E_DUPLICATE where the headers are equal.
    """
    with reported_as(PayloadError):
        one, peer = _read_signed(first)
        two, _ = _read_signed(second)
    if one.peer_key != two.peer_key:
        raise PayloadError(ErrorCode.E_PEER_UNKNOWN, "the headers are of two peers")
    if one.run_id != two.run_id:
        raise PayloadError(ErrorCode.E_RUN, "the headers are of two runs")
    if one.round_id != two.round_id:
        raise PayloadError(ErrorCode.E_ROUND_OLD, "the headers are of two rounds")
    if one == two:
        raise PayloadError(ErrorCode.E_DUPLICATE, "the headers are equal")
    return EquivocationProof(
        peer=peer,
        run_id=one.run_id,
        round_id=one.round_id,
        first=first,
        second=second,
        token=_TOKEN,
    )


def _read_signed(raw: bytes) -> tuple[PayloadHeader, PeerId]:
    if len(raw) != PAYLOAD_PREFIX_BYTES:
        detail = f"signed header has {len(raw)} bytes, expected {PAYLOAD_PREFIX_BYTES}"
        raise PayloadError(ErrorCode.E_LEN, detail)
    header = PayloadHeader.unpack(raw[:HEADER_BYTES])
    peer = parse_peer_key(header.peer_key)
    check_signature(peer, raw)
    return header, peer
