import math

import pytest

from shoal.compression import CodecSpec, SpecMismatchError, reference


def test_a_full_chunk_takes_79_bytes_with_two_bits_and_69_with_one():
    assert CodecSpec().chunk_bytes(4096) == 59 + 16 + 4 == 79
    assert CodecSpec(value_bits=1).chunk_bytes(4096) == 59 + 8 + 2 == 69


@pytest.mark.parametrize(
    "fields",
    [
        {"chunk_size": 0},
        {"chunk_size": 4097},
        {"chunk_size": True, "k_per_chunk": 1},
        {"chunk_size": 64.0, "k_per_chunk": 4},
        {"k_per_chunk": 0},
        {"k_per_chunk": 513},
        {"chunk_size": 16, "k_per_chunk": 17},
        {"value_bits": 0},
        {"value_bits": 3},
        {"max_scale_bits": 0x03FF},
        {"max_scale_bits": 0x7C00},
    ],
)
def test_a_spec_outside_its_ranges_is_refused(fields):
    with pytest.raises(SpecMismatchError):
        CodecSpec(**fields)


@pytest.mark.parametrize(
    ("chunk_len", "kept"), [(4096, 64), (4095, 64), (2048, 32), (96, 2), (95, 1), (1, 1)]
)
def test_a_short_chunk_keeps_the_same_density_and_at_least_one(chunk_len, kept):
    assert CodecSpec().kept(chunk_len) == kept


@pytest.mark.parametrize("k", [1, 2, 63, 64, 65, 128, 512])
@pytest.mark.parametrize("value_bits", [1, 2])
def test_chunk_lengths_follow_from_the_number_of_index_sets(k, value_bits):
    spec = CodecSpec(k_per_chunk=k, value_bits=value_bits)
    for chunk_len in (1, 2, 7, 8, 100, 1000, 4095, 4096):
        kept = spec.kept(chunk_len)
        assert kept == reference.kept_of(spec, chunk_len)
        assert 1 <= kept <= min(k, chunk_len)
        assert 256 ** spec.index_bytes(chunk_len) >= math.comb(chunk_len, kept)
        assert 256 ** spec.index_bytes(chunk_len) < 256 * math.comb(chunk_len, kept)
        assert spec.chunk_bytes(chunk_len) == reference.chunk_bytes(spec, chunk_len)


def test_an_index_set_without_alternative_takes_no_bytes():
    assert CodecSpec(chunk_size=8, k_per_chunk=8).index_bytes(8) == 0


@pytest.mark.parametrize("chunk_len", [0, -1, 4097])
def test_a_chunk_length_out_of_range_is_refused(chunk_len):
    with pytest.raises(SpecMismatchError):
        CodecSpec().kept(chunk_len)


def test_a_tensor_packs_into_the_sum_of_its_chunks():
    spec = CodecSpec()
    assert spec.packed_bytes(0) == 0
    assert spec.packed_bytes(3 * 4096) == 3 * 79
    assert spec.packed_bytes(3 * 4096 + 100) == 3 * 79 + spec.chunk_bytes(100)
    with pytest.raises(SpecMismatchError):
        spec.packed_bytes(-1)
