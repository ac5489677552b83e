import multiprocessing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.compression import IntegerSum, check_body
from shoal.node.aggregate import aggregate
from shoal.node.outer_step import outer_step, step_table
from shoal.node.parameters import parameters_root
from shoal.protocol.manifest import OuterSection
from tests.support.bodies import body_like
from tests.support.manifests import TENSORS, small_layout
from tests.support.reference_aggregate import reference_aggregate, reference_step

ONE = 2**39


def sum_of(*entries):
    """(position, sum, count) of one tensor."""
    positions, sums, counts = zip(*entries, strict=True)
    return IntegerSum(
        np.array(positions, dtype=np.uint32),
        np.array(sums, dtype=np.int64),
        np.array(counts, dtype=np.uint8),
    )


def base_of(layout, seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size).astype(np.float32) for size in layout.sizes]


def stepped(seed, outer, num_threads=1, num_bodies=5):
    layout = small_layout(max_scale_bits=0x7BFF)
    bodies = [check_body(body_like(layout, seed + i), layout) for i in range(num_bodies)]
    base = base_of(layout, seed)
    outer_step(base, aggregate(bodies, layout, outer, num_threads=num_threads).sums, outer)
    return base


def root_after_step(seed):
    return parameters_root(TENSORS, stepped(seed, OuterSection(alpha=0.7, tau=2)))


@pytest.mark.parametrize("seed", range(0, 60, 10))
@pytest.mark.parametrize(
    "outer",
    [
        OuterSection(),
        OuterSection(alpha=0.7, tau=3),
        OuterSection(alpha=1e-2, tau=255),
        OuterSection(alpha=1e3, cap_numerator=0, norm_clip=False),
    ],
    ids=["default", "tau 3", "small steps", "large steps"],
)
def test_it_equals_the_slow_reference_to_the_bit(seed, outer):
    layout = small_layout(max_scale_bits=0x7BFF)
    raw = [body_like(layout, seed + i) for i in range(5)]
    base = base_of(layout, seed)
    expected = reference_step(base, reference_aggregate(raw, layout, outer).tensors, outer)
    found = stepped(seed, outer)
    for one, other in zip(found, expected, strict=True):
        assert one.tobytes() == other.tobytes()
    assert any(one.tobytes() != start.tobytes() for one, start in zip(found, base, strict=True))


def test_threads_of_torch_change_no_bit():
    before = torch.get_num_threads()
    try:
        roots = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            result = stepped(40, OuterSection(), num_threads=threads)
            roots.append(parameters_root(TENSORS, result))
    finally:
        torch.set_num_threads(before)
    assert len(set(roots)) == 1


def test_another_process_reaches_the_same_parameters():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        theirs = pool.apply(root_after_step, (40,))
    assert theirs == root_after_step(40)


def test_the_update_is_subtracted_from_the_base():
    base = [np.array([1.0, 2.0], dtype=np.float32)]
    norm = outer_step(base, [sum_of((1, ONE // 2, 1))], OuterSection())
    assert base[0].tolist() == [1.0, 1.5]
    assert norm == 0.5


@pytest.mark.parametrize("alpha", [1.0, 0.5, 0.25, 2.0])
def test_alpha_is_applied_once(alpha):
    base = [np.zeros(1, dtype=np.float32)]
    outer_step(base, [sum_of((0, ONE, 1))], OuterSection(alpha=alpha))
    assert base[0].tolist() == [-alpha]


@pytest.mark.parametrize(
    ("count", "tau", "divisor"), [(1, 1, 1), (3, 1, 3), (1, 4, 4), (4, 4, 4), (5, 4, 5)]
)
def test_a_coordinate_is_divided_by_its_senders_or_by_tau_whichever_is_more(count, tau, divisor):
    base = [np.zeros(1, dtype=np.float32)]
    outer_step(base, [sum_of((0, 60 * ONE, count))], OuterSection(tau=tau))
    assert base[0][0] == np.float32(-60 / divisor)


def test_the_table_holds_alpha_over_the_divisor_in_doubles():
    outer = OuterSection(alpha=0.7, tau=3, gather_limit=5)
    assert step_table(outer).tolist() == [0.7 / (max(n, 3) * 2.0**39) for n in range(6)]
    assert step_table(outer).dtype == np.float64


@settings(max_examples=200, deadline=None)
@given(
    total=st.integers(-(2**62), 2**62),
    count=st.integers(1, 20),
    theta=st.floats(width=32, allow_nan=False, allow_infinity=False),
    alpha=st.floats(1e-6, 100),
    tau=st.integers(1, 20),
)
def test_a_coordinate_is_rounded_twice_and_never_fused(total, count, theta, alpha, tau):
    outer = OuterSection(alpha=alpha, tau=tau)
    base = [np.array([theta], dtype=np.float32)]
    expected = reference_step(base, [{0: (total, count)}], outer)
    outer_step(base, [sum_of((0, total, count))], outer)
    assert base[0].tobytes() == expected[0].tobytes()


def test_two_roundings_differ_from_a_fused_step_for_the_number_below():
    """Otherwise the test above could not tell the two apart."""
    theta, total, factor = np.float32(0.1), 3 * ONE // 10, 1 / 2.0**39
    twice = np.float32(theta - np.float32(float(total) * factor))
    fused = np.float32(float(theta) - float(total) * factor)
    assert twice != fused
    base = [np.array([theta])]
    outer_step(base, [sum_of((0, total, 1))], OuterSection())
    assert base[0][0] == twice


def test_untouched_coordinates_keep_their_bits():
    odd = np.array([0x80000000, 0x7FC12345, 0x00000001, 0xFF800000, 0x3F800000], dtype=np.uint32)
    base = [odd.view(np.float32).copy()]
    outer_step(base, [sum_of((4, ONE, 1))], OuterSection())
    assert base[0].view(np.uint32)[:4].tolist() == odd[:4].tolist()
    assert base[0][4] == 0.0


def test_a_negative_zero_that_is_touched_by_a_sum_of_zero_stays_what_it_is():
    base = [np.array([-0.0], dtype=np.float32)]
    outer_step(base, [sum_of((0, 0, 2))], OuterSection())
    assert base[0].view(np.uint32).tolist() == [0x80000000]


def test_no_sums_move_nothing():
    base = [np.array([1.5], dtype=np.float32)]
    empty = IntegerSum(np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.uint8))
    assert outer_step(base, [empty], OuterSection()) == 0.0
    assert base[0].tolist() == [1.5]
