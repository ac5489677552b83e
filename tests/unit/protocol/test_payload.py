import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import pytest

from shoal.protocol import payload as module
from shoal.protocol.errors import (
    EquivocationError,
    ErrorCode,
    LocalProtocolError,
    PayloadError,
    RemoteProtocolError,
)
from shoal.protocol.identity import Identity
from shoal.protocol.payload import Payload, build_payload, check_equivocation, payload_id, validate
from shoal.protocol.signing import Domain
from tests.unit.protocol import curve
from tests.unit.protocol.wire_builders import (
    ALICE,
    BOB,
    BODY,
    IDENTITY_POINT,
    MALLORY,
    MANIFEST,
    ROUND,
    RUN,
    STATE,
    check,
    code_of,
    header_of,
    make_payload,
    payload_context,
    payload_rules,
    signed_header,
)

RAW = make_payload()
OTHER = bytes(32)


def refuse_body(body: memoryview) -> bytes:
    raise PayloadError(ErrorCode.E_ALL_ZERO, f"{len(body)} bytes of nothing")


def test_a_built_payload_is_accepted_with_all_its_fields():
    raw = build_payload(
        ALICE,
        run_id=RUN,
        manifest_hash=MANIFEST,
        codec_value_bits=2,
        round_id=ROUND,
        base_state=STATE,
        inner_steps=15,
        tokens=30_000,
        body=BODY,
    )
    assert raw == RAW
    payload = check(raw)
    assert payload.header == header_of()
    assert payload.peer == ALICE.peer
    assert payload.body == BODY
    assert payload.num_bytes == len(raw)
    assert payload.signed_header == raw[:272]
    assert payload.payload_id == payload_id(raw[:208])


def test_bytes_views_and_mutable_buffers_are_read_alike():
    expected = check(RAW)
    for raw in (memoryview(RAW), memoryview(bytearray(RAW)), bytearray(RAW)):
        assert check(raw) == expected  # type: ignore[arg-type]  # any buffer will do


def test_the_body_is_handed_over_without_a_copy():
    assert check(RAW, check_body=lambda view: view).body.obj is RAW  # type: ignore[attr-defined]  # the codec keeps the view


def test_without_a_roster_anyone_may_contribute():
    rules = payload_rules(roster=None)
    payload = validate(make_payload(MALLORY), rules, payload_context())
    assert payload.peer == MALLORY.peer


@pytest.mark.parametrize("changes", [{"inner_steps": 1}, {"tokens": 0}, {"tokens": 2**53 - 1}])
def test_numbers_at_their_limits_are_accepted(changes):
    assert check(make_payload(**changes)).header == header_of(**changes)


def test_another_peers_payload_of_the_same_round_is_accepted():
    seen = {ALICE.peer: check(RAW).payload_id}
    assert check(make_payload(BOB), seen=seen).peer == BOB.peer


# Every rule, in the order in which it is checked, with a way to break it.


@dataclass
class Draft:
    """A payload in the making, and what it is checked against."""

    header: dict[str, Any] = field(default_factory=dict)
    identity: Identity = ALICE
    domain: Domain = Domain.PAYLOAD
    body: bytes = BODY
    tail: bytes = b""
    context: dict[str, Any] = field(default_factory=dict)

    def code(self) -> ErrorCode:
        header = replace(header_of(self.identity), **self.header)
        raw = signed_header(header, self.identity, self.domain) + self.body + self.tail
        context = payload_context(**self.context)
        return code_of(lambda: validate(raw, payload_rules(), context), PayloadError)


