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
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Final, Generic

from shoal.protocol.errors import (
    EquivocationError,
    ErrorCode,
    LocalProtocolError,
    PayloadError,
    RemoteProtocolError,
)
from shoal.protocol.identity import Identity, PeerId
from shoal.protocol.payload_header import (
    HEADER_BYTES,
    PAYLOAD_PREFIX_BYTES,
    EquivocationProof,
    PayloadHeader,
    PayloadPeek,
    check_equivocation,
    expected_payload_bytes,
    payload_id,
    peek,
    sign_header,
)
from shoal.protocol.payload_rules import (
    BodyT,
    PayloadContext,
    PayloadRules,
    SignedHead,
    check_head,
)

__all__ = [
    "PAYLOAD_PREFIX_BYTES",
    "ArrivingPayload",
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
    view = memoryview(raw).cast("B")
    head = check_head(view, view.nbytes, rules, context)
    body = view[PAYLOAD_PREFIX_BYTES:]
    found = hashlib.sha256(body).digest()
    return _judge(head, found, lambda: context.check_body(body), context)


class ArrivingPayload(Generic[BodyT]):
    """The same checks while the bytes arrive, so that little is left to do after the last one.

    A head that breaks a rule is told as soon as it is there. What is wrong with the body is told
    at the end, in the order of the rules: before its hash is known nothing is said of its content.

    Args:
        rules: From the manifest.
        context: The round, and what was accepted in it; must say how a body begins to be checked.
        room: Where the payload arrives, exactly as long as it has to be. Belongs to the payload
            from `finish` on: nobody may write there any more.
    """

    def __init__(
        self, rules: PayloadRules, context: PayloadContext[BodyT], room: memoryview
    ) -> None:
        if context.start_body is None:
            raise LocalProtocolError("nobody says how to check a body that arrives")
        self._rules = rules
        self._context = context
        self._room = room.toreadonly()
        self._start_body = context.start_body
        self.restart()

    def restart(self) -> None:
        """Forget what was seen: the payload arrives again, from its first byte."""
        self._head: SignedHead | None = None
        self._body = self._start_body()
        self._hash = hashlib.sha256()
        self._num_hashed = PAYLOAD_PREFIX_BYTES

    def advance(self, num_arrived: int) -> None:
        """Check what is there.

        Args:
            num_arrived: Bytes of the room that have arrived; they do not change any more.

        Raises:
            PayloadError: The head breaks a rule; has its code.
        """
        if self._head is None:
            if num_arrived < PAYLOAD_PREFIX_BYTES <= self._room.nbytes:
                return
            self._head = check_head(self._room, self._room.nbytes, self._rules, self._context)
        self._hash.update(self._room[self._num_hashed : num_arrived])
        self._num_hashed = num_arrived
        body = self._room[PAYLOAD_PREFIX_BYTES:]
        self._body.advance(body, num_arrived - PAYLOAD_PREFIX_BYTES)

    def finish(self) -> Payload[BodyT]:
        """Check what is left; all bytes are there.

        Returns:
            The checked payload.

        Raises:
            PayloadError: With the code of the first rule that fails.
            EquivocationError: E_EQUIVOCATION, another payload of this peer and round was accepted.
        """
        self.advance(self._room.nbytes)
        if self._head is None:
            raise LocalProtocolError("a payload's head was looked at, and is not there")
        body = self._room[PAYLOAD_PREFIX_BYTES:]
        found = self._hash.digest()
        return _judge(self._head, found, lambda: self._body.finish(body), self._context)


def _judge(
    head: SignedHead,
    body_sha256: bytes,
    check_body: Callable[[], BodyT],
    context: PayloadContext[BodyT],
) -> Payload[BodyT]:
    """Rules 12 to 14."""
    _check_hash(head, body_sha256)
    name = payload_id(head.raw[:HEADER_BYTES])
    try:
        body = check_body()
    except RemoteProtocolError as error:
        raise PayloadError(error.code, error.detail, head.peer) from error
    _check_first(head.peer, name, head.raw, context)
    return Payload(
        header=head.header,
        peer=head.peer,
        payload_id=name,
        signed_header=head.raw,
        body=body,
        num_bytes=expected_payload_bytes(head.header.body_len),
        token=_TOKEN,
    )


def _check_hash(head: SignedHead, found: bytes) -> None:
    if found != head.header.body_sha256:
        detail = f"body has SHA-256 {found.hex()}, header gives {head.header.body_sha256.hex()}"
        raise PayloadError(ErrorCode.E_BODY_HASH, detail, head.peer)


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
