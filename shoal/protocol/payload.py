"""One peer's signed contribution to one round: a header, a signature, a body of known length.

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

Rules of `validate`, in this order, cheapest first; the first that fails gives the code:

 1. total length is the manifest's (E_LEN)       8. in the roster, if there is one (E_PEER_UNKNOWN)
 2. magic (E_MAGIC)                              9. base state is this round's (E_PARENT)
 3. version and codec (E_VERSION), flags,       10. body length is the manifest's (E_BODY_LEN)
    reserved and number ranges (E_FLAGS)        11. signature (E_SIG)
 4. run (E_RUN)                                 12. SHA-256 of the body (E_BODY_HASH)
 5. manifest (E_MANIFEST)                       13. content, by the codec (its own codes)
 6. round (E_ROUND_OLD, E_ROUND_FUTURE)         14. first of this peer and round (E_DUPLICATE,
 7. key encoding (E_KEY_WEAK)                       E_EQUIVOCATION)

Guarantees: no number of the peer's is used as a size; any change of one bit of an accepted payload
is refused; the id is a hash of the header, which pins the body, so signature bytes never identify
content. Whoever sent the bytes is trusted for nothing; inner steps and tokens stay claims.

Not done here: decoding (the caller injects `check_body`), sealing, fetching.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import InitVar, astuple, dataclass, field
from typing import Final, Generic, TypeVar

from shoal.protocol import signing
from shoal.protocol.errors import (
    EquivocationError,
    ErrorCode,
    LocalProtocolError,
    PayloadError,
    RemoteProtocolError,
    reported_as,
)
from shoal.protocol.identity import SIGNATURE_BYTES, Identity, PeerId, parse_peer_key
from shoal.protocol.signing import Domain, digest

MAGIC: Final = b"SHOALPAY"
VERSION: Final = 1

_HEADER: Final = struct.Struct("<8sHHHH32s32sQ32s32sIIQQ32s")
HEADER_BYTES: Final = _HEADER.size
PAYLOAD_PREFIX_BYTES: Final = HEADER_BYTES + SIGNATURE_BYTES
_MAX_TOKENS: Final = 2**53 - 1
_HASH_BYTES: Final = 32
_TOKEN: Final = object()

BodyT = TypeVar("BodyT")


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
class PayloadRules:
    """What the manifest says about every payload of a run."""

    run_id: bytes
    """32 bytes."""
    manifest_hash: bytes
    """32 bytes."""
    codec_value_bits: int
    """Bits per kept value; the header's codec field."""
    body_bytes: int
    """The exact length of every body."""
    roster: frozenset[PeerId] | None
    """Who may contribute; None: anyone."""
    max_inner_steps: int
    """The inner steps of a round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadContext(Generic[BodyT]):
    """What a node knows about the round in which it checks payloads."""

    round_id: int
    """The round in progress."""
    base_state: bytes
    """The state hash that the round begins with, 32 bytes."""
    seen: Mapping[PeerId, bytes]
    """Payload ids that were accepted in this round already."""
    check_body: Callable[[memoryview], BodyT]
    """Decodes and checks a body of the right length and hash; raises `PayloadError`."""
    evidence: Mapping[PeerId, bytes] = field(default_factory=dict)
    """Signed headers of the payloads in `seen`, where they were kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload(Generic[BodyT]):
    """A checked payload; only `validate` makes one, so having one is the proof."""

    header: PayloadHeader
    peer: PeerId
    payload_id: bytes
    """32 bytes, the payload's name everywhere."""
    signed_header: bytes
    """Header and signature as received: evidence, if the peer signs another one."""
    body: BodyT
    """What `check_body` returned."""
    num_bytes: int
    """Length of the whole payload."""
    token: InitVar[object]

    def __post_init__(self, token: object) -> None:
        _only_here(token)


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
    first: bytes
    second: bytes
    token: InitVar[object]

    def __post_init__(self, token: object) -> None:
        _only_here(token)


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


