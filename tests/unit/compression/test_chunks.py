import math

import numpy as np
import pytest

from shoal.compression import CodecSpec, CorruptBodyError, SpecMismatchError, reference
from shoal.compression.chunks import fit_scales, pack_chunk, select_top_k, unpack_chunk
from tests.unit.compression.bodies import PALETTE, random_tensors

TWO = CodecSpec(chunk_size=16, k_per_chunk=4)
ONE = CodecSpec(chunk_size=16, k_per_chunk=4, value_bits=1)


def floats(*values):
    return np.array(values, dtype=np.float32)


def test_the_largest_magnitudes_are_selected_whatever_their_sign():
    assert select_top_k(floats(0.1, -5.0, 2.0, -0.3), 2).tolist() == [1, 2]


def test_ties_go_to_the_lower_index():
    assert select_top_k(floats(1.0, -1.0, 1.0, -1.0), 2).tolist() == [0, 1]
    assert select_top_k(floats(0.0, 2.0, -0.0, 1e-45, 2.0), 3).tolist() == [1, 3, 4]
    assert select_top_k(floats(-0.0, 0.0, -0.0), 2).tolist() == [0, 1]


@pytest.mark.parametrize("k", [1, 2, 63, 64, 65, 128, 512])
@pytest.mark.parametrize("n", [512, 777, 4095, 4096])
def test_selection_equals_a_stable_sort(n, k):
    for seed, palette_ratio in enumerate((0.0, 0.3, 1.0)):
        (values,) = random_tensors([n], seed, palette_ratio=palette_ratio)
        expected = np.sort(np.argsort(-np.abs(values), kind="stable")[:k])
        assert np.array_equal(select_top_k(values, k), expected)


@pytest.mark.parametrize(
    ("values", "k"),
    [
        (floats(1.0, math.nan), 1),
        (floats(1.0, -math.inf), 1),
        (floats(1.0), 2),
        (floats(1.0), 0),
        (floats(1.0, 2.0).reshape(1, 2), 1),
        (floats(1.0, 2.0, 3.0)[::2], 1),
        (np.array([1.0]), 1),
    ],
)
def test_selection_refuses_what_it_cannot_order(values, k):
    with pytest.raises(SpecMismatchError):
        select_top_k(values, k)


def test_two_groups_get_their_means():
    fitted = fit_scales(floats(0.5, 0.25, 0.5, 0.25), TWO)
    assert (fitted.low_bits, fitted.high_bits) == (0x3400, 0x3800)
    assert fitted.is_high.tolist() == [True, False, True, False]


def test_equal_magnitudes_get_one_scale():
    fitted = fit_scales(floats(0.5, 0.5, 0.5), TWO)
    assert fitted.low_bits == fitted.high_bits == 0x3800
    assert not fitted.is_high.any()


def test_of_equally_good_splits_the_smaller_lower_group_wins():
    assert fit_scales(floats(0.25, 0.5, 0.75), TWO).is_high.tolist() == [False, True, True]


def test_one_bit_takes_the_mean():
    assert fit_scales(floats(0.25, 0.75), ONE).low_bits == 0x3800


def test_scales_that_round_to_the_same_number_become_one():
    fitted = fit_scales(floats(0.5, 0.50001), TWO)
    assert fitted.low_bits == fitted.high_bits
    assert not fitted.is_high.any()


@pytest.mark.parametrize(
    ("magnitude", "bits"),
    [
        (2.0**-15, 0x0400),
        (np.nextafter(np.float32(2.0**-15), np.float32(0)), 0),
        (0.0, 0),
        (2.0**-14, 0x0400),
        (1.0, 0x3C00),
        (2.0, 0x3C00),
        (3e38, 0x3C00),
        (0.5 + 2.0**-12, 0x3800),
        (0.5 + 3 * 2.0**-12, 0x3802),
        (0.5 - 2.0**-14, 0x3800),
    ],
)
def test_scales_are_rounded_to_even_and_clamped(magnitude, bits):
    assert fit_scales(floats(magnitude), TWO).high_bits == bits


def test_every_half_number_in_range_is_its_own_scale():
    for bits in range(0x0400, 0x7C00, 7):
        (value,) = np.array([bits], dtype=np.uint16).view(np.float16).astype(np.float32)
        spec = CodecSpec(max_scale_bits=0x7BFF)
        assert fit_scales(floats(value, value, value), spec).low_bits == bits


@pytest.mark.parametrize("k", [1, 2, 3, 7, 64, 512])
@pytest.mark.parametrize("spec", [TWO, ONE, CodecSpec(max_scale_bits=0x7BFF)])
def test_fitting_equals_the_reference(k, spec):
    rng = np.random.default_rng(k)
    for _ in range(20):
        magnitudes = np.abs(rng.choice(PALETTE, k)) if rng.random() < 0.5 else rng.random(k)
        magnitudes = magnitudes.astype(np.float32)
        fitted = fit_scales(magnitudes, spec)
        expected = reference.fit(magnitudes.tolist(), spec)
        assert (fitted.low_bits, fitted.high_bits, fitted.is_high.tolist()) == expected


def test_no_other_split_has_a_smaller_error():
    rng = np.random.default_rng(0)
    for _ in range(50):
        magnitudes = np.sort(rng.random(9).astype(np.float32))
        size = int((~fit_scales(magnitudes, TWO).is_high).sum())
        errors = [
            sum(
                float(np.var(part.astype(np.float64))) * part.size
                for part in np.split(magnitudes, [m])
            )
            for m in range(1, 9)
        ]
        assert errors[size - 1] <= min(errors) + 1e-12


@pytest.mark.parametrize("magnitudes", [floats(), floats(-1.0), floats(math.nan), np.array([1.0])])
def test_fitting_refuses_what_is_no_magnitude(magnitudes):
    with pytest.raises(SpecMismatchError):
        fit_scales(magnitudes, TWO)


@pytest.mark.parametrize("spec", [TWO, ONE])
def test_a_chunk_comes_back_from_its_bytes(spec):
    values = floats(0.5, 0, 0, -0.25, 0, 0.25, 0, 0, 0, 0, -0.5, 0, 0, 0, 0, 0)
    packed = pack_chunk(values, spec)
    unpacked = unpack_chunk(packed, 16, spec)
    assert packed == reference.pack_chunk(values.tolist(), spec)
    assert unpacked.indices.tolist() == [0, 3, 5, 10]
    assert unpacked.is_negative.tolist() == [False, True, False, True]
    if spec is TWO:
        assert unpacked.is_high.tolist() == [True, False, False, True]
        assert (unpacked.scale_low, unpacked.scale_high) == (2**22, 2**23)
    else:
        assert not unpacked.is_high.any()
        assert unpacked.scale_low == unpacked.scale_high == 3 * 2**21


def test_a_chunk_of_small_numbers_is_empty():
    packed = pack_chunk(np.full(16, 1e-6, dtype=np.float32), TWO)
    assert packed == bytes(TWO.chunk_bytes(16))
    unpacked = unpack_chunk(packed, 16, TWO)
    assert unpacked.indices.size == unpacked.is_high.size == unpacked.scale_high == 0


def test_unpacking_refuses_bytes_that_are_no_chunk():
    with pytest.raises(CorruptBodyError):
        unpack_chunk(b"\xff" * TWO.chunk_bytes(16), 16, TWO)
    with pytest.raises(SpecMismatchError):
        unpack_chunk(b"", 17, TWO)
    with pytest.raises(SpecMismatchError):
        pack_chunk(np.zeros(17, dtype=np.float32), TWO)
