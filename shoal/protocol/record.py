"""The chain of round records: which payloads count in a round, and the state that they lead to.

An envelope of kind "record" with one or more validators' signatures. The body is canonical JSON
with exactly these keys (hashes are 64 lower-case hex digits):

    kind          "shoal/record/1"
    run, manifest hashes
    round         0 < integer < 2^53
    attempt       0 <= integer < 2^32: which lead proposed it
    previous      id of the record of the round before; the run id in round 1
    base_state    state hash that the round began with
    state         state hash that the counted payloads lead to
    void          bool: nothing counts, the parameters stay
    counted       list, in record order, of {"peer": key, "payload": id, "weight": 0 to 32768}
    params_root   root of the parameters after the round, or ""
    closed_at_ms  0 <= integer < 2^53, the lead's clock; informative
    close_reason  "all-published", "target-reached", "round-over" or "nobody"

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

import re
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace
from enum import StrEnum
from typing import Final

from shoal.protocol import strict_json
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
from shoal.protocol.identity import KEY_BYTES, Identity, PeerId, parse_peer_key
from shoal.protocol.signing import DIGEST_BYTES, Domain, digest
from shoal.protocol.strict_json import (
    INT_LIMIT,
    JsonValue,
    as_object,
    check_keys,
    take_bool,
    take_hex,
    take_int,
    take_list,
    take_text,
)

KIND: Final = "shoal/record/1"
MAX_WEIGHT: Final = 2**15
EMPTY_SUM_HASH: Final = digest(Domain.SUM)

_TOKEN: Final = object()
_MAX_ATTEMPT: Final = 2**32 - 1
_KEYS: Final = frozenset(
    (
        "kind", "run", "manifest", "round", "attempt", "previous", "base_state", "state", "void",
        "counted", "params_root", "closed_at_ms", "close_reason",
    )
)  # fmt: skip
_COUNTED_KEYS: Final = frozenset(("peer", "payload", "weight"))
_KIND_PATTERN: Final = re.compile(re.escape(KIND))


class CloseReason(StrEnum):
    """Why the round was closed when it was."""

    ALL_PUBLISHED = "all-published"
    TARGET_REACHED = "target-reached"
    ROUND_OVER = "round-over"
    NOBODY = "nobody"


_REASON_PATTERN: Final = re.compile("|".join(CloseReason))


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedPayload:
    """One payload that counts, with its clip weight."""

    peer: PeerId
    payload_id: bytes
    """32 bytes."""
    weight: int
    """Q15: 32768 is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """One entry of `counted` as the bytes say it."""

    peer_key: bytes
    payload_id: bytes
    weight: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRecord:
    """The content of a record; binding only inside a `VerifiedRecord`."""

    run_id: bytes
    manifest_hash: bytes
    round_id: int
    attempt: int
    previous: bytes
    base_state: bytes
    state: bytes
    void: bool
    counted: tuple[CountedPayload, ...]
    params_root: bytes
    """32 bytes, or empty in rounds without a checkpoint."""
    closed_at_ms: int
    close_reason: CloseReason


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
class ChainHead:
    """The last record that a node holds; round 0 is the genesis."""

    round_id: int
    record_id: bytes
    state: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedRecord:
    """A record that enough validators signed and that follows its head; only this module's."""

    record: RoundRecord
    record_id: bytes
    signers: tuple[PeerId, ...]
    raw: bytes
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


def genesis_head(run_id: bytes, genesis_root: bytes) -> ChainHead:
    """Make the head before round 1.

    Args:
        run_id: 32 bytes; also the id of the record that never was.
        genesis_root: Root of the first parameters, from the manifest.

    Returns:
        Round 0 with the first state hash.
    """
    state = digest(Domain.STATE, run_id, genesis_root)
    return ChainHead(round_id=0, record_id=run_id, state=state)


def record_id(body: bytes) -> bytes:
    """Name a record by its body; signatures are not part of the name.

    Args:
        body: The canonical JSON.

    Returns:
        32 bytes.
    """
    return digest(Domain.RECORD_ID, body)


def round_seed(head: ChainHead) -> bytes:
    """Derive the seed of the round after `head`; nobody knew it before that record was signed.

    Args:
        head: The record before the round.

    Returns:
        32 bytes.
    """
    return digest(Domain.ROUND_SEED, head.record_id)


def next_state(
    run_id: bytes,
    round_id: int,
    previous_state: bytes,
    counted: Sequence[bytes],
    sum_hash: bytes,
) -> bytes:
    """Chain the state hash: equal state hashes mean equal parameters.

    Args:
        run_id: 32 bytes.
        round_id: The round that was closed.
        previous_state: The state hash that it began with.
        counted: Ids of the counted payloads, 32 bytes each, in record order.
        sum_hash: Hash of the round's integer sum, 32 bytes.

    Returns:
        32 bytes.

    Raises:
        LocalProtocolError: A value has not its 32 bytes.
    """
    if any(len(one) != DIGEST_BYTES for one in (run_id, previous_state, *counted, sum_hash)):
        raise LocalProtocolError(f"a state hash is made of values of {DIGEST_BYTES} bytes")
    number = round_id.to_bytes(8, "little")
    return digest(Domain.STATE, run_id, number, previous_state, b"".join(counted), sum_hash)


