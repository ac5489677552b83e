import struct

import pytest

from shoal.protocol.envelope import (
    BYTES_PER_SIGNATURE,
    HEAD_BYTES,
    Envelope,
    MessageKind,
    Signature,
    open_envelope,
    seal,
    sign_body,
    verify_signatures,
)
from shoal.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from shoal.protocol.identity import Identity
from tests.unit.protocol.wire_builders import ALICE, BOB, CAROL, IDENTITY_POINT, code_of

BODY = b'{"a":1}'
RAW = seal(MessageKind.VOTE, BODY, (BOB, ALICE))


def open_vote(raw: bytes, max_bytes: int = 1000, max_signatures: int = 3) -> Envelope:
    return open_envelope(raw, MessageKind.VOTE, max_bytes=max_bytes, max_signatures=max_signatures)


def open_code(raw: bytes, **limits: int) -> ErrorCode:
    return code_of(lambda: open_vote(raw, **limits), RemoteProtocolError)


def head(**changes: int | bytes) -> bytes:
    fields = {"magic": b"SHOALMSG", "version": 1, "kind": 3, "count": 2, "reserved": 0}
    fields["body_len"] = len(BODY)
    return struct.pack("<8sHHHHI", *(fields | changes).values())


def test_an_envelope_opens_to_the_body_and_signers_that_were_sealed():
    envelope = open_vote(RAW)
    assert envelope.body == BODY
    assert verify_signatures(envelope) == (BOB.peer, ALICE.peer)
    assert envelope.pack() == RAW
    assert open_vote(memoryview(RAW)) == envelope  # type: ignore[arg-type]  # views are bytes too


def test_the_layout_is_twenty_bytes_then_signatures_then_body():
    assert (HEAD_BYTES, BYTES_PER_SIGNATURE) == (20, 96)
    assert RAW[:20] == head()
    assert RAW[20:52] == BOB.peer.key
    assert RAW[20 + 2 * 96 :] == BODY


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"magic": b"SHOALPAY"}, ErrorCode.E_MAGIC),
        ({"version": 2}, ErrorCode.E_VERSION),
        ({"version": 0}, ErrorCode.E_VERSION),
        ({"kind": 2}, ErrorCode.E_MAGIC),
        ({"kind": 999}, ErrorCode.E_MAGIC),
        ({"reserved": 1}, ErrorCode.E_FLAGS),
        ({"count": 0}, ErrorCode.E_QUORUM),
        ({"count": 1}, ErrorCode.E_LEN),
        ({"count": 3}, ErrorCode.E_LEN),
        ({"count": 4}, ErrorCode.E_LEN),
        ({"count": 65_535}, ErrorCode.E_LEN),
        ({"body_len": 6}, ErrorCode.E_LEN),
        ({"body_len": 8}, ErrorCode.E_LEN),
        ({"body_len": 2**32 - 1}, ErrorCode.E_LEN),
    ],
    ids=str,
)
def test_a_changed_head_is_refused(changes, code):
    assert open_code(head(**changes) + RAW[20:]) is code


def test_limits_apply_before_anything_is_parsed():
    assert open_code(b"x" * 1001) is ErrorCode.E_LEN
    assert open_code(RAW, max_bytes=len(RAW) - 1) is ErrorCode.E_LEN
    assert open_code(RAW, max_signatures=1) is ErrorCode.E_LEN


@pytest.mark.parametrize("length", [0, 1, 19, 20, 21, len(RAW) - 1])
def test_a_truncated_envelope_is_refused(length):
    assert open_code(RAW[:length]) is ErrorCode.E_LEN


def test_a_longer_envelope_is_refused():
    assert open_code(RAW + b"\0") is ErrorCode.E_LEN


def test_one_signer_twice_is_refused_before_any_signature_is_verified():
    twice = head() + RAW[20:52] + bytes(64) + RAW[20:116] + BODY
    assert open_code(twice) is ErrorCode.E_SIGNER_REPEATED


def forged(key: bytes, signature: bytes) -> Envelope:
    first = sign_body(MessageKind.VOTE, BODY, ALICE)
    second = Signature(key=key, signature=signature)
    return Envelope(kind=MessageKind.VOTE, body=BODY, signatures=(first, second))


def verify_code(envelope: Envelope) -> ErrorCode:
    return code_of(lambda: verify_signatures(envelope), RemoteProtocolError)


def test_one_bad_signature_or_key_is_enough_to_refuse():
    assert verify_code(forged(BOB.peer.key, bytes(64))) is ErrorCode.E_SIG
    assert verify_code(forged(IDENTITY_POINT, IDENTITY_POINT + bytes(32))) is ErrorCode.E_KEY_WEAK


@pytest.mark.parametrize("kind", [MessageKind.ANNOUNCEMENT, MessageKind.RECORD])
def test_a_signature_for_another_kind_is_refused(kind):
    other = sign_body(kind, BODY, BOB)
    assert verify_code(forged(other.key, other.signature)) is ErrorCode.E_SIG


def test_every_kind_has_its_own_domain():
    assert len({kind.domain for kind in MessageKind}) == len(MessageKind) == 3


@pytest.mark.parametrize("identities", [(), (ALICE, ALICE), (ALICE, BOB, CAROL, BOB)])
def test_sealing_with_nobody_or_one_signer_twice_is_our_own_mistake(
    identities: tuple[Identity, ...],
):
    with pytest.raises(LocalProtocolError):
        seal(MessageKind.VOTE, BODY, identities)
