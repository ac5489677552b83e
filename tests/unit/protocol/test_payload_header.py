import pytest

from shoal.protocol.errors import ErrorCode, LocalProtocolError, PayloadError
from shoal.protocol.payload_header import (
    HEADER_BYTES,
    PAYLOAD_PREFIX_BYTES,
    EquivocationProof,
    PayloadHeader,
    check_equivocation,
    expected_payload_bytes,
    payload_id,
    peek,
    sign_header,
)
from shoal.protocol.signing import Domain
from tests.unit.protocol import curve
from tests.unit.protocol.wire_builders import (
    ALICE,
    BOB,
    BODY,
    IDENTITY_POINT,
    MANIFEST,
    RUN,
    STATE,
    code_of,
    header_of,
    make_payload,
    signed_header,
)

OFFSETS = {
    "magic": (0, b"SHOALPAY"),
    "version": (8, b"\1\0"),
    "flags": (10, b"\0\0"),
    "codec": (12, b"\2\0"),
    "reserved": (14, b"\0\0"),
    "run_id": (16, RUN),
    "manifest_hash": (48, MANIFEST),
    "round_id": (80, b"\x08" + bytes(7)),
    "peer_key": (88, ALICE.peer.key),
    "base_state": (120, STATE),
    "inner_steps": (152, b"\x0f\0\0\0"),
    "reserved2": (156, bytes(4)),
    "tokens": (160, (30_000).to_bytes(8, "little")),
    "body_len": (168, len(BODY).to_bytes(8, "little")),
    "body_sha256": (176, header_of().body_sha256),
}


@pytest.mark.parametrize("field", OFFSETS)
def test_every_field_lies_at_its_offset(field):
    offset, raw = OFFSETS[field]
    assert header_of().pack()[offset : offset + len(raw)] == raw


def test_the_fields_fill_the_header_without_a_gap():
    assert sum(len(raw) for _, raw in OFFSETS.values()) == HEADER_BYTES == 208
    assert list(OFFSETS) == list(PayloadHeader.__dataclass_fields__)


def test_the_prefix_is_header_and_signature():
    assert PAYLOAD_PREFIX_BYTES == 272
    assert expected_payload_bytes(0) == 272
    assert expected_payload_bytes(10**13) == 10**13 + 272


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": b"short"},
        {"manifest_hash": bytes(33)},
        {"peer_key": b""},
        {"magic": b"SHOAL"},
        {"round_id": 2**64},
        {"round_id": -1},
        {"inner_steps": 2**32},
        {"codec": 2**16},
    ],
    ids=str,
)
def test_a_field_that_does_not_fit_is_our_own_mistake(changes):
    with pytest.raises(LocalProtocolError):
        header_of(**changes).pack()


@pytest.mark.parametrize("length", [0, 207, 209])
def test_a_header_of_another_length_is_refused(length):
    assert code_of(lambda: PayloadHeader.unpack(bytes(length)), PayloadError) is ErrorCode.E_LEN


def test_a_header_is_signed_only_by_the_key_that_it_names():
    assert sign_header(ALICE, header_of()) == signed_header(header_of())
    with pytest.raises(LocalProtocolError):
        sign_header(BOB, header_of())


def test_peeking_shows_what_wrong_bytes_claim():
    raw = make_payload(version=7, flags=3, magic=b"SOMETHIN", body_len=2**63)[:250]
    shown = peek(memoryview(raw))
    assert (shown.header.version, shown.header.flags, shown.header.body_len) == (7, 3, 2**63)
    assert shown.payload_id == payload_id(raw[:208])
    assert shown.num_bytes == 250


def test_peeking_needs_a_whole_header():
    assert code_of(lambda: peek(bytes(207)), PayloadError) is ErrorCode.E_LEN


FIRST = signed_header(header_of())


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": 1},
        {"base_state": RUN},
        {"manifest_hash": RUN},
        {"version": 2},
        {"flags": 1},
        {"codec": 9},
        {"magic": b"whatever"},
        {"inner_steps": 0},
        {"body_len": 2**63},
        {"body_sha256": RUN},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_two_signed_headers_prove_equivocation_whatever_else_is_wrong(changes):
    second = signed_header(header_of(**changes))
    proof = check_equivocation(FIRST, second)
    assert (proof.peer, proof.run_id, proof.round_id) == (ALICE.peer, RUN, 8)
    assert (proof.first, proof.second) == (FIRST, second)


@pytest.mark.parametrize(
    ("second", "code"),
    [
        (FIRST, ErrorCode.E_DUPLICATE),
        (FIRST[:-1], ErrorCode.E_LEN),
        (FIRST + b"\0", ErrorCode.E_LEN),
        (b"", ErrorCode.E_LEN),
        (signed_header(header_of(round_id=9)), ErrorCode.E_ROUND_OLD),
        (signed_header(header_of(run_id=STATE)), ErrorCode.E_RUN),
        (signed_header(header_of(BOB), BOB), ErrorCode.E_PEER_UNKNOWN),
        (signed_header(header_of(tokens=1), BOB), ErrorCode.E_SIG),
        (signed_header(header_of(tokens=1), ALICE, Domain.VOTE), ErrorCode.E_SIG),
        (
            header_of(peer_key=IDENTITY_POINT).pack() + IDENTITY_POINT + bytes(32),
            ErrorCode.E_KEY_WEAK,
        ),
    ],
    ids=[
        "the same", "truncated", "longer", "empty", "another round", "another run",
        "another peer", "signed by another", "another domain", "weak key",
    ],
)  # fmt: skip
def test_what_proves_nothing_is_refused_in_either_order(second, code):
    assert code_of(lambda: check_equivocation(FIRST, second), PayloadError) is code
    assert code_of(lambda: check_equivocation(second, FIRST), PayloadError) is code


def test_a_second_signature_of_the_same_header_is_no_equivocation():
    header = FIRST[:HEADER_BYTES]
    message = Domain.PAYLOAD.encode() + b"\0" + header
    other = header + curve.sign_with_nonce(bytes([1]) * 32, message, nonce=12345)
    assert other != FIRST
    assert code_of(lambda: check_equivocation(FIRST, other), PayloadError) is ErrorCode.E_DUPLICATE


def test_a_proof_cannot_be_made_by_hand():
    with pytest.raises(LocalProtocolError):
        EquivocationProof(
            peer=ALICE.peer, run_id=RUN, round_id=1, first=b"", second=b"", token=None
        )
