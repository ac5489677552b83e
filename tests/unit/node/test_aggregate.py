import itertools
import math
import multiprocessing
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.compression import BodyLayout, CodecSpec, check_body
from shoal.node.aggregate import (
    FULL_WEIGHT,
    aggregate,
    chunk_caps,
    clip_weights,
    hash_of_sum,
    payload_norm,
)
from shoal.protocol.manifest import OuterSection
from shoal.protocol.signing import Domain, digest
from tests.support.bodies import body_like
from tests.support.manifests import small_layout
from tests.support.reference_aggregate import (
    lower_median,
    reference_aggregate,
    reference_hash_parts,
)
from tests.unit.compression.bodies import packed_chunk

LARGEST = 0x7BFF
OUTER = OuterSection()


def bodies_of(layout, seeds):
    return [body_like(layout, seed) for seed in seeds]


def checked(bodies, layout):
    return [check_body(body, layout) for body in bodies]


def one_chunk_layout(max_scale_bits=LARGEST):
    return BodyLayout(CodecSpec(chunk_size=16, k_per_chunk=4, max_scale_bits=max_scale_bits), (16,))


def body_of_scale(layout, scale_bits, *, num_chunks=1, empty=()):
    """Chunks whose kept values all have one scale, or none."""
    spec = layout.spec
    chunks = [
        bytes(spec.chunk_bytes(16))
        if c in empty
        else packed_chunk(spec, 16, scales=(scale_bits,) * spec.value_bits)
        for c in range(num_chunks)
    ]
    return check_body(b"".join(chunks), layout)


def units(scale_bits):
    return int(float(np.uint16(scale_bits).view(np.float16)) * 2**24)


@pytest.mark.parametrize("value_bits", [1, 2])
@pytest.mark.parametrize("max_scale_bits", [0x3C00, LARGEST])
@pytest.mark.parametrize(
    "outer",
    [
        OUTER,
        OuterSection(cap_numerator=0),
        OuterSection(norm_clip=False),
        OuterSection(cap_numerator=1, cap_denominator=3),
        OuterSection(cap_numerator=1, cap_denominator=1000),
    ],
    ids=["default", "no cap", "no clip", "cap below the median", "smallest cap"],
)
def test_it_equals_the_slow_reference(value_bits, max_scale_bits, outer):
    layout = small_layout(value_bits=value_bits, max_scale_bits=max_scale_bits)
    for first in range(8):
        raw = bodies_of(layout, range(10 * first, 10 * first + first + 1))
        expected = reference_aggregate(raw, layout, outer)
        found = aggregate(checked(raw, layout), layout, outer)
        assert list(found.norms) == expected.norms
        assert list(found.weights) == expected.weights
        for part, wanted in zip(found.sums, expected.tensors, strict=True):
            positions = [int(p) for p in part.positions]
            assert positions == sorted(wanted)
            assert [(int(s), int(n)) for s, n in zip(part.sums, part.counts, strict=True)] == [
                wanted[p] for p in positions
            ]
        assert found.sum_hash == digest(Domain.SUM, *reference_hash_parts(expected.tensors))


@settings(max_examples=60, deadline=None)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=6), order=st.randoms())
def test_the_order_of_payloads_changes_no_bit(seeds, order):
    layout = small_layout(max_scale_bits=LARGEST)
    bodies = checked(bodies_of(layout, seeds), layout)
    shuffled = list(range(len(bodies)))
    order.shuffle(shuffled)
    one = aggregate(bodies, layout, OUTER)
    two = aggregate([bodies[i] for i in shuffled], layout, OUTER)
    assert two.sum_hash == one.sum_hash
    assert two.weights == tuple(one.weights[i] for i in shuffled)


def test_every_permutation_of_five_payloads_gives_one_sum():
    layout = small_layout()
    bodies = checked(bodies_of(layout, range(5)), layout)
    hashes = {
        aggregate(chosen, layout, OUTER).sum_hash for chosen in itertools.permutations(bodies)
    }
    assert len(bodies) == 5
    assert len(hashes) == 1


