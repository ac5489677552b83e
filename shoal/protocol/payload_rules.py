"""What the manifest and the round say of a payload, and the rules that its header must keep.

Guarantees: `check_head` applies rules 1 to 11 of `payload`, in their order, to the first 272 bytes,
so that a payload which cannot count is refused before its body is downloaded.

Not done here: the body's hash and content, and whether the peer has sent another (`payload`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from shoal.protocol.errors import ErrorCode, PayloadError, reported_as
from shoal.protocol.identity import PeerId, parse_peer_key
from shoal.protocol.payload_header import (
    HEADER_BYTES,
    MAGIC,
    MAX_TOKENS,
    PAYLOAD_PREFIX_BYTES,
    VERSION,
    PayloadHeader,
    check_signature,
    expected_payload_bytes,
)

BodyT = TypeVar("BodyT")
BodyT_co = TypeVar("BodyT_co", covariant=True)


class ArrivingBody(Protocol[BodyT_co]):
    """The codec's check of one body while it is on its way.

    Nothing is said of the content before `finish`: until then the body's hash is not known.
    """

    def advance(self, body: memoryview, num_arrived: int) -> None:
        """Look at the whole chunks among the first bytes; they will not change any more.

        Args:
            body: Room for the whole body.
            num_arrived: How many of its bytes are there.
        """
        ...

    def finish(self, body: memoryview) -> BodyT_co:
        """Give what checking the whole body at once would have given; raises `PayloadError`."""
        ...


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
    start_body: "Callable[[], ArrivingBody[BodyT]] | None" = None
    """The same check for a body that is looked at while it arrives; None: only as a whole."""
    evidence: Mapping[PeerId, bytes] = field(default_factory=dict)
    """Signed headers of the payloads in `seen`, where they were kept."""


class SignedHead(NamedTuple):
    """A payload's first 272 bytes, checked."""

    header: PayloadHeader
    peer: PeerId
    raw: bytes
    """Header and signature as received."""


def check_head(
    view: memoryview, num_bytes: int, rules: PayloadRules, context: PayloadContext[BodyT]
) -> SignedHead:
    """Check everything but the body.

    Args:
        view: At least the first 272 bytes, unless the length is wrong.
        num_bytes: Length of the whole payload.
        rules: From the manifest.
        context: The round.

    Returns:
        The head.

    Raises:
        PayloadError: With the code of the first rule that fails.
    """
    with reported_as(PayloadError):
        _check_length(num_bytes, rules)
        raw = bytes(view[:PAYLOAD_PREFIX_BYTES])
        header = PayloadHeader.unpack(raw[:HEADER_BYTES])
        _check_format(header, rules)
        _check_place(header, rules, context.round_id)
        peer = _check_sender(header, rules)
        _check_origin(header, rules, context.base_state)
        check_signature(peer, raw)
    return SignedHead(header, peer, raw)


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
