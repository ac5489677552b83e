import itertools
import math

import numpy as np
import pytest

from shoal.compression import CorruptBodyError, SpecMismatchError, reference
from shoal.compression.binomials import binomial_table
from shoal.compression.enumerative import decode_indices, encode_indices, index_code_bytes


def ints(*values):
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 1), (6, 3), (9, 9), (10, 7), (12, 4)])
def test_all_sets_of_a_small_chunk_count_up_from_zero(n, k):
    codes = []
    for subset in itertools.combinations(range(n), k):
        code = encode_indices(ints(*subset), n)
        assert code == reference.encode_set(subset, n)
        assert decode_indices(code, n, k).tolist() == list(subset)
        codes.append(int.from_bytes(code, "little"))
    assert sorted(codes) == list(range(math.comb(n, k)))


@pytest.mark.parametrize("k", [1, 2, 63, 64, 65, 128, 512])
def test_random_and_extreme_sets_of_a_full_chunk_come_back(k):
    rng = np.random.default_rng(k)
    sets = [np.sort(rng.permutation(4096)[:k]) for _ in range(20)]
    sets += [np.arange(k), np.arange(4096 - k, 4096), np.r_[np.arange(k - 1), 4095]]
    for indices in sets:
        code = encode_indices(indices, 4096)
        assert code == reference.encode_set(indices.tolist(), 4096)
        assert decode_indices(code, 4096, k).tolist() == indices.tolist()


def test_first_and_last_code_are_the_lowest_and_the_highest_set():
    last = math.comb(4096, 64) - 1
    assert encode_indices(np.arange(64), 4096) == bytes(59)
    assert encode_indices(np.arange(4032, 4096), 4096) == last.to_bytes(59, "little")


def test_a_code_that_counts_beyond_the_last_set_is_refused():
    limit = math.comb(100, 10)
    for number in (limit, 256 ** index_code_bytes(100, 10) - 1):
        with pytest.raises(CorruptBodyError) as caught:
            decode_indices(number.to_bytes(index_code_bytes(100, 10), "little"), 100, 10)
        assert caught.value.code == "E_INDEX_RANGE"


def test_a_code_of_another_length_is_refused():
    with pytest.raises(CorruptBodyError) as caught:
        decode_indices(bytes(58), 4096, 64)
    assert caught.value.code == "E_BODY_LEN"


@pytest.mark.parametrize(
    "indices", [ints(3, 3), ints(3, 2), ints(-1, 2), ints(1, 10), ints(), ints(1, 2).reshape(1, 2)]
)
def test_what_is_not_a_sorted_set_is_refused(indices):
    with pytest.raises(SpecMismatchError):
        encode_indices(indices, 10)


@pytest.mark.parametrize(("n", "k"), [(0, 1), (4097, 1), (10, 11), (1000, 513)])
def test_sizes_out_of_range_are_refused(n, k):
    with pytest.raises(SpecMismatchError):
        decode_indices(b"", n, k)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (13, 13), (200, 20), (300, 200)])
def test_the_table_holds_exact_binomials(n, k):
    table = binomial_table(n, k)
    for j in range(k + 1):
        width = int(table.limbs[j])
        for i in {0, min(1, n - 1), n // 2, n - 1}:
            start = int(table.starts[j]) + i * width
            entry = table.words[start : start + width].tobytes()
            assert int.from_bytes(entry, "little") == math.comb(i, j)