def void_state(run_id: bytes, round_id: int, previous_state: bytes) -> bytes:
    """Chain the state hash over a round in which nothing counted.

    Args:
        run_id: 32 bytes.
        round_id: The round that was closed.
        previous_state: The state hash that it began with.

    Returns:
        `next_state` of no payloads and `EMPTY_SUM_HASH`.

    Raises:
        LocalProtocolError: A value has not its 32 bytes.
    """
    return next_state(run_id, round_id, previous_state, (), EMPTY_SUM_HASH)


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
    return seal(MessageKind.RECORD, strict_json.dump(_to_fields(record)), identities)


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
        RecordError: The bytes are not record envelopes, or E_PREV for different bodies.
    """
    one, two = _open_own(first), _open_own(second)
    if one.body != two.body:
        raise RecordError(ErrorCode.E_PREV, "the signatures are of different records")
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
        envelope, fields = _open(raw, rules)
        entries, draft = _from_fields(fields)
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
        envelope, fields = _open(other_raw, rules)
        _, other = _from_fields(fields)
        _check_run(other, rules)
        _check_round(other, head_before)
        _check_signers(envelope, rules)
    if record_id(envelope.body) != known.record_id:
        detail = f"round {other.round_id} has two certified records"
        raise ForkError(detail, known.raw, bytes(other_raw))


def _open(raw: bytes | memoryview, rules: RecordRules) -> tuple[Envelope, dict[str, JsonValue]]:
    envelope = open_envelope(
        raw,
        MessageKind.RECORD,
        max_bytes=rules.max_bytes,
        max_signatures=len(rules.validators),
    )
    return envelope, strict_json.load(envelope.body, rules.max_bytes)


def _open_own(raw: bytes) -> Envelope:
    with reported_as(RecordError):
        return open_envelope(raw, MessageKind.RECORD, max_bytes=len(raw), max_signatures=len(raw))


def _to_fields(record: RoundRecord) -> dict[str, object]:
    counted = [
        {"peer": one.peer.key.hex(), "payload": one.payload_id.hex(), "weight": one.weight}
        for one in record.counted
    ]
    return {
        "kind": KIND,
        "run": record.run_id.hex(),
        "manifest": record.manifest_hash.hex(),
        "round": record.round_id,
        "attempt": record.attempt,
        "previous": record.previous.hex(),
        "base_state": record.base_state.hex(),
        "state": record.state.hex(),
        "void": record.void,
        "counted": counted,
        "params_root": record.params_root.hex(),
        "closed_at_ms": record.closed_at_ms,
        "close_reason": record.close_reason.value,
    }


def _from_fields(fields: dict[str, JsonValue]) -> tuple[list[_Entry], RoundRecord]:
    """Read the shape; who is counted stays apart until the record's place is known."""
    check_keys(fields, _KEYS)
    take_text(fields, "kind", _KIND_PATTERN)
    entries = [_to_entry(value) for value in take_list(fields, "counted")]
    return entries, RoundRecord(
        run_id=take_hex(fields, "run", DIGEST_BYTES),
        manifest_hash=take_hex(fields, "manifest", DIGEST_BYTES),
        round_id=take_int(fields, "round", 1, INT_LIMIT - 1),
        attempt=take_int(fields, "attempt", 0, _MAX_ATTEMPT),
        previous=take_hex(fields, "previous", DIGEST_BYTES),
        base_state=take_hex(fields, "base_state", DIGEST_BYTES),
        state=take_hex(fields, "state", DIGEST_BYTES),
        void=take_bool(fields, "void"),
        counted=(),
        params_root=take_hex(fields, "params_root", DIGEST_BYTES, empty=True),
        closed_at_ms=take_int(fields, "closed_at_ms", 0, INT_LIMIT - 1),
        close_reason=CloseReason(take_text(fields, "close_reason", _REASON_PATTERN)),
    )


def _to_entry(value: JsonValue) -> _Entry:
    fields = as_object(value, "an entry of counted")
    check_keys(fields, _COUNTED_KEYS)
    return _Entry(
        peer_key=take_hex(fields, "peer", KEY_BYTES),
        payload_id=take_hex(fields, "payload", DIGEST_BYTES),
        weight=take_int(fields, "weight", 1 - INT_LIMIT, INT_LIMIT - 1),
    )


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


def _check_counted(entries: list[_Entry], rules: RecordRules) -> tuple[CountedPayload, ...]:
    if len(entries) > rules.gather_limit:
        detail = f"{len(entries)} payloads counted, at most {rules.gather_limit} allowed"
        raise RecordError(ErrorCode.E_RECORD, detail)
    counted = tuple(_check_entry(entry, rules) for entry in entries)
    peers = {one.peer for one in counted}
    payloads = {one.payload_id for one in counted}
    if len(peers) != len(counted) or len(payloads) != len(counted):
        raise RecordError(ErrorCode.E_DUPLICATE, "a peer or a payload is counted twice")
    return counted


def _check_entry(entry: _Entry, rules: RecordRules) -> CountedPayload:
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
