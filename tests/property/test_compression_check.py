import hypothesis.strategies as st
from hypothesis import given, settings

from shoal.compression import (
    ArrivingBody,
    BodyLayout,
    CodecSpec,
    CorruptBodyError,
    check_body,
    reference,
)
from shoal.compression.threads import CHUNKS_PER_PIECE
from tests.property.test_compression_codec import layouts, seeds
from tests.unit.compression.bodies import random_body

# Compiling a kernel on its first call takes seconds.
unhurried = settings(deadline=None, max_examples=150)


def refusal(check, *arguments):
    """Code, tensor and chunk with which bytes are refused, None if they are not."""
    try:
        check(*arguments)
    except CorruptBodyError as error:
        return error.code, error.tensor_index, error.chunk_index
    return None


def assert_same_verdict(body: bytes, layout: BodyLayout):
    expected = refusal(reference.unpack_body, body, layout.sizes, layout.spec)
    assert refusal(check_body, body, layout) == expected
    assert refusal(check_body, memoryview(body), layout) == expected


@given(layouts(), st.binary(max_size=400))
@unhurried
def test_any_bytes_are_a_body_or_raise_the_error_for_it(layout, body):
    assert_same_verdict(body, layout)


@given(layouts(), st.data())
@unhurried
def test_any_bytes_of_the_right_length_get_the_reference_s_verdict(layout, data):
    length = layout.body_bytes
    assert_same_verdict(data.draw(st.binary(min_size=length, max_size=length)), layout)


@given(layouts(), seeds, st.data())
@unhurried
def test_a_valid_body_with_a_changed_byte_gets_the_reference_s_verdict(layout, seed, data):
    body = bytearray(random_body(layout, seed))
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] = data.draw(st.integers(0, 255))
    assert_same_verdict(bytes(body), layout)


@given(layouts(), seeds)
@unhurried
def test_every_valid_body_passes(layout, seed):
    body = random_body(layout, seed)
    assert refusal(check_body, body, layout) == (None if any(body) else ("E_ALL_ZERO", None, None))


@given(layouts(), seeds)
@unhurried
def test_scales_and_counts_are_the_reference_s(layout, seed):
    body = random_body(layout, seed)
    if not any(body):
        return
    checked = check_body(body, layout)
    chunks = [
        chunk
        for tensor in reference.unpack_body(body, layout.sizes, layout.spec)
        for chunk in tensor
    ]
    for c, kept in enumerate(chunks):
        magnitudes = [abs(units) for _, units in kept]
        low, high = min(magnitudes, default=0), max(magnitudes, default=0)
        assert (checked.scale_low[c], checked.scale_high[c]) == (low, high)
        assert checked.num_kept[c] == len(kept)
        assert checked.num_high[c] == (magnitudes.count(high) if low < high else 0)


def arriving_verdict(body: bytes, layout: BodyLayout, ends: list[int]) -> object:
    """What is said of a body that comes in pieces; bytes that are not there yet are garbage."""
    room = bytearray(b"\xa5" * len(body))
    arriving = ArrivingBody(layout)
    num_arrived = 0
    for end in sorted(ends):
        room[num_arrived:end] = body[num_arrived:end]
        num_arrived = end
        arriving.advance(memoryview(room), end)
    room[num_arrived:] = body[num_arrived:]
    return refusal(arriving.finish, memoryview(room))


@given(layouts(), seeds, st.data())
@unhurried
def test_a_body_in_pieces_gets_the_verdict_of_the_whole(layout, seed, data):
    body = bytearray(random_body(layout, seed))
    if data.draw(st.booleans()):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    ends = data.draw(st.lists(st.integers(0, len(body)), max_size=6))
    assert arriving_verdict(bytes(body), layout, ends) == refusal(check_body, bytes(body), layout)


@given(layouts(), seeds, st.data())
@unhurried
def test_a_body_in_pieces_is_the_same_checked_body(layout, seed, data):
    body = random_body(layout, seed)
    if not any(body):
        return
    whole, arriving = check_body(body, layout), ArrivingBody(layout)
    for end in sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6))):
        arriving.advance(memoryview(body), end)
    found = arriving.finish(body)
    assert bytes(found.body) == body
    for name in ("scale_low", "scale_high", "num_high", "num_kept"):
        assert (getattr(found, name) == getattr(whole, name)).all()
        assert not getattr(found, name).flags.writeable


def test_pieces_that_are_smaller_than_a_tensor_end_where_the_kernel_s_do():
    spec = CodecSpec(chunk_size=8, k_per_chunk=2)
    layout = BodyLayout(spec, [8 * (2 * CHUNKS_PER_PIECE + 3) + 5, 3, 8 * CHUNKS_PER_PIECE])
    good = random_body(layout, 3)
    for broken_at in (None, 0, layout.tensor_offsets[1] - 1, layout.body_bytes - 1):
        body = bytearray(good)
        if broken_at is not None:
            body[broken_at] ^= 0xFF
        expected = refusal(check_body, bytes(body), layout)
        for step in (1000, 7919, len(body)):
            ends = list(range(0, len(body), step))
            assert arriving_verdict(bytes(body), layout, ends) == expected
