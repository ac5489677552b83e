"""The chain of round records: which payloads count in a round, and the state that they lead to.

An envelope of kind "record" with one or more validators' signatures around the body of
`record_body`; the hashes are those of `chain`.

Rules of `read_record`, in this order; the first that fails gives the code:

1. length and envelope (E_LEN, E_MAGIC, E_VERSION, E_FLAGS, E_QUORUM, E_SIGNER_REPEATED)
2. canonical JSON (E_JSON...) of this shape (E_JSON)
3. run (E_RUN), manifest (E_MANIFEST), round (E_ROLLBACK, E_GAP), predecessor (E_PREV), base state
   (E_PARENT)
4. counted: at most the gather limit, weights in range (E_RECORD), keys (E_KEY_WEAK), in the roster
   if there is one (E_PEER_UNKNOWN), no peer and no payload twice (E_DUPLICATE)
5. void exactly if nothing is counted (E_RECORD); then the state is the void one (E_STATE)
6. signers are validators (E_PEER_UNKNOWN), each signature verifies (E_SIG), enough (E_QUORUM)

Guarantees: the id is a hash of the body, so the set and order of signatures never identify a
record. Trusted: a threshold of the manifest's validators, and only they. The state of a record that
counts payloads is checked by whoever applies it, with `next_state`.

Not done here: fetching, summing, deciding what counts.
"""

from dataclasses import InitVar, dataclass, field, replace
from typing import Final

from shoal.protocol.chain import (
    EMPTY_SUM_HASH,
    ChainHead,
    genesis_head,
    next_state,
    record_id,
    round_seed,
    void_state,
)
from shoal.protocol.envelope import (
    Envelope,
    MessageKind,
    open_envelope,
    seal,
    sign_body,
    verify_signatures,
)
from shoal.protocol.errors import (
    ErrorCode,
    ForkError,
    LocalProtocolError,
    OutOfOrderError,
    RecordError,
    reported_as,
)
from shoal.protocol.identity import Identity, PeerId, parse_peer_key
from shoal.protocol.record_body import (
    CloseReason,
    CountedPayload,
    RawEntry,
    RoundRecord,
    pack_body,
    unpack_body,
)

__all__ = [
    "EMPTY_SUM_HASH",
    "MAX_WEIGHT",
    "ChainHead",
    "CloseReason",
    "CountedPayload",
    "RecordRules",
    "RoundRecord",
    "VerifiedRecord",
    "add_signature",
    "build_record",
    "check_certified",
    "check_fork",
    "genesis_head",
    "merge_signatures",
    "next_state",
    "read_known",
    "read_record",
    "record_id",
    "round_seed",
    "void_state",
]

MAX_WEIGHT: Final = 2**15

_TOKEN: Final = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordRules:
    """What the manifest says about every record of a run."""

    run_id: bytes
    manifest_hash: bytes
    validators: tuple[PeerId, ...]
    threshold: int
    """How many of the validators have to sign."""
    gather_limit: int
    """Most payloads that may count in a round."""
    roster: frozenset[PeerId] | None
    """Who may contribute; None: anyone."""
    max_bytes: int
    """Longest accepted record, envelope included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedRecord:
    """A record that enough validators signed and that follows its head; only this module's."""

    record: RoundRecord
    record_id: bytes
    signers: tuple[PeerId, ...]
    raw: bytes = field(repr=False)
    """The envelope as received: evidence."""
    token: InitVar[object]

    def __post_init__(self, token: object) -> None:
        if token is not _TOKEN:
            raise LocalProtocolError("only read_record makes a verified record")

    @property
    def head(self) -> ChainHead:
        """The chain's head once this record is applied."""
        return ChainHead(
            round_id=self.record.round_id, record_id=self.record_id, state=self.record.state
        )


def build_record(record: RoundRecord, identities: tuple[Identity, ...]) -> bytes:
    """Sign a record; `read_record` says what must be true of it.

    Args:
        record: The content.
        identities: The validators that sign now; others add theirs later.

    Returns:
        The envelope's bytes.

    Raises:
        LocalProtocolError: No identity, one twice, or a value without a canonical form.
    """
    return seal(MessageKind.RECORD, pack_body(record), identities)


def add_signature(raw: bytes, identity: Identity) -> bytes:
    """Co-sign a record that was checked before.

    Args:
        raw: The record's envelope.
        identity: Who signs too.

    Returns:
        An envelope with one signature more and the same body.

    Raises:
        RecordError: The bytes are not a record's envelope.
        LocalProtocolError: This identity signed it already.
    """
    envelope = _open_own(raw)
    signature = sign_body(envelope.kind, envelope.body, identity)
    return replace(envelope, signatures=(*envelope.signatures, signature)).pack()


