"""One peer's signed contribution to one round: a header, a signature, a body of known length.

The layout is that of `payload_header`: 208 bytes of header, 64 of signature, then the body.

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
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Final, Generic, TypeVar

from shoal.protocol.errors import (
    EquivocationError,
    ErrorCode,
    LocalProtocolError,
    PayloadError,
    RemoteProtocolError,
    reported_as,
)
from shoal.protocol.identity import Identity, PeerId, parse_peer_key
from shoal.protocol.payload_header import (
    HEADER_BYTES,
    MAGIC,
    MAX_TOKENS,
    PAYLOAD_PREFIX_BYTES,
    VERSION,
    EquivocationProof,
    PayloadHeader,
    PayloadPeek,
    check_equivocation,
    check_signature,
    expected_payload_bytes,
    payload_id,
    peek,
    sign_header,
)

__all__ = [
    "PAYLOAD_PREFIX_BYTES",
    "EquivocationProof",
    "Payload",
    "PayloadContext",
    "PayloadHeader",
    "PayloadPeek",
    "PayloadRules",
    "build_payload",
    "check_equivocation",
    "expected_payload_bytes",
    "payload_id",
    "peek",
    "sign_header",
    "validate",
]

_TOKEN: Final = object()

BodyT = TypeVar("BodyT")


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
    signed_header: bytes = field(repr=False)
    """Header and signature as received: evidence, if the peer signs another one."""
    body: BodyT = field(repr=False)
    """What `check_body` returned."""
    num_bytes: int
    """Length of the whole payload."""
    token: InitVar[object]

    def __post_init__(self, token: object) -> None:
        if token is not _TOKEN:
            raise LocalProtocolError("only validate makes a payload")


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
        check_signature(peer, signed_header)
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
    if header.tokens > MAX_TOKENS:
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
