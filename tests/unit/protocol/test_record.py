from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import pytest

from shoal.protocol.chain import ChainHead, genesis_head, record_id, void_state
from shoal.protocol.envelope import MessageKind, seal
from shoal.protocol.errors import (
    ErrorCode,
    ForkError,
    LocalProtocolError,
    OutOfOrderError,
    RecordError,
)
from shoal.protocol.identity import Identity
from shoal.protocol.record import (
    VerifiedRecord,
    add_signature,
    build_record,
    check_fork,
    merge_signatures,
    read_known,
    read_record,
)
from tests.unit.protocol.wire_builders import (
    ALICE,
    BOB,
    CAROL,
    HEAD,
    IDENTITY_POINT,
    MALLORY,
    MANIFEST,
    ROUND,
    RUN,
    VALIDATORS,
    code_of,
    counted_of,
    make_record,
    record_fields,
    record_of,
    record_rules,
    seal_json,
    void_record,
)

RAW = make_record()
OTHER = "00" * 32


def read(raw: bytes, **rules: Any) -> VerifiedRecord:
    return read_record(raw, record_rules(**rules), HEAD)


def read_code(raw: bytes, **rules: Any) -> ErrorCode:
    return code_of(lambda: read(raw, **rules), RecordError)


def sealed(num_signers: int = 3, **changes: Any) -> bytes:
    return seal_json(record_fields(**changes), VALIDATORS[:num_signers], MessageKind.RECORD)


@pytest.mark.parametrize(
    "record", [record_of(), void_record(), record_of(params_root=bytes(32), attempt=7)]
)
def test_a_record_reads_back_as_it_was_built(record):
    raw = make_record(record)
    verified = read(raw)
    assert verified.record == record
    assert verified.record_id == record_id(raw[20 + 3 * 96 :])
    assert verified.signers == tuple(validator.peer for validator in VALIDATORS[:3])
    assert verified.raw == raw
    assert read(memoryview(raw)).record == record  # type: ignore[arg-type]  # views are bytes too


def test_a_record_becomes_the_head_of_the_next_round():
    first = read(RAW)
    assert first.head == ChainHead(
        round_id=ROUND, record_id=first.record_id, state=first.record.state
    )
    following = record_of(
        round_id=ROUND + 1, previous=first.record_id, base_state=first.record.state
    )
    assert read_record(make_record(following), record_rules(), first.head).record == following


def test_the_first_record_follows_the_genesis():
    head = genesis_head(RUN, bytes(32))
    first = record_of(
        round_id=1,
        previous=RUN,
        base_state=head.state,
        void=True,
        counted=(),
        state=void_state(RUN, 1, head.state),
    )
    assert read_record(make_record(first), record_rules(), head).head.round_id == 1


def test_more_signatures_than_needed_are_taken_and_the_id_stays():
    assert read(make_record(num_signers=4)).record_id == read(RAW).record_id


def test_the_order_of_the_signers_is_free():
    backwards = build_record(record_of(), VALIDATORS[2::-1])
    assert read(backwards).record_id == read(RAW).record_id


def test_without_a_roster_anyone_may_be_counted():
    record = record_of(counted=(counted_of(MALLORY, 1),))
    assert read(make_record(record), roster=None).record == record


# Every rule, in the order in which it is checked, with a way to break it.


@dataclass
class Draft:
    """A record in the making, and what it is checked against."""

    fields: dict[str, Any] = field(default_factory=record_fields)
    signers: tuple[Identity, ...] = VALIDATORS[:3]
    rules: dict[str, Any] = field(default_factory=dict)
    patch: Callable[[bytes], bytes] = bytes

    def code(self) -> ErrorCode:
        raw = self.patch(seal_json(self.fields, self.signers, MessageKind.RECORD))
        return read_code(raw, **self.rules)


