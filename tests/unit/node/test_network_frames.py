"""Frames and messages: any bytes give one of ours or one error."""

import asyncio
from dataclasses import fields
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.network import frames, messages, packing
from shoal.node.network.errors import FrameError
from shoal.node.network.frames import (
    HEAD_BYTES,
    MAX_CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    Frame,
    FrameKind,
    pack_head,
    read_frame,
)

INT_LIMIT = 2**63
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(0, INT_LIMIT - 1),
    str: st.text(max_size=40),
    bytes: st.binary(max_size=40),
    tuple[str, ...]: st.lists(st.text(max_size=20), max_size=4).map(tuple),
    dict[str, int]: st.dictionaries(st.text(max_size=9), st.integers(0, INT_LIMIT - 1), max_size=4),
}
ANY_MESSAGE = st.sampled_from((*messages.REQUESTS, *messages.ANSWERS)).flatmap(
    lambda kind: st.builds(kind, **{one.name: VALUES[one.type] for one in fields(kind)})
)


def read_all(raw: bytes) -> list[Frame]:
    """Reads frames from a connection that ends after `raw`."""

    async def read() -> list[Frame]:
        reader = asyncio.StreamReader()
        reader.feed_data(raw)
        reader.feed_eof()
        found = []
        while (frame := await read_frame(reader)) is not None:
            found.append(frame)
        return found

    return asyncio.run(read())


@given(st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=200)), max_size=5))
def test_frames_come_back_as_they_were(parts: list[tuple[FrameKind, bytes]]) -> None:
    sent = [
        Frame(kind, number, b"" if kind is FrameKind.CANCEL else body)
        for number, (kind, body) in enumerate(parts)
    ]
    assert read_all(b"".join(pack_head(one) + one.body for one in sent)) == sent


@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_one_error(raw: bytes) -> None:
    try:
        found = read_all(raw)
    except FrameError:
        return
    assert b"".join(pack_head(one) + one.body for one in found) == raw


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        (FrameKind.REQUEST, MAX_MESSAGE_BYTES),
        (FrameKind.ANSWER, MAX_MESSAGE_BYTES),
        (FrameKind.CHUNK, MAX_CHUNK_BYTES),
        (FrameKind.CANCEL, 0),
    ],
)
def test_a_length_above_its_limit_is_refused_before_the_body(kind: FrameKind, limit: int) -> None:
    head = bytes([kind]) + bytes(4) + (limit + 1).to_bytes(4, "little")
    with pytest.raises(FrameError, match=f"{limit + 1} bytes, at most {limit}"):
        read_all(head)
    with pytest.raises(FrameError, match=f"at most {limit}"):
        pack_head(Frame(kind, 1, bytes(limit + 1)))
    assert frames.parse_head(pack_head(Frame(kind, 1, bytes(limit))))[2] == limit


def test_a_cut_frame_is_an_error_and_a_clean_end_is_none() -> None:
    raw = pack_head(Frame(FrameKind.ANSWER, 3, b"abc")) + b"abc"
    assert len(read_all(raw)) == 1
    for cut in range(1, len(raw)):
        with pytest.raises(FrameError, match="inside a frame"):
            read_all(raw[:cut])


@pytest.mark.parametrize("number", [0, 5, 255])
def test_an_unknown_kind_is_refused(number: int) -> None:
    with pytest.raises(FrameError, match="unknown frame kind"):
        frames.parse_head(bytes([number]) + bytes(HEAD_BYTES - 1))


def test_a_request_id_that_is_no_u32_is_refused() -> None:
    with pytest.raises(FrameError, match="u32"):
        pack_head(Frame(FrameKind.CANCEL, 2**32))


@given(ANY_MESSAGE)
def test_messages_come_back_as_they_were(message: messages.Message) -> None:
    assert packing.unpack(packing.pack(message)) == message


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_one_error(raw: bytes) -> None:
    try:
        packing.unpack(raw)
    except FrameError:
        return


@given(ANY_MESSAGE, st.data())
def test_a_damaged_message_is_a_message_or_one_error(
    message: messages.Message, data: st.DataObject
) -> None:
    raw = bytearray(packing.pack(message))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        packing.unpack(bytes(raw))
    except FrameError:
        return


PING: dict[Any, Any] = {"type": "Ping"}
SIZE: dict[Any, Any] = {"type": "Size", "num_bytes": 5}


@pytest.mark.parametrize(
    "value",
    [
        [],
        5,
        {},
        {"type": "Nothing"},
        {"type": ["Ping"]},
        {"type": "Size"},
        {**PING, "more": 1},
        {**SIZE, "num_bytes": -1},
        {**SIZE, "num_bytes": 2**63},
        {**SIZE, "num_bytes": True},
        {**SIZE, "num_bytes": 5.0},
        {**SIZE, "num_bytes": "5"},
        {**SIZE, "num_bytes": None},
        {**SIZE, b"num_bytes": 5},
        {"type": "Connect", "addresses": [1]},
        {"type": "Connect", "addresses": "abc"},
        {"type": "Failed", "code": b"busy", "detail": ""},
        {**SIZE, "num_bytes": msgpack.ExtType(4, b"x")},
        {**SIZE, "num_bytes": msgpack.Timestamp(0)},
    ],
    ids=repr,
)
def test_a_message_of_another_shape_is_refused(value: object) -> None:
    with pytest.raises(FrameError):
        packing.unpack(msgpack.packb(value))


def test_a_key_that_comes_twice_is_refused() -> None:
    raw = b"\x83" + b"".join(
        msgpack.packb(part) for part in ("type", "Size", "num_bytes", 5, "num_bytes", 6)
    )
    with pytest.raises(FrameError, match="twice"):
        packing.unpack(raw)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(FrameError):
        packing.unpack(b"\x91" * 60_000 + b"\xc0")


def test_the_two_sides_do_not_take_each_others_messages() -> None:
    ping, done = packing.pack(messages.Ping()), packing.pack(messages.Done())
    assert packing.unpack_request(ping) == messages.Ping()
    assert packing.unpack_answer(done) == messages.Done()
    with pytest.raises(FrameError, match="no answer"):
        packing.unpack_answer(ping)
    with pytest.raises(FrameError, match="no request"):
        packing.unpack_request(done)