def build_payload(
    identity: Identity,
    *,
    run_id: bytes,
    manifest_hash: bytes,
    codec_value_bits: int,
    round_id: int,
    base_state: bytes,
    inner_steps: int,
    tokens: int,
    body: bytes,
) -> bytes:
    """Make a signed payload.

    Args:
        identity: Who contributes.
        run_id: 32 bytes.
        manifest_hash: 32 bytes.
        codec_value_bits: Bits per kept value.
        round_id: The round in progress.
        base_state: The state hash that the round begins with, 32 bytes.
        inner_steps: Inner steps done.
        tokens: Tokens seen in this round.
        body: The encoded contribution.

    Returns:
        The payload's bytes; `validate` accepts them if the values are those of the round.

    Raises:
        LocalProtocolError: A field does not fit its width.
    """
    header = PayloadHeader(
        codec=codec_value_bits,
        run_id=run_id,
        manifest_hash=manifest_hash,
        round_id=round_id,
        peer_key=identity.peer.key,
        base_state=base_state,
        inner_steps=inner_steps,
        tokens=tokens,
        body_len=len(body),
        body_sha256=hashlib.sha256(body).digest(),
    )
    return sign_header(identity, header) + body


def validate(
    raw: bytes | memoryview, rules: PayloadRules, context: PayloadContext[BodyT]
) -> Payload[BodyT]:
    """Check a payload by every rule of this module, in their order; the sender is not trusted.

    Args:
        raw: The bytes as received. They must not change while this runs, nor while the body lives
            if `check_body` keeps a view of it.
        rules: From the manifest.
        context: The round, and what was accepted in it.

    Returns:
        The checked payload.

    Raises:
        PayloadError: With the code of the first rule that fails; `peer` is set from rule 12 on.
        EquivocationError: E_EQUIVOCATION, another payload of this peer and round was accepted.
    """
    with reported_as(PayloadError):
        view = memoryview(raw).cast("B")
        _check_length(len(view), rules)
        signed_header = bytes(view[:PAYLOAD_PREFIX_BYTES])
        header = PayloadHeader.unpack(signed_header[:HEADER_BYTES])
        _check_format(header, rules)
        _check_place(header, rules, context.round_id)
        peer = _check_sender(header, rules)
        _check_origin(header, rules, context.base_state)
        _check_signature(peer, signed_header)
    body_view = view[PAYLOAD_PREFIX_BYTES:]
    _check_hash(header, peer, body_view)
    name = payload_id(signed_header[:HEADER_BYTES])
    body = _check_body(peer, body_view, context)
    _check_first(peer, name, signed_header, context)
    return Payload(
        header=header,
        peer=peer,
        payload_id=name,
        signed_header=signed_header,
        body=body,
        num_bytes=len(view),
        token=_TOKEN,
    )


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


def _only_here(token: object) -> None:
    if token is not _TOKEN:
        raise LocalProtocolError("only the checks of shoal.protocol.payload make this value")


def _read_signed(raw: bytes) -> tuple[PayloadHeader, PeerId]:
    if len(raw) != PAYLOAD_PREFIX_BYTES:
        detail = f"signed header has {len(raw)} bytes, expected {PAYLOAD_PREFIX_BYTES}"
        raise PayloadError(ErrorCode.E_LEN, detail)
    header = PayloadHeader.unpack(raw[:HEADER_BYTES])
    peer = parse_peer_key(header.peer_key)
    _check_signature(peer, raw)
    return header, peer


def _check_length(num_bytes: int, rules: PayloadRules) -> None:
    expected = expected_payload_bytes(rules.body_bytes)
    if num_bytes != expected:
        raise PayloadError(ErrorCode.E_LEN, f"payload has {num_bytes} bytes, expected {expected}")