def fields(**changes: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.fields.update(changes)


def entry(**changes: Any) -> Callable[[Draft], None]:
    def change(draft: Draft) -> None:
        counted = [dict(one) for one in draft.fields["counted"]]
        counted[0] |= changes
        draft.fields["counted"] = counted

    return change


def other(**changes: Any) -> Callable[[Draft], None]:
    def change(draft: Draft) -> None:
        for name, value in changes.items():
            setattr(draft, name, value)

    return change


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


PLACE: list[tuple[str, ErrorCode, Callable[[Draft], None]]] = [
    ("over the limit", ErrorCode.E_LEN, other(rules={"max_bytes": 400})),
    ("another shape", ErrorCode.E_JSON, fields(attempt=-1)),
    ("another run", ErrorCode.E_RUN, fields(run=OTHER)),
    ("another manifest", ErrorCode.E_MANIFEST, fields(manifest=OTHER)),
    ("a closed round", ErrorCode.E_ROLLBACK, fields(round=ROUND - 1)),
    ("another predecessor", ErrorCode.E_PREV, fields(previous=OTHER)),
    ("another base state", ErrorCode.E_PARENT, fields(base_state=OTHER)),
]
CONTENT: list[tuple[str, ErrorCode, Callable[[Draft], None]]] = [
    ("a weight too large", ErrorCode.E_RECORD, entry(weight=32769)),
    ("a weak key", ErrorCode.E_KEY_WEAK, entry(peer=IDENTITY_POINT.hex())),
    ("a stranger counted", ErrorCode.E_PEER_UNKNOWN, entry(peer=MALLORY.peer.key.hex())),
    ("a peer twice", ErrorCode.E_DUPLICATE, entry(peer=ALICE.peer.key.hex())),
    ("void with payloads", ErrorCode.E_RECORD, fields(void=True)),
    ("a stranger's signature", ErrorCode.E_PEER_UNKNOWN, other(signers=(MALLORY,))),
    ("a flipped signature bit", ErrorCode.E_SIG, other(patch=flip(60))),
    ("too few signatures", ErrorCode.E_QUORUM, other(rules={"threshold": 4})),
]
SINGLE: list[tuple[str, ErrorCode, Callable[[Draft], None]]] = [
    ("a truncated envelope", ErrorCode.E_LEN, other(patch=lambda raw: raw[:-1])),
    ("a longer envelope", ErrorCode.E_LEN, other(patch=lambda raw: raw + b"\0")),
    ("magic", ErrorCode.E_MAGIC, other(patch=flip(0))),
    ("envelope version", ErrorCode.E_VERSION, other(patch=flip(8))),
    ("envelope kind", ErrorCode.E_MAGIC, other(patch=flip(10))),
    ("envelope reserved", ErrorCode.E_FLAGS, other(patch=flip(14))),
    ("more signatures than validators", ErrorCode.E_LEN, other(signers=(*VALIDATORS, ALICE))),
    ("a negative weight", ErrorCode.E_RECORD, entry(weight=-1)),
    ("a payload twice", ErrorCode.E_DUPLICATE, entry(payload="66" * 32)),
    ("a gap", ErrorCode.E_GAP, fields(round=ROUND + 1)),
    ("nothing counted but not void", ErrorCode.E_RECORD, fields(counted=[])),
    ("a void record with another state", ErrorCode.E_STATE, fields(counted=[], void=True)),
    ("more counted than the limit", ErrorCode.E_RECORD, other(rules={"gather_limit": 1})),
    ("one signature of three", ErrorCode.E_QUORUM, other(signers=VALIDATORS[:1])),
]
ALL = [*PLACE, *CONTENT, *SINGLE]


@pytest.mark.parametrize(
    ("code", "spoil"), [fault[1:] for fault in ALL], ids=[fault[0] for fault in ALL]
)
def test_one_broken_rule_gives_its_code(code, spoil):
    draft = Draft()
    spoil(draft)
    assert draft.code() is code


def merged(first: Callable[[Draft], None], second: Callable[[Draft], None]) -> Draft:
    draft = Draft()
    second(draft)
    rules = draft.rules
    first(draft)
    draft.rules = {**rules, **draft.rules}
    return draft


PAIRS = list(combinations([*PLACE, *CONTENT], 2))


@pytest.mark.parametrize(
    ("first", "second"), PAIRS, ids=[f"{a[0]} before {b[0]}" for a, b in PAIRS]
)
def test_of_two_broken_rules_the_earlier_gives_the_code(first, second):
    assert merged(first[2], second[2]).code() is first[1]


def test_a_signature_for_a_vote_does_not_count_for_a_record():
    vote = seal(MessageKind.VOTE, RAW[20 + 3 * 96 :], VALIDATORS[:3])
    as_record = vote[:10] + b"\2\0" + vote[12:]
    assert read_code(as_record) is ErrorCode.E_SIG


def test_any_flipped_bit_of_an_accepted_record_is_refused():
    raw = make_record(num_signers=3)
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError):
            read(bytes(flipped))