def merge_signatures(first: bytes, second: bytes) -> bytes:
    """Join what two sets of validators signed; signatures are not checked here.

    Args:
        first: A record's envelope.
        second: Another one with the same body.

    Returns:
        An envelope with the first one's signatures, then those of further signers.

    Raises:
        RecordError: The bytes are not record envelopes, or E_RECORD for different bodies.
    """
    one, two = _open_own(first), _open_own(second)
    if one.body != two.body:
        raise RecordError(ErrorCode.E_RECORD, "the signatures are of different records")
    known = {signature.key for signature in one.signatures}
    more = tuple(signature for signature in two.signatures if signature.key not in known)
    return replace(one, signatures=(*one.signatures, *more)).pack()


def read_record(raw: bytes | memoryview, rules: RecordRules, head: ChainHead) -> VerifiedRecord:
    """Check a record by the rules of this module, in their order.

    To check a proposal that not enough validators signed yet, lower `rules.threshold`.

    Args:
        raw: The bytes as received; whoever sent them is not trusted.
        rules: From the manifest.
        head: The record before it.

    Returns:
        The checked record.

    Raises:
        RecordError: With the code of the first rule that fails.
    """
    with reported_as(RecordError):
        envelope = _open(raw, rules)
        entries, draft = unpack_body(envelope.body, rules.max_bytes)
        _check_place(draft, rules, head)
        record = replace(draft, counted=_check_counted(entries, rules))
        _check_void(record)
        signers = _check_signers(envelope, rules)
    return VerifiedRecord(
        record=record,
        record_id=record_id(envelope.body),
        signers=signers,
        raw=bytes(raw),
        token=_TOKEN,
    )


def check_fork(
    known: VerifiedRecord, other_raw: bytes | memoryview, rules: RecordRules, head_before: ChainHead
) -> None:
    """Look for a fork: another record of the known one's round that enough validators signed.

    Only shape, run, round and signatures of the other record matter: two certified bodies for one
    round are a fork whatever else is wrong with them.

    Args:
        known: The record that this node holds.
        other_raw: What somebody shows as the record of that round.
        rules: From the manifest.
        head_before: The head that `known` follows.

    Raises:
        ForkError: E_FORK with both as evidence; the node halts.
        RecordError: The other one is no certified record of this round: it proves nothing.
        OutOfOrderError: `known` does not follow `head_before`.
    """
    if (known.record.previous, known.record.round_id) != (
        head_before.record_id,
        head_before.round_id + 1,
    ):
        raise OutOfOrderError("the known record does not follow the head before it")
    with reported_as(RecordError):
        envelope = _open(other_raw, rules)
        _, other = unpack_body(envelope.body, rules.max_bytes)
        _check_run(other, rules)
        _check_round(other, head_before)
        _check_signers(envelope, rules)
    if record_id(envelope.body) != known.record_id:
        detail = f"round {other.round_id} has two certified records"
        raise ForkError(detail, known.raw, bytes(other_raw))


def check_certified(raw: bytes | memoryview, rules: RecordRules, round_id: int) -> bytes:
    """Check only shape, run, round and signatures: that enough validators signed it.

    For those who hand records on without having those before; `read_record` is for applying.

    Args:
        raw: The bytes as received.
        rules: From the manifest.
        round_id: The round it must be of.

    Returns:
        The record's id.

    Raises:
        RecordError: It is no certified record of this round.
    """
    with reported_as(RecordError):
        envelope = _open(raw, rules)
        _, record = unpack_body(envelope.body, rules.max_bytes)
        _check_run(record, rules)
        if record.round_id != round_id:
            code = ErrorCode.E_ROLLBACK if record.round_id < round_id else ErrorCode.E_GAP
            raise RecordError(code, f"round {record.round_id}, expected {round_id}")
        _check_signers(envelope, rules)
    return record_id(envelope.body)


def read_known(raw: bytes | memoryview, rules: RecordRules, known_id: bytes) -> RoundRecord:
    """Read again a record whose id is known from one that was verified.

    The id is a hash of the body: signatures and place were checked when it was met first.

    Args:
        raw: The bytes as received.
        rules: From the manifest.
        known_id: 32 bytes.

    Returns:
        Its content.

    Raises:
        RecordError: It is no record, or E_PREV: another one.
    """
    with reported_as(RecordError):
        envelope = _open(raw, rules)
        found = record_id(envelope.body)
        if found != known_id:
            raise RecordError(ErrorCode.E_PREV, f"found {found.hex()}, wanted {known_id.hex()}")
        entries, draft = unpack_body(envelope.body, rules.max_bytes)
        return replace(draft, counted=_check_counted(entries, rules))


