"""A payload that is checked while it arrives gets the verdict of the whole one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.protocol.errors import ErrorCode, LocalProtocolError, PayloadError
from shoal.protocol.payload import PAYLOAD_PREFIX_BYTES, ArrivingPayload
from tests.unit.protocol.wire_builders import (
    ALICE,
    BODY,
    MALLORY,
    ROUND,
    check,
    make_payload,
    payload_context,
    payload_rules,
)

RAW = make_payload()


class SpyingBody:
    """Notes what it is shown; refuses a body that begins with "bad"."""

    def __init__(self):
        self.shown = []

    def advance(self, body, num_arrived):
        self.shown.append(bytes(body[:num_arrived]))

    def finish(self, body):
        return refusing(body)


def refusing(body):
    if bytes(body).startswith(b"bad"):
        raise PayloadError(ErrorCode.E_PADDING, "bad content")
    return bytes(body)


def arriving_in(room, **changes):
    bodies = []

    def start():
        bodies.append(SpyingBody())
        return bodies[-1]

    context = payload_context(check_body=refusing, start_body=start, **changes)
    return ArrivingPayload(payload_rules(), context, memoryview(room)), bodies


def outcome(action):
    try:
        return action().payload_id
    except PayloadError as error:
        return error.code, error.detail, error.peer


def arrive(raw, ends):
    room = bytearray(b"\xa5" * len(raw))
    arriving, _ = arriving_in(room)
    num_arrived = 0
    for end in sorted(ends):
        room[num_arrived:end] = raw[num_arrived:end]
        num_arrived = end
        arriving.advance(end)
    room[num_arrived:] = raw[num_arrived:]
    return arriving.finish()


BROKEN = {
    "good": RAW,
    "flipped signature": bytes([*RAW[:210], RAW[210] ^ 1, *RAW[211:]]),
    "flipped body": RAW[:-1] + b"x",
    "bad content": make_payload(body=b"bad content of 21 byt"),
    "bad content, and not what was signed": make_payload()[:-21] + b"bad content of 21 byt",
    "stranger": make_payload(MALLORY),
    "old": make_payload(round_id=ROUND - 1),
    "short": RAW[:-1],
    "very short": RAW[:100],
    "long": RAW + b"x",
    "empty": b"",
}


@pytest.mark.parametrize("kind", BROKEN)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_pieces_get_the_verdict_of_the_whole(kind, data):
    raw = BROKEN[kind]
    ends = data.draw(st.lists(st.integers(0, len(raw)), max_size=5))
    expected = outcome(lambda: check(raw, check_body=refusing))
    assert outcome(lambda: arrive(raw, ends)) == expected


def test_a_bad_head_is_told_before_the_body_is_there():
    room = bytearray(make_payload(MALLORY))
    room[PAYLOAD_PREFIX_BYTES:] = bytes(len(BODY))
    arriving, _ = arriving_in(room)
    arriving.advance(PAYLOAD_PREFIX_BYTES - 1)
    with pytest.raises(PayloadError) as caught:
        arriving.advance(PAYLOAD_PREFIX_BYTES)
    assert caught.value.code is ErrorCode.E_PEER_UNKNOWN


def test_nothing_is_said_of_content_that_was_not_signed():
    room = bytearray(BROKEN["bad content, and not what was signed"])
    arriving, (body,) = arriving_in(room)
    arriving.advance(len(room) - 1)
    assert body.shown[-1].startswith(b"bad")
    with pytest.raises(PayloadError) as caught:
        arriving.finish()
    assert caught.value.code is ErrorCode.E_BODY_HASH


def test_what_arrives_again_is_checked_again():
    room = bytearray(BROKEN["bad content"])
    arriving, bodies = arriving_in(room)
    arriving.advance(len(room) - 3)
    room[:] = RAW
    arriving.restart()
    arriving.advance(len(room) - 2)
    assert arriving.finish().peer == ALICE.peer
    assert len(bodies) == 2
    assert bodies[1].shown[0] == BODY[:-2]


def test_a_second_payload_of_the_round_is_an_equivocation_here_too():
    room = bytearray(RAW)
    arriving, _ = arriving_in(room, seen={ALICE.peer: bytes(32)})
    with pytest.raises(PayloadError) as caught:
        arriving.finish()
    assert caught.value.code is ErrorCode.E_EQUIVOCATION


def test_who_cannot_check_in_pieces_is_told():
    with pytest.raises(LocalProtocolError):
        ArrivingPayload(payload_rules(), payload_context(), memoryview(bytearray(RAW)))
