"""The least speed of a call whose parts share one line."""

import pytest

from shoal.storage.s3_answers import GiveUpError
from shoal.storage.s3_clock import CallClock, Pace
from shoal.storage.s3_config import S3Limits
from tests.support.fake_clock import FakeClock

LIMITS = S3Limits(deadline_s=600.0, min_bytes_per_s=64_000.0, min_rate_window_s=10.0)
NUM_PARTS = 4


def paces(time: FakeClock) -> list[Pace]:
    """Those of one call whose parts travel side by side."""
    parts = CallClock(LIMITS, time.now_s).child()
    return [Pace(parts) for _ in range(NUM_PARTS)]


def travel(time: FakeClock, num_s: int, moved: dict[Pace, int]) -> None:
    """Let time pass while each transfer moves so many bytes a second."""
    for _ in range(num_s):
        time.advance(1.0)
        for pace, num_bytes in moved.items():
            pace.moved(num_bytes)


def test_parts_that_are_fast_enough_together_go_on():
    time = FakeClock()
    travel(time, 300, dict.fromkeys(paces(time), 20_000))


def test_parts_that_are_too_slow_together_are_given_up():
    time = FakeClock()
    with pytest.raises(GiveUpError, match="64000 bytes per second expected"):
        travel(time, 12, dict.fromkeys(paces(time), 15_000))
    assert 10.0 <= time.now_s() - 1000.0 <= 11.0


def test_a_part_that_trickles_is_given_up_when_the_others_are_done():
    time = FakeClock()
    slow, *others = paces(time)
    travel(time, 30, {slow: 1, **dict.fromkeys(others, 1_000_000)})
    with pytest.raises(GiveUpError):
        travel(time, 22, {slow: 1})


def test_two_calls_do_not_help_each_other():
    time = FakeClock()
    fast, slow = (Pace(CallClock(LIMITS, time.now_s)) for _ in range(2))
    with pytest.raises(GiveUpError):
        travel(time, 12, {fast: 1_000_000, slow: 1})
