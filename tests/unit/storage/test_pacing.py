"""Token buckets under a fake clock: the cap, the reservation, fairness."""

import heapq
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.storage.pacing import (
    MIN_CAP_BYTES_PER_S,
    MIN_RESERVED_BYTES_PER_S,
    Kind,
    RateLimit,
    Ticket,
    reserved_rate,
)
from tests.support.fake_clock import FakeClock

CAP = 1_000_000.0


@dataclass
class Flow:
    """Asks for one block after the other, pausing in between."""

    kind: Kind
    blocks: list[int]
    pause_s: float = 0.0
    starts_at_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    moved: list[tuple[float, int]] = field(default_factory=list)


def simulate(limit: RateLimit, clock: FakeClock, flows: list[Flow], until_s: float) -> None:
    """Everybody moves bytes at the very moment when they may."""
    begun_at_s = clock.time_s
    due = [(begun_at_s + flow.starts_at_s, i) for i, flow in enumerate(flows)]
    heapq.heapify(due)
    queues = [iter(flow.blocks) for flow in flows]
    held: dict[int, tuple[Ticket, int, float]] = {}
    while due:
        at_s, i = heapq.heappop(due)
        if at_s - begun_at_s > until_s:
            return
        clock.time_s = max(clock.time_s, at_s)
        if i not in held:
            num_bytes = next(queues[i], 0)
            if not num_bytes:
                continue
            held[i] = (limit.ask(flows[i].kind, num_bytes), num_bytes, clock.time_s)
        ticket, num_bytes, asked_at_s = held[i]
        wait_s = limit.wait_s(ticket)
        if wait_s > 0:
            heapq.heappush(due, (clock.time_s + wait_s + 1e-9, i))
            continue
        del held[i]
        flows[i].moved.append((clock.time_s, num_bytes))
        flows[i].waits_s.append(clock.time_s - asked_at_s)
        heapq.heappush(due, (clock.time_s + flows[i].pause_s, i))


def limit_of(clock: FakeClock, cap: float = CAP, reserved: float | None = None) -> RateLimit:
    return RateLimit(cap, now_s=clock.now_s, reserved_bytes_per_s=reserved)


