from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.compression import (
    BodyLayout,
    CodecSpec,
    SpecMismatchError,
    check_body,
    dequantize,
    reference,
    sum_bodies,
)
from shoal.compression.enumerative import encode_indices
from shoal.compression.threads import CHUNKS_PER_PIECE
from tests.unit.compression.bodies import (
    body_of,
    full_caps,
    packed_chunk,
    random_body,
    random_tensors,
)

TWO = CodecSpec(chunk_size=20, k_per_chunk=5)
HALF, QUARTER = 0x3800, 0x3400


def equal_sums(left, right):
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for a, b in zip(left, right, strict=True)
        for name in ("positions", "sums", "counts")
    )


def chunk_at(*indices, scales=(QUARTER, HALF), codes=0b10):
    number = int.from_bytes(encode_indices(np.array(indices, dtype=np.int64), 20), "little")
    return packed_chunk(TWO, 20, number=number, codes=codes, scales=scales)


def test_values_are_signed_scales_at_flat_positions():
    layout = BodyLayout(TWO, [20, 0, 40])
    empty = bytes(TWO.chunk_bytes(20))
    body = chunk_at(0, 3, 5, 18, 19, codes=0b00_01_11_10_00) + empty + chunk_at(1, 2, 3, 4, 5)
    first, none, second = dequantize(check_body(body, layout))
    assert first[0].tolist() == [0, 3, 5, 18, 19]
    assert first[1].tolist() == [0.25, 0.5, -0.5, -0.25, 0.25]
    assert none[0].size == none[1].size == 0
    assert second[0].tolist() == [21, 22, 23, 24, 25]
    assert first[0].dtype == np.uint32
    assert first[1].dtype == np.float32


@pytest.mark.parametrize("value_bits", [1, 2])
@pytest.mark.parametrize("k", [1, 2, 63, 64, 65, 128, 512])
def test_decoding_a_large_body_gives_what_was_selected(k, value_bits):
    spec = CodecSpec(k_per_chunk=k, value_bits=value_bits)
    layout = BodyLayout(spec, [4096 * 18 + 1000, 5])
    tensors = random_tensors(layout.sizes, k, palette_ratio=0.0)
    body = body_of(layout, tensors)
    assert body == reference.pack_body(tensors, spec)
    for tensor, (positions, values) in zip(
        tensors, dequantize(check_body(body, layout), num_threads=2), strict=True
    ):
        expected = [
            start + i
            for start in range(0, tensor.size, 4096)
            for i in _largest(tensor[start : start + 4096], spec)
        ]
        assert positions.tolist() == expected
        assert np.array_equal(np.sign(values), np.sign(tensor[expected]))
        assert np.allclose(np.abs(values), np.abs(tensor[expected]), rtol=0.7)


def _largest(chunk, spec):
    return np.sort(np.argsort(-np.abs(chunk), kind="stable")[: spec.kept(chunk.size)]).tolist()


@pytest.mark.parametrize(
    "indices",
    [
        np.arange(64),
        np.arange(4032, 4096),
        np.r_[0:63, 4095],
        np.r_[0, 4033:4096],
        np.r_[0:32, 4064:4096],
        np.arange(0, 4096, 64),
        np.arange(0, 640, 10),
    ],
)
def test_unusual_sets_are_decoded_exactly_too(indices):
    spec = CodecSpec()
    layout = BodyLayout(spec, [4096])
    code = encode_indices(indices, 4096)
    body = code + bytes(16) + 2 * HALF.to_bytes(2, "little")
    ((positions, _),) = dequantize(check_body(body, layout))
    assert positions.tolist() == indices.tolist()


