import hypothesis.strategies as st
from hypothesis import given, settings

from shoal.compression import BodyLayout, CorruptBodyError, check_body, reference
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