flows = st.lists(
    st.builds(
        Flow,
        kind=st.sampled_from(["control", "bulk"]),
        blocks=st.lists(st.integers(1, 62_500), max_size=30),
        pause_s=st.floats(0.0, 0.2),
        starts_at_s=st.floats(0.0, 2.0),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(flows, st.floats(1e3, 4e5))
def test_no_window_has_more_than_rate_and_burst(some: list[Flow], reserved: float) -> None:
    clock = FakeClock()
    limit = limit_of(clock, reserved=reserved)
    simulate(limit, clock, some, until_s=1e6)
    moved = sorted(move for flow in some for move in flow.moved)
    assert sum(n for _, n in moved) == sum(sum(flow.blocks) for flow in some)
    for first in range(len(moved)):
        total = 0
        for last in range(first, len(moved)):
            total += moved[last][1]
            window_s = moved[last][0] - moved[first][0]
            assert total <= CAP * window_s + limit.burst_bytes + 1.0


@settings(deadline=None)
@given(flows, st.floats(1e3, 4e5))
def test_control_waits_for_its_own_bytes_only(some: list[Flow], reserved: float) -> None:
    """As fast as with nobody else there and the reservation as the whole rate."""
    clock = FakeClock()
    limit = limit_of(clock, reserved=reserved)
    queue: list[tuple[float, int]] = []
    bulk = [flow for flow in some if flow.kind == "bulk"]
    control = [Flow("control", [n], starts_at_s=i / 10) for i, n in enumerate([1000, 50_000, 9000])]
    simulate(limit, clock, bulk + control, until_s=1e6)
    for flow in control:
        moved_at_s, num_bytes = flow.moved[0]
        asked_at_s = moved_at_s - flow.waits_s[0]
        ahead = sum(n for at_s, n in queue if at_s > asked_at_s)
        assert flow.waits_s[0] <= (ahead + num_bytes) / reserved + 1e-6
        queue.append((moved_at_s, num_bytes))


def test_a_small_message_does_not_wait_at_all_behind_a_saturated_link() -> None:
    clock = FakeClock()
    limit = limit_of(clock)
    bulk = [Flow("bulk", [62_500] * 400) for _ in range(20)]
    small = Flow("control", [1024] * 10, pause_s=0.5, starts_at_s=5.0)
    simulate(limit, clock, [*bulk, small], until_s=12.0)
    assert small.waits_s == [0.0] * 10
    assert max(flow.waits_s[-1] for flow in bulk) > 1.0


def test_bulk_takes_the_whole_cap_while_control_is_silent() -> None:
    clock = FakeClock()
    limit = limit_of(clock, reserved=CAP / 4)
    one = Flow("bulk", [50_000] * 1000)
    simulate(limit, clock, [one], until_s=10.0)
    assert sum(n for _, n in one.moved) == pytest.approx(10 * CAP, rel=0.03)


def test_control_takes_the_whole_cap_while_bulk_is_silent() -> None:
    clock = FakeClock()
    limit = limit_of(clock, reserved=CAP / 4)
    one = Flow("control", [50_000] * 1000)
    simulate(limit, clock, [one], until_s=10.0)
    assert sum(n for _, n in one.moved) == pytest.approx(10 * CAP, rel=0.03)


def test_neither_starves_the_other() -> None:
    clock = FakeClock()
    limit = limit_of(clock, reserved=CAP / 4)
    bulk, control = (Flow(kind, [50_000] * 1000) for kind in ("bulk", "control"))
    simulate(limit, clock, [bulk, control], until_s=20.0)
    assert sum(n for _, n in bulk.moved) == pytest.approx(15 * CAP, rel=0.03)
    assert sum(n for _, n in control.moved) == pytest.approx(5 * CAP, rel=0.05)


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(1000, 62_500))
def test_transfers_share_equally(num_flows: int, block: int) -> None:
    clock = FakeClock()
    limit = limit_of(clock)
    some = [Flow("bulk", [block] * 10_000) for _ in range(num_flows)]
    simulate(limit, clock, some, until_s=3.0)
    shares = [len(flow.moved) for flow in some]
    assert max(shares) - min(shares) <= 1 + 2 * limit.block_bytes // block
    assert min(shares) > 0


def test_who_gives_up_delays_the_others_by_its_block_only() -> None:
    clock = FakeClock()
    limit = limit_of(clock)
    size = limit.block_bytes
    for _ in range(10):
        limit.ask("bulk", size)
    mine = limit.ask("bulk", size)
    bulk_rate = CAP - limit.reserved_bytes_per_s
    assert limit.wait_s(mine) == pytest.approx((11 - 2) * size / bulk_rate)
    limit.ask("bulk", size)
    assert limit.wait_s(mine) == pytest.approx((11 - 2) * size / bulk_rate)


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    clock = FakeClock()
    limit = limit_of(clock)
    while limit.wait_s(ticket := limit.ask("bulk", limit.block_bytes)) == 0:
        pass
    wait_s = limit.wait_s(ticket)
    clock.advance(-5.0)
    assert limit.wait_s(ticket) == wait_s
    clock.advance(wait_s + 1e-6)
    assert limit.wait_s(ticket) == 0.0


def test_the_reservation_is_a_share_within_bounds() -> None:
    assert reserved_rate(10e6, 0.05) == 0.5e6
    assert reserved_rate(100_000, 0.05) == MIN_RESERVED_BYTES_PER_S
    assert reserved_rate(10e6, 0.9) == 5e6
    assert reserved_rate(MIN_CAP_BYTES_PER_S, 0.05) == MIN_CAP_BYTES_PER_S / 2


@pytest.mark.parametrize("reserved", [0.0, CAP, 2 * CAP])
def test_a_reservation_leaves_something_for_both(reserved: float) -> None:
    with pytest.raises(ValueError, match="cannot be reserved"):
        limit_of(FakeClock(), reserved=reserved)