def test_sums_weigh_sign_and_cap_each_contribution():
    layout = BodyLayout(TWO, [20])
    a = check_body(chunk_at(0, 3, 5, 18, 19, codes=0b00_01_11_10_00), layout)
    b = check_body(chunk_at(0, 4, 5, 6, 7, codes=0b00_00_01_00_10), layout)
    cap = np.array([3 * 2**21], dtype=np.int64)
    (total,) = sum_bodies([a, b], [2, 10], cap, layout)
    low, high = 2**22, 3 * 2**21
    assert total.positions.tolist() == [0, 3, 4, 5, 6, 7, 18, 19]
    assert total.sums.tolist() == [
        2 * low + 10 * high,
        2 * high,
        10 * low,
        -2 * high - 10 * low,
        10 * low,
        10 * low,
        -2 * low,
        2 * low,
    ]
    assert total.counts.tolist() == [2, 1, 1, 2, 1, 1, 1, 1]
    assert total.positions.dtype == np.uint32
    assert total.sums.dtype == np.int64
    assert total.counts.dtype == np.uint8


def test_a_touched_position_counts_even_if_nothing_is_added():
    layout = BodyLayout(TWO, [20])
    body = check_body(chunk_at(0, 3, 5, 18, 19), layout)
    for weights, cap in (([0], 2**30), ([7], 0)):
        (total,) = sum_bodies([body], weights, np.array([cap], dtype=np.int64), layout)
        assert total.positions.tolist() == [0, 3, 5, 18, 19]
        assert not total.sums.any()
        assert total.counts.tolist() == [1] * 5


def test_no_bodies_touch_nothing():
    layout = BodyLayout(TWO, [20, 3])
    assert [t.positions.size for t in sum_bodies([], [], full_caps(layout), layout)] == [0, 0]


def test_255_bodies_of_the_largest_scale_do_not_overflow():
    spec = CodecSpec(chunk_size=4, k_per_chunk=1, max_scale_bits=0x7BFF)
    layout = BodyLayout(spec, [4])
    body = check_body(packed_chunk(spec, 4, scales=(0x7BFF, 0x7BFF)), layout)
    (total,) = sum_bodies([body] * 255, [2**15] * 255, full_caps(layout), layout)
    assert total.sums.tolist() == [255 * 2**15 * 65504 * 2**24]
    assert total.counts.tolist() == [255]


@pytest.mark.parametrize("value_bits", [1, 2])
def test_neither_order_nor_threads_change_a_bit_of_the_sums(value_bits):
    spec = CodecSpec(chunk_size=20, k_per_chunk=5, value_bits=value_bits)
    layout = BodyLayout(spec, [20 * (2 * CHUNKS_PER_PIECE + 7) + 3, 0, 55])
    bodies = [check_body(random_body(layout, seed), layout) for seed in range(6)]
    weights = [2**15, 1, 0, 77, 20000, 3]
    caps = np.random.default_rng(0).integers(0, 2**24, layout.num_chunks)
    sums = sum_bodies(bodies, weights, caps, layout)
    order = [3, 1, 5, 0, 2, 4]
    shuffled = [bodies[i] for i in order], [weights[i] for i in order]
    assert equal_sums(sums, sum_bodies(bodies, weights, caps, layout, num_threads=3))
    assert equal_sums(sums, sum_bodies(*shuffled, caps, layout, num_threads=2))
    assert all((np.diff(t.positions.astype(np.int64)) > 0).all() for t in sums)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(sum_bodies, *shuffled, caps, layout, num_threads=2) for _ in range(8)]
        assert all(equal_sums(sums, job.result()) for job in jobs)


def test_arguments_that_do_not_fit_are_refused():
    layout = BodyLayout(TWO, [20])
    body = check_body(chunk_at(0, 1, 2, 3, 4), layout)
    caps = full_caps(layout)
    other = BodyLayout(TWO, [21])
    for arguments in (
        ([body], [1, 2], caps, layout),
        ([body], [-1], caps, layout),
        ([body], [0.5], caps, layout),
        ([body], [True], caps, layout),
        ([body], [2**15 + 1], caps, layout),
        ([body], [1], caps.astype(np.int32), layout),
        ([body], [1], -caps, layout),
        ([body], [1], full_caps(other), layout),
        ([body], [1], full_caps(other), other),
        ([body] * 256, [1] * 256, caps, layout),
    ):
        with pytest.raises(SpecMismatchError):
            sum_bodies(*arguments)
