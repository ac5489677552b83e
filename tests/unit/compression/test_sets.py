import math

import numpy as np
import pytest

from shoal.compression.binomials import binomial_table
from shoal.compression.kernels import sets
from shoal.compression.kernels.limbs import encode_set, load_number

N, K = 4096, 64
TABLE = binomial_table(N, K)
LIMBS = int(TABLE.limbs.max())


def number_of(indices):
    number = np.zeros(LIMBS, dtype=np.uint64)
    encode_set(np.asarray(indices, dtype=np.int64), K, TABLE, number)
    return number


def scratch_for(slots):
    return (
        np.empty(slots, dtype=np.uint64),
        np.empty(slots, dtype=np.uint64),
        np.empty(slots * LIMBS, dtype=np.uint64),
    )


def decode(numbers, count):
    indices = np.full((len(numbers), K), -1, dtype=np.int64)
    sets.decode_sets(numbers.copy(), count, N, TABLE, scratch_for(len(numbers)), indices)
    return indices


def fails_in_float64(indices):
    """Whether the quick way alone gets this set wrong, so that the exact way has to step in."""
    number = number_of(indices)
    limits, failed = np.array([N], dtype=np.uint64), np.zeros(1, dtype=np.uint64)
    found = np.empty((1, K), dtype=np.int64)
    for j in range(K, 0, -1):
        sets.decode_column(number, LIMBS, 1, j, TABLE, limits, failed, found)
    return bool(failed[0]) or bool(number.any())


def unusual_sets():
    yield from (np.arange(start, start + K) for start in (0, 1, 7, 50, 500, 4032))
    yield from (np.r_[np.arange(K - m), np.arange(N - m, N)] for m in (1, 2, 20, 62))
    yield from (np.r_[np.arange(0, 2 * m, 2), np.arange(500, 500 + K - m)] for m in (5, 30))
    rng = np.random.default_rng(0)
    yield from (
        np.sort(rng.permutation(width)[:K]) for width in (65, 70, 100, 200) for _ in range(9)
    )


def test_many_sets_are_decoded_exactly_whether_float64_is_enough_or_not():
    rng = np.random.default_rng(1)
    expected = [*unusual_sets(), *(np.sort(rng.permutation(N)[:K]) for _ in range(500))]
    numbers = np.array([number_of(indices) for indices in expected])
    assert np.array_equal(decode(numbers, len(numbers)), expected)
    assert any(fails_in_float64(indices) for indices in expected)


def test_float64_is_nearly_always_enough_for_random_sets():
    rng = np.random.default_rng(2)
    failures = sum(fails_in_float64(np.sort(rng.permutation(N)[:K])) for _ in range(2000))
    assert failures <= 4


def test_only_the_first_sets_are_decoded():
    numbers = np.array([number_of(np.arange(K)), number_of(np.arange(K))])
    indices = decode(numbers, 1)
    assert indices[0].tolist() == list(range(K))
    assert (indices[1] == -1).all()


def test_numbers_without_a_set_still_give_increasing_indices_within_the_chunk():
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 2**64, size=(200, LIMBS), dtype=np.uint64)
    numbers[:50, -1] = 0
    numbers[50:60] = 2**64 - 1
    indices = decode(numbers, len(numbers))
    assert (np.diff(indices, axis=1) > 0).all()
    assert indices.min() >= 0
    assert indices.max() < N


@pytest.mark.parametrize("x", [1.0, 1.5, 2.0, 3e9, 2.0**64, 1.7e38])
def test_polynomials_are_as_near_as_they_say(x):
    assert abs(sets.log2_of(x) - math.log2(x)) < 2e-5
    y = math.log2(x)
    assert abs(sets.exp2_of(y) / x - 1.0) < 1e-5


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 8, 9, 59])
def test_numbers_are_read_with_the_lowest_byte_first(num_bytes):
    raw = np.arange(1, 65, dtype=np.uint8)
    number = np.full(LIMBS, 2**64 - 1, dtype=np.uint64)
    load_number(raw, num_bytes, number)
    expected = int.from_bytes(raw[:num_bytes].tobytes(), "little")
    assert sum(int(limb) << (64 * w) for w, limb in enumerate(number)) == expected
