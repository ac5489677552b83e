"""Small bad inputs and the code that each must get: payloads, keys, records and JSON.

Content of bodies (scales, indices, empty chunks) is the codec's; here it is only shown that the
codec's code is the payload's code.
"""

import pickle
from collections.abc import Callable

import pytest

from shoal.protocol import strict_json
from shoal.protocol.envelope import MessageKind, Signature, open_envelope
from shoal.protocol.errors import ErrorCode, PayloadError, RemoteProtocolError
from shoal.protocol.identity import parse_peer_key
from shoal.protocol.payload import validate
from shoal.protocol.record import check_fork, read_record
from shoal.protocol.signing import Domain
from tests.unit.protocol.wire_builders import (
    ALICE,
    BODY,
    HEAD,
    IDENTITY_POINT,
    MALLORY,
    ROUND,
    VALIDATORS,
    check,
    code_of,
    header_of,
    make_payload,
    make_record,
    payload_context,
    payload_rules,
    record_of,
    record_rules,
    signed_header,
)

RAW = make_payload()
OTHER = bytes(32)


class CallsSystem:
    def __reduce__(self):
        import os  # noqa: PLC0415 - the attack brings its own import

        return os.system, ("true",)


def a_pickle() -> bytes:
    return pickle.dumps(CallsSystem()).ljust(len(RAW), b"\0")


def under_the_identity_point() -> bytes:
    header = header_of(peer_key=IDENTITY_POINT)
    return header.pack() + IDENTITY_POINT + bytes(32) + BODY


def under_a_weak_key_that_the_roster_lists() -> object:
    return parse_peer_key(IDENTITY_POINT)


def for_a_vote() -> bytes:
    return signed_header(header_of(), ALICE, Domain.VOTE) + BODY


def flipped_body() -> bytes:
    return RAW[:-1] + bytes([RAW[-1] ^ 1])


PAYLOADS: list[tuple[str, bytes, ErrorCode]] = [
    ("1: a valid payload without its last byte", RAW[:-1], ErrorCode.E_LEN),
    ("2: a valid payload and one zero byte", RAW + b"\0", ErrorCode.E_LEN),
    ("3: nothing", b"", ErrorCode.E_LEN),
    ("4: a pickle that calls os.system, padded to the length", a_pickle(), ErrorCode.E_MAGIC),
    ("6: reserved flag bit 0", make_payload(flags=1), ErrorCode.E_FLAGS),
    ("7: signed for another run", make_payload(run_id=OTHER), ErrorCode.E_RUN),
    ("8: the previous manifest's hash", make_payload(manifest_hash=OTHER), ErrorCode.E_MANIFEST),
    ("9: round 7 presented in round 8", make_payload(round_id=7), ErrorCode.E_ROUND_OLD),
    ("11: identity point, R = identity, S = 0", under_the_identity_point(), ErrorCode.E_KEY_WEAK),
    ("12: validly signed by a stranger", make_payload(MALLORY), ErrorCode.E_PEER_UNKNOWN),
    ("14: body_len = 2^63, length right", make_payload(body_len=2**63), ErrorCode.E_BODY_LEN),
    ("16: signed under the vote domain", for_a_vote(), ErrorCode.E_SIG),
    ("17: one body bit flipped after signing", flipped_body(), ErrorCode.E_BODY_HASH),
]


@pytest.mark.parametrize(
    ("raw", "code"), [row[1:] for row in PAYLOADS], ids=[row[0] for row in PAYLOADS]
)
def test_a_bad_payload_gets_its_code(raw, code):
    assert code_of(lambda: check(raw), PayloadError) is code


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.E_SCALE_NONFINITE,
        ErrorCode.E_SCALE_SUBNORMAL,
        ErrorCode.E_EMPTY_CHUNK,
        ErrorCode.E_INDEX_ORDER,
        ErrorCode.E_INDEX_RANGE,
        ErrorCode.E_ALL_ZERO,
    ],
)
def test_rows_18_to_27_what_the_codec_refuses_is_refused_with_its_code(code):
    def refuse(body: memoryview) -> bytes:
        raise PayloadError(code, "by the codec")

    assert code_of(lambda: check(RAW, check_body=refuse), PayloadError) is code


def a_second_payload() -> object:
    return check(make_payload(tokens=1), seen={ALICE.peer: check(RAW).payload_id})


def the_same_payload() -> object:
    return check(RAW, seen={ALICE.peer: check(RAW).payload_id})


def a_repeated_json_key() -> object:
    return strict_json.load(b'{"a":1,"a":2}', 100)


def one_validator_three_times() -> object:
    envelope = open_envelope(
        make_record(num_signers=1), MessageKind.RECORD, max_bytes=8192, max_signatures=1
    )
    signature: Signature = envelope.signatures[0]
    packed = (signature.key + signature.signature) * 3
    raw = make_record()[:20] + packed + envelope.body
    return read_record(raw, record_rules(), HEAD)


def two_signatures_of_three() -> object:
    return read_record(make_record(num_signers=2), record_rules(), HEAD)


def a_second_certified_record() -> None:
    known = read_record(make_record(), record_rules(), HEAD)
    check_fork(known, make_record(record_of(attempt=1)), record_rules(), HEAD)


def a_record_of_a_closed_round() -> object:
    return read_record(make_record(record_of(round_id=ROUND - 1)), record_rules(), HEAD)


OTHERS: list[tuple[str, Callable[[], object], ErrorCode]] = [
    ("11: a weak key anywhere", under_a_weak_key_that_the_roster_lists, ErrorCode.E_KEY_WEAK),
    ("28: a second payload of the round", a_second_payload, ErrorCode.E_EQUIVOCATION),
    ("28: the same payload again", the_same_payload, ErrorCode.E_DUPLICATE),
    ("36: a JSON key twice", a_repeated_json_key, ErrorCode.E_JSON_DUPKEY),
    ("38: one validator three times", one_validator_three_times, ErrorCode.E_SIGNER_REPEATED),
    ("39: two of three signatures", two_signatures_of_three, ErrorCode.E_QUORUM),
    ("41: a second certified record", a_second_certified_record, ErrorCode.E_FORK),
    ("a record of a closed round", a_record_of_a_closed_round, ErrorCode.E_ROLLBACK),
]


@pytest.mark.parametrize(
    ("call", "code"), [row[1:] for row in OTHERS], ids=[row[0] for row in OTHERS]
)
def test_a_bad_key_record_or_json_text_gets_its_code(call, code):
    assert code_of(call, RemoteProtocolError) is code


def test_the_valid_neighbours_of_these_inputs_are_accepted():
    assert validate(RAW, payload_rules(), payload_context()).peer == ALICE.peer
    record = read_record(make_record(), record_rules(), HEAD)
    assert record.signers == tuple(validator.peer for validator in VALIDATORS[:3])
