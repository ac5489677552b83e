import hypothesis.strategies as st
import numpy as np
from hypothesis import assume, given, settings

from shoal.compression import (
    BodyLayout,
    CodecSpec,
    ErrorFeedback,
    check_body,
    dequantize,
    reference,
)
from shoal.compression.enumerative import decode_indices, encode_indices
from tests.unit.compression.bodies import body_of, random_body, random_tensors

# Compiling a kernel on its first call takes seconds.
unhurried = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def specs(draw, largest_chunk=48):
    chunk_size = draw(st.integers(1, largest_chunk))
    return CodecSpec(
        chunk_size=chunk_size,
        k_per_chunk=draw(st.integers(1, chunk_size)),
        value_bits=draw(st.sampled_from([1, 2])),
        max_scale_bits=draw(st.sampled_from([0x0400, 0x3555, 0x3C00, 0x7BFF])),
    )


@st.composite
def layouts(draw):
    sizes = draw(st.lists(st.integers(0, 150), min_size=1, max_size=4))
    assume(any(sizes))
    return BodyLayout(draw(specs()), sizes)


@given(layouts())
@unhurried
def test_every_element_is_in_exactly_one_chunk(layout):
    for tensor in layout.tensors:
        lengths = [tensor.chunk_len(c) for c in range(tensor.num_chunks)]
        assert sum(lengths) == tensor.size
        assert all(length == layout.spec.chunk_size for length in lengths[:-1])
        assert all(1 <= length <= layout.spec.chunk_size for length in lengths)


@given(layouts(), seeds)
@unhurried
def test_a_body_has_the_length_of_the_formula_and_the_reference_s_bytes(layout, seed):
    tensors = random_tensors(layout.sizes, seed)
    body = body_of(layout, tensors)
    lengths = [layout.spec.packed_bytes(size) for size in layout.sizes]
    assert len(body) == layout.body_bytes == sum(lengths)
    assert body == reference.pack_body(tensors, layout.spec)


@given(layouts(), seeds)
@unhurried
def test_encoding_what_was_decoded_gives_every_valid_body_back(layout, seed):
    body = random_body(layout, seed)
    assume(any(body))
    tensors = [np.zeros(size, dtype=np.float32) for size in layout.sizes]
    for tensor, (positions, values) in zip(
        tensors, dequantize(check_body(body, layout)), strict=True
    ):
        tensor[positions] = values
    assert body_of(layout, tensors) == body


@given(layouts(), seeds)
@unhurried
def test_decoding_equals_the_reference(layout, seed):
    body = random_body(layout, seed)
    assume(any(body))
    expected = reference.unpack_body(body, layout.sizes, layout.spec)
    for chunks, (positions, values) in zip(
        expected, dequantize(check_body(body, layout)), strict=True
    ):
        kept = [pair for chunk in chunks for pair in chunk]
        assert list(zip(positions.tolist(), (values * 2.0**24).tolist(), strict=True)) == kept


@given(st.integers(1, 4096), st.data(), seeds)
@unhurried
def test_every_index_set_has_one_code(n, data, seed):
    k = data.draw(st.integers(1, min(n, 24)))
    indices = np.sort(np.random.default_rng(seed).permutation(n)[:k])
    code = encode_indices(indices, n)
    assert decode_indices(code, n, k).tolist() == indices.tolist()
    assert code == reference.encode_set(indices.tolist(), n)


@given(layouts(), seeds, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
@unhurried
def test_residual_and_sent_add_up_to_the_accumulator(layout, seed, decay):
    feedback = ErrorFeedback(layout, decay)
    before = random_tensors(layout.sizes, seed, palette_ratio=0.0)
    feedback.restore(before, None)
    gradients = random_tensors(layout.sizes, seed + 1, palette_ratio=0.1)
    body = feedback.stage(gradients).body
    feedback.commit()
    sent = [np.zeros(size, dtype=np.float64) for size in layout.sizes]
    if any(body):
        for total, (positions, values) in zip(
            sent, dequantize(check_body(body, layout)), strict=True
        ):
            total[positions] = values
    for total, after, old, gradient in zip(
        sent, feedback.residuals, before, gradients, strict=True
    ):
        accumulator = decay * old.astype(np.float64) + gradient.astype(np.float64)
        scale = np.abs(accumulator) + np.abs(total) + np.abs(old)
        assert (np.abs(after + total - accumulator) <= 3 * 2.0**-24 * scale + 1e-44).all()