def big_layout():
    """More than two pieces of work, so that several threads have something to do."""
    return BodyLayout(CodecSpec(chunk_size=16, k_per_chunk=2), (16 * 2100 + 5, 700))


def test_threads_change_no_bit():
    layout = big_layout()
    bodies = checked([body_like(layout, seed) for seed in (1, 2, 3)], layout)
    results = [aggregate(bodies, layout, OUTER, num_threads=n) for n in (1, 2, 3)]
    assert len({r.sum_hash for r in results}) == 1
    for result in results[1:]:
        for one, other in zip(results[0].sums, result.sums, strict=True):
            assert np.array_equal(one.positions, other.positions)
            assert np.array_equal(one.sums, other.sums)
            assert np.array_equal(one.counts, other.counts)


def hash_in_another_process(seeds):
    layout = small_layout()
    return aggregate(checked(bodies_of(layout, seeds), layout), layout, OUTER).sum_hash


def test_another_process_computes_the_same_hash():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        theirs = pool.apply(hash_in_another_process, (range(6),))
    assert theirs == hash_in_another_process(range(6))


def test_a_chunk_is_capped_at_three_halves_of_the_lower_median():
    layout = one_chunk_layout()
    bodies = [body_of_scale(layout, bits) for bits in (0x3C00, 0x3C00, 0x4000, LARGEST)]
    # 1, 1, 2 and 65504: the lower median is 1.
    assert chunk_caps(bodies, 1, OUTER).tolist() == [3 * 2**24 // 2]
    result = aggregate(bodies, layout, OuterSection(norm_clip=False))
    (part,) = result.sums
    assert set(part.sums.tolist()) == {2**15 * (2**24 + 2**24 + 2 * (3 * 2**24 // 2))}


def test_peers_that_left_a_chunk_empty_take_no_part_in_its_median():
    layout = BodyLayout(CodecSpec(chunk_size=16, k_per_chunk=4), (32,))
    two_chunks = [
        body_of_scale(layout, 0x3C00, num_chunks=2),
        body_of_scale(layout, 0x3800, num_chunks=2, empty=(1,)),
        body_of_scale(layout, 0x3800, num_chunks=2, empty=(1,)),
    ]
    assert chunk_caps(two_chunks, 2, OUTER).tolist() == [3 * 2**23 // 2, 3 * 2**24 // 2]


def test_a_chunk_that_nobody_sent_has_the_cap_zero_and_touches_nothing():
    layout = BodyLayout(CodecSpec(chunk_size=16, k_per_chunk=4), (32,))
    bodies = [body_of_scale(layout, 0x3C00, num_chunks=2, empty=(1,))] * 3
    assert chunk_caps(bodies, 2, OUTER).tolist() == [3 * 2**24 // 2, 0]
    (part,) = aggregate(bodies, layout, OUTER).sums
    assert part.positions.max() < 16


@settings(max_examples=100, deadline=None)
@given(
    present=st.lists(st.integers(0x0400, LARGEST), min_size=1, max_size=9),
    num_empty=st.integers(0, 9),
)
def test_the_cap_is_that_of_the_lower_median_among_the_present(present, num_empty):
    layout = BodyLayout(CodecSpec(chunk_size=16, k_per_chunk=4, max_scale_bits=LARGEST), (32,))
    bodies = [body_of_scale(layout, bits, num_chunks=2) for bits in present]
    bodies += [body_of_scale(layout, 0x3C00, num_chunks=2, empty=(1,))] * num_empty
    random.Random(0).shuffle(bodies)  # noqa: S311  # a test's order, not a secret
    expected = lower_median([units(bits) for bits in present]) * 3 // 2
    assert chunk_caps(bodies, 2, OUTER)[1] == expected


@pytest.mark.parametrize("scale_bits", [0x0400, 0x3C00, LARGEST])
def test_the_norm_is_exact_up_to_the_largest_scale_and_the_most_kept_values(scale_bits):
    spec = CodecSpec(chunk_size=4096, k_per_chunk=512, value_bits=1, max_scale_bits=LARGEST)
    num_chunks = 9
    layout = BodyLayout(spec, (4096 * num_chunks,))
    chunk = packed_chunk(spec, 4096, scales=(scale_bits,))
    body = check_body(chunk * num_chunks, layout)
    caps = np.full(num_chunks, 1 << 41, dtype=np.int64)
    # In int64 the square alone would not fit at the largest scale.
    assert payload_norm(body, caps) == math.isqrt(num_chunks * 512 * units(scale_bits) ** 2)


def test_the_norm_is_exact_over_many_blocks_of_chunks():
    spec = CodecSpec(chunk_size=16, k_per_chunk=16, value_bits=1, max_scale_bits=LARGEST)
    num_chunks = 3 * 4096 + 7
    layout = BodyLayout(spec, (16 * num_chunks,))
    body = check_body(packed_chunk(spec, 16, scales=(LARGEST,)) * num_chunks, layout)
    found = payload_norm(body, np.full(num_chunks, 1 << 41, dtype=np.int64))
    assert found == math.isqrt(num_chunks * 16 * units(LARGEST) ** 2)


def test_the_norm_is_taken_of_the_capped_scales():
    layout = one_chunk_layout()
    body = body_of_scale(layout, LARGEST)
    assert payload_norm(body, np.array([2**24], dtype=np.int64)) == 2 * 2**24


def test_the_sum_of_the_most_payloads_at_the_largest_scale_does_not_overflow():
    layout = one_chunk_layout()
    bodies = [body_of_scale(layout, LARGEST)] * 255
    (part,) = aggregate(bodies, layout, OuterSection(gather_limit=255)).sums
    assert set(part.sums.tolist()) == {255 * 2**15 * units(LARGEST)}
    assert 255 * 2**15 * units(LARGEST) < 2**63


def test_norms_are_clipped_to_the_lower_median():
    assert clip_weights([100, 200, 400, 10**30]) == [FULL_WEIGHT, FULL_WEIGHT, 16384, 0]
    assert clip_weights([7]) == [FULL_WEIGHT]
    assert clip_weights([0, 0, 5]) == [0, 0, 0]
    assert clip_weights([3, 3, 4]) == [FULL_WEIGHT, FULL_WEIGHT, 3 * 2**15 // 4]


@given(st.lists(st.integers(1, 2**70), min_size=1, max_size=20))
def test_a_clipped_payload_is_never_longer_than_the_median(norms):
    middle = lower_median(norms)
    for norm, weight in zip(norms, clip_weights(norms), strict=True):
        assert 0 <= weight <= FULL_WEIGHT
        assert norm * weight <= middle * FULL_WEIGHT
        assert weight == FULL_WEIGHT or (weight + 1) * norm > middle * FULL_WEIGHT


def test_without_the_clip_every_weight_is_one():
    layout = small_layout()
    result = aggregate(
        checked(bodies_of(layout, range(4)), layout), layout, OuterSection(norm_clip=False)
    )
    assert set(result.weights) == {FULL_WEIGHT}


@pytest.mark.parametrize("field", ["positions", "sums", "counts"])
def test_the_hash_covers_positions_sums_and_counts(field):
    layout = small_layout()
    result = aggregate(checked(bodies_of(layout, range(4)), layout), layout, OUTER)
    before = hash_of_sum(result.sums)
    getattr(result.sums[1], field)[-1] += 1
    assert hash_of_sum(result.sums) != before


def test_the_hash_tells_apart_to_which_tensor_a_sum_belongs():
    layout = small_layout()
    sums = aggregate(checked(bodies_of(layout, range(4)), layout), layout, OUTER).sums
    assert hash_of_sum(sums[::-1]) != hash_of_sum(sums)