def _check_format(header: PayloadHeader, rules: PayloadRules) -> None:
    if header.magic != MAGIC:
        raise PayloadError(ErrorCode.E_MAGIC, "not a payload")
    if header.version != VERSION:
        detail = f"payload version {header.version}, expected {VERSION}"
        raise PayloadError(ErrorCode.E_VERSION, detail)
    if header.flags != 0:
        raise PayloadError(ErrorCode.E_FLAGS, f"flags are {header.flags:#06x}, expected 0")
    if header.codec != rules.codec_value_bits:
        detail = f"codec {header.codec}, expected {rules.codec_value_bits}"
        raise PayloadError(ErrorCode.E_VERSION, detail)
    if header.reserved != 0 or header.reserved2 != 0:
        raise PayloadError(ErrorCode.E_FLAGS, "a reserved field is not zero")
    if not 1 <= header.inner_steps <= rules.max_inner_steps:
        detail = f"inner steps {header.inner_steps}, expected 1 to {rules.max_inner_steps}"
        raise PayloadError(ErrorCode.E_FLAGS, detail)
    if header.tokens > _MAX_TOKENS:
        raise PayloadError(ErrorCode.E_FLAGS, f"tokens {header.tokens}, expected below 2^53")


def _check_place(header: PayloadHeader, rules: PayloadRules, round_id: int) -> None:
    if header.run_id != rules.run_id:
        raise PayloadError(ErrorCode.E_RUN, f"run {header.run_id.hex()}")
    if header.manifest_hash != rules.manifest_hash:
        raise PayloadError(ErrorCode.E_MANIFEST, f"manifest {header.manifest_hash.hex()}")
    if header.round_id != round_id:
        old = header.round_id < round_id
        code = ErrorCode.E_ROUND_OLD if old else ErrorCode.E_ROUND_FUTURE
        raise PayloadError(code, f"round {header.round_id}, expected {round_id}")


def _check_sender(header: PayloadHeader, rules: PayloadRules) -> PeerId:
    peer = parse_peer_key(header.peer_key)
    if rules.roster is not None and peer not in rules.roster:
        raise PayloadError(ErrorCode.E_PEER_UNKNOWN, f"{peer.text} is not in the roster")
    return peer


def _check_origin(header: PayloadHeader, rules: PayloadRules, base_state: bytes) -> None:
    if header.base_state != base_state:
        detail = f"base state {header.base_state.hex()}, expected {base_state.hex()}"
        raise PayloadError(ErrorCode.E_PARENT, detail)
    if header.body_len != rules.body_bytes:
        detail = f"header gives {header.body_len} body bytes, expected {rules.body_bytes}"
        raise PayloadError(ErrorCode.E_BODY_LEN, detail)


def _check_signature(peer: PeerId, signed_header: bytes) -> None:
    signature = signed_header[HEADER_BYTES:]
    signing.verify(peer, Domain.PAYLOAD, signed_header[:HEADER_BYTES], signature)


def _check_hash(header: PayloadHeader, peer: PeerId, body: memoryview) -> None:
    found = hashlib.sha256(body).digest()
    if found != header.body_sha256:
        detail = f"body has SHA-256 {found.hex()}, header gives {header.body_sha256.hex()}"
        raise PayloadError(ErrorCode.E_BODY_HASH, detail, peer)


def _check_body(peer: PeerId, body: memoryview, context: PayloadContext[BodyT]) -> BodyT:
    try:
        return context.check_body(body)
    except RemoteProtocolError as error:
        raise PayloadError(error.code, error.detail, peer) from error


def _check_first(
    peer: PeerId, name: bytes, signed_header: bytes, context: PayloadContext[BodyT]
) -> None:
    earlier = context.seen.get(peer)
    if earlier is None:
        return
    if earlier == name:
        raise PayloadError(ErrorCode.E_DUPLICATE, f"payload {name.hex()} is known already", peer)
    detail = f"round {context.round_id}: first {earlier.hex()}, then {name.hex()}"
    raise EquivocationError(detail, peer, context.evidence.get(peer, b""), signed_header)
