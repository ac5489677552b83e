import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.closing import Attendance, derive_limits, should_close, waited_for
from shoal.protocol.record_body import CloseReason
from tests.support.manifests import peer

A, B, C, D, E = (peer(i).peer for i in range(1, 6))
LIMITS = derive_limits(100.0)
ALL, TARGET, OVER = (
    CloseReason.ALL_PUBLISHED,
    CloseReason.TARGET_REACHED,
    CloseReason.ROUND_OVER,
)


def closes(now_s, arrivals=None, *, expected=(), failed=(), steady=None, min_peers=1, target=20):
    """The reason at `now_s` of a round that opened at 0."""
    attendance = Attendance(
        opened_at_s=0.0,
        attending=frozenset(expected),
        arrivals_s=tuple((arrivals or {}).items()),
        failed=frozenset(failed),
        steady=steady,
    )
    return should_close(
        attendance, expected, now_s, min_peers=min_peers, target_peers=target, limits=LIMITS
    )


def test_every_limit_is_derived_from_one_number():
    assert LIMITS.round_s == 100.0
    assert LIMITS.training_s == 75.0
    assert LIMITS.transfer_s == 50.0
    assert LIMITS.settle_s == 10.0
    assert LIMITS.poll_s == 0.2


@given(st.floats(1.0, 1e6))
def test_limits_fit_into_the_round_whatever_its_length(round_seconds):
    limits = derive_limits(round_seconds)
    assert 0 < limits.settle_s < limits.training_s < limits.round_s == round_seconds
    assert 0.05 <= limits.poll_s <= 2.0
    assert limits.transfer_s >= 5.0


@pytest.mark.parametrize("now_s", [0.0, 50.0, 100.0, 1e9])
def test_a_round_that_nobody_published_in_stays_open(now_s):
    assert closes(now_s) is None
    assert closes(now_s, expected={A, B}) is None


def test_it_closes_when_everybody_that_is_waited_for_has_published():
    assert closes(20, {A: 11}, expected={A, B}) is None
    assert closes(20, {A: 11, B: 12}, expected={A, B}) is ALL


def test_a_refused_peer_is_not_waited_for_any_longer():
    assert closes(20, {A: 11}, expected={A, B}, failed={B}) is ALL


def test_in_the_first_tenth_the_target_is_wanted_too():
    assert closes(9.9, {A: 1}, expected={A}) is None
    assert closes(10.0, {A: 1}, expected={A}) is ALL
    assert closes(2.0, {A: 1, B: 1}, expected={A, B}, target=2) is ALL


def test_fewer_than_the_least_do_not_close_early():
    assert closes(20, {A: 11}, expected={A}, min_peers=2) is None
    assert closes(100, {A: 11}, expected={A}, min_peers=2) is OVER


def test_with_the_target_it_waits_for_median_plus_three_mad():
    arrivals = {A: 10.0, B: 20.0, C: 30.0}
    # Median 20, median distance 10: 20 + 3 * 10.
    assert closes(49.9, arrivals, expected={A, B, C, D}, target=3) is None
    assert closes(50.0, arrivals, expected={A, B, C, D}, target=3) is TARGET
    assert closes(50.0, arrivals, expected={A, B, C, D}, target=4) is None


def test_one_very_late_peer_does_not_move_the_deadline():
    arrivals = {A: 10.0, B: 12.0, C: 14.0, D: 95.0, E: 16.0}
    # Median 14, distances 4, 2, 0, 81, 2: MAD 2.
    assert closes(20.0, arrivals, expected={*arrivals, peer(9).peer}, target=5) is TARGET


def test_after_the_rounds_time_it_closes_with_whoever_is_there():
    assert closes(99.9, {A: 11}, expected={A, B}) is None
    assert closes(100.0, {A: 11}, expected={A, B}) is OVER


def test_if_all_that_came_was_refused_the_round_ends_with_its_time():
    assert closes(99.9, failed={A}, expected={A}) is None
    assert closes(100.0, failed={A}, expected={A}) is OVER


def test_earlier_rules_go_first():
    arrivals = {A: 1.0, B: 1.0}
    assert closes(1000.0, arrivals, expected={A, B}, target=2) is ALL
    assert closes(1000.0, arrivals, expected={A, B, C}, target=2) is TARGET
    assert closes(1000.0, arrivals, expected={A, B, C}, target=3) is OVER


@pytest.mark.parametrize(
    ("attending", "before", "published", "expected"),
    [
        ({A, B}, set(), set(), {A, B}),
        ({A, B}, {A, B}, {A, B}, {A, B}),
        ({A, B}, {A, B}, {A}, {A}),
        ({A, B, C}, {A, B}, set(), {C}),
        ({A}, {A, B}, {A}, {A}),
        (set(), {A}, set(), set()),
    ],
    ids=["first round", "all published", "B was silent", "newcomer", "B left", "nobody"],
)
def test_who_was_silent_is_not_waited_for_twice(attending, before, published, expected):
    assert waited_for(attending, before, published) == expected


@given(
    st.lists(st.floats(0, 100), max_size=5),
    st.sets(st.sampled_from([A, B, C, D, E])),
    st.floats(0, 200),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_a_round_that_may_close_may_close_later_too(times, expected, now_s, min_peers, target):
    arrivals = dict(zip([A, B, C, D, E], times, strict=False))
    options = {"expected": expected, "min_peers": min_peers, "target": target}
    if closes(now_s, arrivals, **options) is not None:
        assert closes(now_s + 1, arrivals, **options) is not None
    if arrivals:
        assert closes(100.0, arrivals, **options) is not None


NEW = [peer(i).peer for i in range(50, 90)]


def test_newcomers_alone_do_not_close_a_round_before_those_that_counted_have_trained():
    at_once = dict.fromkeys(NEW, 0.5)
    assert closes(1, at_once, target=3) is ALL
    assert closes(1, at_once, steady=frozenset({A, B, C}), target=3) is None
    waited = {"expected": {A, B, C}, "steady": frozenset({A, B, C}), "target": 3}
    assert closes(50, at_once, **waited) is None
    assert closes(100, at_once, **waited) is OVER


def test_newcomers_fill_up_what_those_that_counted_leave_of_the_target():
    at_once = dict.fromkeys(NEW, 0.5)
    steady = frozenset({A, B})
    late = {**at_once, A: 20.0}
    assert closes(60, late, expected={A, B}, steady=steady, target=4) is None
    late[B] = 30.0
    # Two at 0.5, one at 20, one at 30: the median is 10.25, the deviation 9.75.
    assert closes(39.4, late, expected={A, B, C}, steady=steady, target=4) is None
    assert closes(39.6, late, expected={A, B, C}, steady=steady, target=4) is TARGET


def test_newcomers_that_are_waited_for_and_there_end_the_round_as_anybody():
    arrivals = {A: 11.0, D: 12.0}
    assert closes(20, arrivals, expected={A, D}, steady=frozenset({A, B}), target=2) is ALL
