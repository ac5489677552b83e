import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from shoal.compression import (
    BodyLayout,
    CodecSpec,
    CorruptBodyError,
    SpecMismatchError,
    check_body,
    reference,
)
from shoal.compression.errors import EXPLANATIONS
from shoal.compression.kernels import check as kernels
from shoal.compression.threads import CHUNKS_PER_PIECE
from tests.unit.compression.bodies import body_of, broken_rule, packed_chunk, random_tensors

# Five kept values of a full chunk: two-bit codes leave six pad bits, one-bit codes three.
TWO = CodecSpec(chunk_size=20, k_per_chunk=5)
ONE = CodecSpec(chunk_size=20, k_per_chunk=5, value_bits=1)
HALF, QUARTER = 0x3800, 0x3400
# One level bit of five.
MIXED = 0b10
PAD = 1 << 10
BEYOND = math.comb(20, 5)


def code_of(spec, packed):
    with pytest.raises(CorruptBodyError) as caught:
        check_body(packed, BodyLayout(spec, [20]))
    assert (caught.value.tensor_index, caught.value.chunk_index) == (0, 0)
    assert caught.value.code in str(caught.value)
    return caught.value.code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"scales": (0x7C00, HALF)}, "E_SCALE_NONFINITE"),
        ({"scales": (HALF, 0x7E00)}, "E_SCALE_NONFINITE"),
        ({"scales": (HALF, 0xFC00)}, "E_SCALE_NONFINITE"),
        ({"scales": (HALF, 0xB800)}, "E_SCALE_SIGN"),
        ({"scales": (0x8000, 0x8000)}, "E_SCALE_SIGN"),
        ({"scales": (0x0001, HALF)}, "E_SCALE_SUBNORMAL"),
        ({"scales": (HALF, 0x03FF)}, "E_SCALE_SUBNORMAL"),
        ({"scales": (HALF, 0x3C01)}, "E_SCALE_RANGE"),
        ({"scales": (HALF, QUARTER), "codes": MIXED}, "E_SCALE_ORDER"),
        ({"scales": (HALF, 0)}, "E_SCALE_ORDER"),
        ({"scales": (0, HALF), "codes": MIXED}, "E_EMPTY_CHUNK"),
        ({"scales": (0, 0), "codes": 1}, "E_EMPTY_CHUNK"),
        ({"scales": (0, 0), "number": 1}, "E_EMPTY_CHUNK"),
        ({"scales": (0, 0), "codes": PAD}, "E_EMPTY_CHUNK"),
        ({"scales": (HALF, HALF), "codes": PAD}, "E_PADDING"),
        ({"scales": (HALF, HALF), "number": BEYOND}, "E_INDEX_RANGE"),
        ({"scales": (HALF, HALF), "codes": MIXED}, "E_SCALE_ORDER"),
        ({"scales": (QUARTER, HALF)}, "E_SCALE_ORDER"),
        ({"scales": (QUARTER, HALF), "codes": 0b10_10_10_10_10}, "E_SCALE_ORDER"),
    ],
)
def test_each_broken_rule_has_its_code(fields, code):
    assert code_of(TWO, packed_chunk(TWO, 20, **fields)) == code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"scales": (0x7C00,)}, "E_SCALE_NONFINITE"),
        ({"scales": (0xB800,)}, "E_SCALE_SIGN"),
        ({"scales": (0x0001,)}, "E_SCALE_SUBNORMAL"),
        ({"scales": (0x3C01,)}, "E_SCALE_RANGE"),
        ({"scales": (0,), "codes": 1}, "E_EMPTY_CHUNK"),
        ({"scales": (HALF,), "codes": 1 << 5}, "E_PADDING"),
        ({"scales": (HALF,), "number": BEYOND}, "E_INDEX_RANGE"),
    ],
)
def test_each_broken_rule_has_its_code_with_one_bit(fields, code):
    assert code_of(ONE, packed_chunk(ONE, 20, **fields)) == code


def test_of_several_broken_rules_the_first_in_the_fixed_order_is_named():
    everything = {"number": BEYOND, "codes": PAD}
    order = [
        ((0xFC00, 0x8001), "E_SCALE_NONFINITE"),
        ((0x8001, 0x3C01), "E_SCALE_SIGN"),
        ((0x3C01, 0x0001), "E_SCALE_SUBNORMAL"),
        ((0x3C01, QUARTER), "E_SCALE_RANGE"),
        ((HALF, 0), "E_SCALE_ORDER"),
        ((0, HALF), "E_EMPTY_CHUNK"),
        ((QUARTER, HALF), "E_PADDING"),
    ]
    for scales, code in order:
        assert code_of(TWO, packed_chunk(TWO, 20, scales=scales, **everything)) == code
    levels_too = packed_chunk(TWO, 20, scales=(QUARTER, HALF), number=BEYOND)
    assert code_of(TWO, levels_too) == "E_INDEX_RANGE"


def test_the_first_broken_chunk_is_named_whatever_the_number_of_threads():
    spec = CodecSpec(chunk_size=4, k_per_chunk=1)
    layout = BodyLayout(spec, [4, 0, 4 * (2 * CHUNKS_PER_PIECE + 9)])
    good = packed_chunk(spec, 4, scales=(HALF, HALF))
    chunks = [good] * layout.num_chunks
    chunks[1 + CHUNKS_PER_PIECE + 3] = packed_chunk(spec, 4, scales=(HALF, 0x3C01))
    chunks[-1] = packed_chunk(spec, 4, scales=(HALF, 0x7C00))
    for num_threads in (1, 3):
        with pytest.raises(CorruptBodyError) as caught:
            check_body(b"".join(chunks), layout, num_threads=num_threads)
        assert caught.value.code == "E_SCALE_RANGE"
        assert (caught.value.tensor_index, caught.value.chunk_index) == (2, CHUNKS_PER_PIECE + 3)