# Co-signing.


def test_validators_add_their_signatures_one_by_one():
    raw = build_record(record_of(), VALIDATORS[:1])
    assert read_code(raw) is ErrorCode.E_QUORUM
    assert read(raw, threshold=1).signers == (VALIDATORS[0].peer,)
    for validator in VALIDATORS[1:3]:
        raw = add_signature(raw, validator)
    assert raw == RAW


def test_co_signing_twice_is_our_own_mistake():
    with pytest.raises(LocalProtocolError):
        add_signature(RAW, VALIDATORS[0])


def test_co_signing_bytes_that_are_no_record_is_refused():
    assert code_of(lambda: add_signature(RAW[:-1], ALICE), RecordError) is ErrorCode.E_LEN


def test_signatures_of_the_same_record_merge():
    first = build_record(record_of(), VALIDATORS[:2])
    second = build_record(record_of(), VALIDATORS[1:3])
    assert merge_signatures(first, second) == RAW
    assert merge_signatures(RAW, RAW) == RAW


def test_signatures_of_different_records_do_not_merge():
    other_record = make_record(record_of(attempt=1))
    code = code_of(lambda: merge_signatures(RAW, other_record), RecordError)
    assert code is ErrorCode.E_RECORD


# Forks.


def fork(raw: bytes) -> None:
    check_fork(read(RAW), raw, record_rules(), HEAD)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": 1},
        {"closed_at_ms": 1},
        {"previous": OTHER},
        {"base_state": OTHER},
        {"manifest": OTHER},
        {"counted": []},
        {"void": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_certified_record_of_the_round_is_a_fork_whatever_else_is_wrong(changes):
    raw = sealed(**changes)
    with pytest.raises(ForkError) as caught:
        fork(raw)
    assert caught.value.code is ErrorCode.E_FORK
    assert (caught.value.known, caught.value.other) == (RAW, raw)


def test_the_same_record_with_other_signers_is_no_fork():
    fork(RAW)
    fork(build_record(record_of(), VALIDATORS[1:]))


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (sealed(2, attempt=1), ErrorCode.E_QUORUM),
        (flip(60)(sealed(attempt=1)), ErrorCode.E_SIG),
        (sealed(attempt=1, run=OTHER), ErrorCode.E_RUN),
        (sealed(attempt=1, round=ROUND - 1), ErrorCode.E_ROLLBACK),
        (sealed(attempt=1, round=ROUND + 1), ErrorCode.E_GAP),
        (build_record(record_of(attempt=1), (ALICE, BOB, CAROL)), ErrorCode.E_PEER_UNKNOWN),
        (b"", ErrorCode.E_LEN),
    ],
    ids=["two signers", "bad signature", "run", "earlier", "later", "strangers", "empty"],
)
def test_what_is_not_certified_for_this_round_proves_no_fork(raw, code):
    assert code_of(lambda: fork(raw), RecordError) is code


@pytest.mark.parametrize(
    "head", [replace(HEAD, round_id=ROUND), replace(HEAD, record_id=bytes(32))]
)
def test_a_known_record_that_does_not_follow_the_head_is_our_own_mistake(head):
    with pytest.raises(OutOfOrderError):
        check_fork(read(RAW), RAW, record_rules(), head)


def test_a_verified_record_cannot_be_made_by_hand():
    verified = read(RAW)
    with pytest.raises(LocalProtocolError):
        VerifiedRecord(
            record=verified.record,
            record_id=verified.record_id,
            signers=verified.signers,
            raw=verified.raw,
            token=MANIFEST,
        )


def test_a_known_record_is_read_again_by_its_id() -> None:
    known = read(RAW)
    assert read_known(RAW, record_rules(), known.record_id) == known.record
    another = make_record(void_record())
    for raw, code in (
        (RAW[:-1], ErrorCode.E_LEN),
        (another, ErrorCode.E_PREV),
        (b"garbage" * 50, ErrorCode.E_MAGIC),
    ):
        with pytest.raises(RecordError) as caught:
            read_known(raw, record_rules(), known.record_id)
        assert caught.value.code is code