def _open(raw: bytes | memoryview, rules: RecordRules) -> Envelope:
    return open_envelope(
        raw,
        MessageKind.RECORD,
        max_bytes=rules.max_bytes,
        max_signatures=len(rules.validators),
    )


def _open_own(raw: bytes) -> Envelope:
    with reported_as(RecordError):
        return open_envelope(raw, MessageKind.RECORD, max_bytes=len(raw), max_signatures=len(raw))


def _check_run(record: RoundRecord, rules: RecordRules) -> None:
    if record.run_id != rules.run_id:
        raise RecordError(ErrorCode.E_RUN, f"run {record.run_id.hex()}")


def _check_round(record: RoundRecord, head: ChainHead) -> None:
    if record.round_id <= head.round_id:
        detail = f"round {record.round_id}, already closed up to {head.round_id}"
        raise RecordError(ErrorCode.E_ROLLBACK, detail)
    if record.round_id > head.round_id + 1:
        detail = f"round {record.round_id}, expected {head.round_id + 1}"
        raise RecordError(ErrorCode.E_GAP, detail)


def _check_place(record: RoundRecord, rules: RecordRules, head: ChainHead) -> None:
    _check_run(record, rules)
    if record.manifest_hash != rules.manifest_hash:
        raise RecordError(ErrorCode.E_MANIFEST, f"manifest {record.manifest_hash.hex()}")
    _check_round(record, head)
    if record.previous != head.record_id:
        detail = f"follows {record.previous.hex()}, expected {head.record_id.hex()}"
        raise RecordError(ErrorCode.E_PREV, detail)
    if record.base_state != head.state:
        detail = f"base state {record.base_state.hex()}, expected {head.state.hex()}"
        raise RecordError(ErrorCode.E_PARENT, detail)


def _check_counted(entries: tuple[RawEntry, ...], rules: RecordRules) -> tuple[CountedPayload, ...]:
    if len(entries) > rules.gather_limit:
        detail = f"{len(entries)} payloads counted, at most {rules.gather_limit} allowed"
        raise RecordError(ErrorCode.E_RECORD, detail)
    counted = tuple(_check_entry(entry, rules) for entry in entries)
    peers = {one.peer for one in counted}
    payloads = {one.payload_id for one in counted}
    if len(peers) != len(counted) or len(payloads) != len(counted):
        raise RecordError(ErrorCode.E_DUPLICATE, "a peer or a payload is counted twice")
    return counted


def _check_entry(entry: RawEntry, rules: RecordRules) -> CountedPayload:
    if not 0 <= entry.weight <= MAX_WEIGHT:
        detail = f"weight {entry.weight}, expected 0 to {MAX_WEIGHT}"
        raise RecordError(ErrorCode.E_RECORD, detail)
    peer = parse_peer_key(entry.peer_key)
    if rules.roster is not None and peer not in rules.roster:
        raise RecordError(ErrorCode.E_PEER_UNKNOWN, f"{peer.text} is not in the roster")
    return CountedPayload(peer=peer, payload_id=entry.payload_id, weight=entry.weight)


def _check_void(record: RoundRecord) -> None:
    if record.void != (not record.counted):
        detail = f"void is {record.void}, but {len(record.counted)} payloads are counted"
        raise RecordError(ErrorCode.E_RECORD, detail)
    expected = void_state(record.run_id, record.round_id, record.base_state)
    if record.void and record.state != expected:
        detail = f"void record leads to {record.state.hex()}, expected {expected.hex()}"
        raise RecordError(ErrorCode.E_STATE, detail)


def _check_signers(envelope: Envelope, rules: RecordRules) -> tuple[PeerId, ...]:
    validators = {validator.key for validator in rules.validators}
    for signature in envelope.signatures:
        if signature.key not in validators:
            detail = f"{signature.key.hex()} is not a validator's key"
            raise RecordError(ErrorCode.E_PEER_UNKNOWN, detail)
    signers = verify_signatures(envelope)
    if len(signers) < rules.threshold:
        detail = f"{len(signers)} validators signed, {rules.threshold} needed"
        raise RecordError(ErrorCode.E_QUORUM, detail)
    return signers