@pytest.mark.parametrize("change", [b"", b"\0", b"\0" * 1000])
def test_a_body_of_another_length_is_refused_first(change):
    layout = BodyLayout(TWO, [20, 7])
    body = (
        b"\xff" * (layout.body_bytes - 1) + change
        if len(change) != 1
        else b"\xff" * (layout.body_bytes + 1)
    )
    for wrong in (body, b""):
        with pytest.raises(CorruptBodyError) as caught:
            check_body(wrong, layout)
        assert caught.value.code == "E_BODY_LEN"
        assert str(layout.body_bytes) in str(caught.value)


def test_a_body_of_empty_chunks_is_refused():
    layout = BodyLayout(TWO, [20, 7])
    with pytest.raises(CorruptBodyError) as caught:
        check_body(bytes(layout.body_bytes), layout)
    assert caught.value.code == "E_ALL_ZERO"
    assert caught.value.tensor_index is None


def test_a_checked_body_tells_its_scales_and_counts():
    layout = BodyLayout(TWO, [60])
    body = (
        packed_chunk(TWO, 20, scales=(QUARTER, HALF), codes=0b10_00_11_00_01)
        + bytes(TWO.chunk_bytes(20))
        + packed_chunk(TWO, 20, scales=(0x3C00, 0x3C00), number=BEYOND - 1)
    )
    checked = check_body(memoryview(body), layout)
    assert checked.body == body
    assert checked.layout is layout
    assert checked.scale_low.tolist() == [2**22, 0, 2**24]
    assert checked.scale_high.tolist() == [2**23, 0, 2**24]
    assert checked.num_high.tolist() == [2, 0, 0]
    assert checked.num_kept.tolist() == [5, 0, 5]
    assert checked.scale_low.dtype == checked.scale_high.dtype == np.int64
    assert checked.num_high.dtype == checked.num_kept.dtype == np.int32


def test_a_checked_body_cannot_be_changed_or_made_by_others():
    layout = BodyLayout(TWO, [20])
    raw = bytearray(packed_chunk(TWO, 20, scales=(HALF, HALF)))
    checked = check_body(memoryview(raw), layout)
    raw[-1] = 0xFF
    assert checked.body[-1] == HALF >> 8
    with pytest.raises(ValueError, match="read-only"):
        checked.scale_low[0] = 1
    with pytest.raises(FrozenInstanceError):
        setattr(checked, "body", b"")  # noqa: B010 - mypy would refuse it, as it should
    with pytest.raises(SpecMismatchError):
        replace(checked, body=b"", proof=None)


def test_all_65536_scale_patterns_pass_or_have_the_reference_s_code():
    layout = BodyLayout(ONE, [20])
    for pattern in range(65536):
        packed = packed_chunk(ONE, 20, codes=1, scales=(pattern,))
        expected = reference.unpack_chunk(packed, 20, ONE)
        assert broken_rule(packed, layout) == (expected if isinstance(expected, str) else None)
        assert isinstance(expected, str) == (not 0x0400 <= pattern <= 0x3C00)


def test_all_65536_scale_patterns_beside_another_have_the_reference_s_rule():
    names = {
        kernels.FINE: None,
        kernels.SCALE_NONFINITE: "E_SCALE_NONFINITE",
        kernels.SCALE_SIGN: "E_SCALE_SIGN",
        kernels.SCALE_SUBNORMAL: "E_SCALE_SUBNORMAL",
        kernels.SCALE_RANGE: "E_SCALE_RANGE",
        kernels.SCALE_ORDER: "E_SCALE_ORDER",
    }
    spec = CodecSpec(max_scale_bits=0x5000)
    for other in (0, 0x0400, 0x5000):
        for pattern in range(65536):
            for pair in ((pattern, other), (other, pattern)):
                rule = kernels.check_scales(*pair, 0x5000)
                assert names[int(rule)] == reference.check_scales(*pair, spec)


def test_a_flipped_bit_is_noticed_or_changes_what_is_decoded():
    layout = BodyLayout(TWO, [45])
    body = body_of(layout, random_tensors([45], 1, palette_ratio=0.0))
    decoded = {body: reference.unpack_body(body, [45], TWO)}
    for bit in range(8 * len(body)):
        flipped = bytearray(body)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        rule = broken_rule(bytes(flipped), layout)
        if rule is None:
            decoded[bytes(flipped)] = reference.unpack_body(bytes(flipped), [45], TWO)
        else:
            with pytest.raises(CorruptBodyError, match=rule):
                reference.unpack_body(bytes(flipped), [45], TWO)
    assert len({str(values) for values in decoded.values()}) == len(decoded) > 50


def test_every_code_has_an_explanation_and_is_frozen():
    assert sorted(EXPLANATIONS) == [
        "E_ALL_ZERO",
        "E_BODY_LEN",
        "E_EMPTY_CHUNK",
        "E_INDEX_RANGE",
        "E_PADDING",
        "E_SCALE_NONFINITE",
        "E_SCALE_ORDER",
        "E_SCALE_RANGE",
        "E_SCALE_SIGN",
        "E_SCALE_SUBNORMAL",
    ]