def header(**changes: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.header.update(changes)


def context(**changes: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.context.update(changes)


def other(**changes: Any) -> Callable[[Draft], None]:
    def change(draft: Draft) -> None:
        for name, value in changes.items():
            setattr(draft, name, value)

    return change


FAULTS: list[tuple[str, ErrorCode, Callable[[Draft], None]]] = [
    ("one byte more", ErrorCode.E_LEN, other(tail=b"\0")),
    ("magic", ErrorCode.E_MAGIC, header(magic=b"SHOALMSG")),
    ("version", ErrorCode.E_VERSION, header(version=2)),
    ("flags", ErrorCode.E_FLAGS, header(flags=1)),
    ("codec", ErrorCode.E_VERSION, header(codec=1)),
    ("reserved", ErrorCode.E_FLAGS, header(reserved=1)),
    ("second reserved", ErrorCode.E_FLAGS, header(reserved2=1)),
    ("no inner steps", ErrorCode.E_FLAGS, header(inner_steps=0)),
    ("too many tokens", ErrorCode.E_FLAGS, header(tokens=2**53)),
    ("another run", ErrorCode.E_RUN, header(run_id=OTHER)),
    ("another manifest", ErrorCode.E_MANIFEST, header(manifest_hash=OTHER)),
    ("an earlier round", ErrorCode.E_ROUND_OLD, header(round_id=ROUND - 1)),
    ("a weak key", ErrorCode.E_KEY_WEAK, header(peer_key=IDENTITY_POINT)),
    ("not in the roster", ErrorCode.E_PEER_UNKNOWN, other(identity=MALLORY)),
    ("another base state", ErrorCode.E_PARENT, header(base_state=OTHER)),
    ("body length", ErrorCode.E_BODY_LEN, header(body_len=2**63)),
    ("signed for another purpose", ErrorCode.E_SIG, other(domain=Domain.VOTE)),
    ("another body", ErrorCode.E_BODY_HASH, other(body=b"B" + BODY[1:])),
    ("bad content", ErrorCode.E_ALL_ZERO, context(check_body=refuse_body)),
    ("another one before", ErrorCode.E_EQUIVOCATION, context(seen={ALICE.peer: OTHER})),
]
LATER_ROUND = ("a later round", ErrorCode.E_ROUND_FUTURE, header(round_id=ROUND + 1))
TOO_MANY = ("too many inner steps", ErrorCode.E_FLAGS, header(inner_steps=16))


@pytest.mark.parametrize(
    ("code", "spoil"),
    [fault[1:] for fault in (*FAULTS, LATER_ROUND, TOO_MANY)],
    ids=[fault[0] for fault in (*FAULTS, LATER_ROUND, TOO_MANY)],
)
def test_one_broken_rule_gives_its_code(code, spoil):
    draft = Draft()
    spoil(draft)
    assert draft.code() is code


PAIRS = list(combinations(FAULTS, 2))


@pytest.mark.parametrize(
    ("first", "second"), PAIRS, ids=[f"{a[0]} before {b[0]}" for a, b in PAIRS]
)
def test_of_two_broken_rules_the_earlier_gives_the_code(first, second):
    draft = Draft()
    # The identity is set before fields of the header that name another key.
    second[2](draft)
    first[2](draft)
    assert draft.code() is first[1]


def test_any_flipped_bit_of_an_accepted_payload_is_refused():
    for bit in range(8 * len(RAW)):
        flipped = bytearray(RAW)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PayloadError):
            check(bytes(flipped))


def test_every_truncation_is_refused_by_its_length():
    for length in range(len(RAW)):
        assert code_of(lambda n=length: check(RAW[:n]), PayloadError) is ErrorCode.E_LEN  # type: ignore[misc]  # n is bound at once


def test_the_same_payload_again_is_a_duplicate():
    seen = {ALICE.peer: check(RAW).payload_id}
    assert code_of(lambda: check(RAW, seen=seen), PayloadError) is ErrorCode.E_DUPLICATE


def test_the_same_header_with_another_signature_is_the_same_payload():
    message = Domain.PAYLOAD.encode() + b"\0" + RAW[:208]
    again = RAW[:208] + curve.sign_with_nonce(bytes([1]) * 32, message, nonce=777) + BODY
    assert again != RAW
    assert check(again).payload_id == check(RAW).payload_id
    seen = {ALICE.peer: check(RAW).payload_id}
    assert code_of(lambda: check(again, seen=seen), PayloadError) is ErrorCode.E_DUPLICATE


def test_equivocation_carries_both_headers_where_the_first_was_kept():
    first = check(RAW)
    second = make_payload(tokens=1)
    with pytest.raises(EquivocationError) as caught:
        check(
            second,
            seen={ALICE.peer: first.payload_id},
            evidence={ALICE.peer: first.signed_header},
        )
    error = caught.value
    assert error.peer == ALICE.peer
    assert check_equivocation(error.first, error.second).peer == ALICE.peer


def test_equivocation_is_told_also_where_only_the_id_was_kept():
    with pytest.raises(EquivocationError) as caught:
        check(RAW, seen={ALICE.peer: OTHER})
    assert (caught.value.first, caught.value.second) == (b"", RAW[:272])


def blamed(draft: Draft) -> object:
    raw = signed_header(header_of(**draft.header), draft.identity, draft.domain) + draft.body
    with pytest.raises(PayloadError) as caught:
        validate(raw, payload_rules(), payload_context(**draft.context))
    return caught.value.peer


def test_nobody_is_blamed_before_the_signature_proves_the_sender():
    forged = Draft(identity=MALLORY)
    assert blamed(forged) is None
    assert blamed(Draft(header={"flags": 1})) is None


def test_the_sender_is_named_once_the_signature_is_verified():
    assert blamed(Draft(body=b"B" + BODY[1:])) == ALICE.peer
    assert blamed(Draft(context={"check_body": refuse_body})) == ALICE.peer
    assert blamed(Draft(context={"seen": {ALICE.peer: OTHER}})) == ALICE.peer


def test_a_refusal_by_the_codec_of_any_remote_kind_becomes_a_payload_error():
    def refuse(body: memoryview) -> bytes:
        raise RemoteProtocolError(ErrorCode.E_PADDING, "padding")

    with pytest.raises(PayloadError) as caught:
        check(RAW, check_body=refuse)
    assert caught.value.code is ErrorCode.E_PADDING


def test_a_bug_in_the_codec_is_not_mistaken_for_a_bad_payload():
    def crash(body: memoryview) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        check(RAW, check_body=crash)


def test_the_body_is_not_looked_at_before_its_hash_is_right():
    spoilt = RAW[:-1] + b"!"
    code = code_of(lambda: check(spoilt, check_body=refuse_body), PayloadError)
    assert code is ErrorCode.E_BODY_HASH


def test_a_payload_cannot_be_made_by_hand_or_changed():
    payload = check(RAW)
    with pytest.raises(LocalProtocolError):
        Payload(
            header=payload.header,
            peer=payload.peer,
            payload_id=payload.payload_id,
            signed_header=payload.signed_header,
            body=b"another",
            num_bytes=1,
            token=object(),
        )
    # Which of the two depends on the version of Python.
    with pytest.raises((ValueError, TypeError), match="token"):
        replace(payload, body=b"another")  # type: ignore[call-arg]  # that is the point


def test_the_body_is_not_shown():
    assert "body of 21" not in repr(check(RAW))


def test_the_header_pins_the_body():
    digest = hashlib.sha256(BODY).digest()
    assert module.peek(RAW).header.body_sha256 == digest
