"""Who pays, how long it takes, and that a wait for our own cap is nobody's fault."""

import asyncio
import contextvars
import threading
from types import SimpleNamespace

import pytest

from shoal.storage.allowance import (
    Bandwidth,
    QuotaReachedError,
    block_bytes,
    check_quota,
    count,
    is_control,
    paid_by,
    spend,
    spend_in_thread,
)
from shoal.storage.memory import MemoryStore
from shoal.storage.meter import Meter, MeteredStore
from shoal.storage.pacing import RateLimit
from shoal.storage.s3_answers import GiveUpError
from shoal.storage.s3_clock import CallClock, Pace
from shoal.storage.s3_config import S3Limits
from shoal.storage.waits import Waits, collecting_waits, excused_timeout
from tests.support.fake_clock import FakeClock
from tests.support.virtual_time import VirtualLoop, run_virtual


class Sums:
    def __init__(self, reason: str = "") -> None:
        self.added: list[tuple[str, int]] = []
        self.reason = reason

    def add(self, direction: str, num_bytes: int) -> None:
        self.added.append((direction, num_bytes))

    def exhausted(self, direction: str) -> str:
        return self.reason if direction == "up" else ""


def test_without_an_account_nothing_is_asked() -> None:
    async def body(loop: VirtualLoop) -> None:
        begun_at_s = loop.time()
        assert await spend("up", 10**12) == 0.0
        assert spend_in_thread("down", 10**12, pytest.fail) == 0.0
        assert loop.time() == begun_at_s

    run_virtual(body)
    count("up", 5)
    check_quota("up", "key")
    assert block_bytes("up", 1000) == 1000
    assert not is_control()


def test_each_direction_has_its_cap_and_all_bytes_are_in_the_book() -> None:
    async def body(loop: VirtualLoop) -> None:
        sums = Sums()
        rate = RateLimit(1_000_000.0, now_s=loop.time)
        with paid_by(Bandwidth(down=rate, book=sums), "bulk"):
            begun_at_s = loop.time()
            await spend("up", 50_000_000)
            assert loop.time() == begun_at_s
            await spend("down", 3_000_000)
            took_s = loop.time() - begun_at_s
            assert 1_000_000 * took_s + rate.burst_bytes + 1 >= 3_000_000
            assert took_s < 3.5
            assert block_bytes("down", 1 << 20) == rate.block_bytes
            assert block_bytes("up", 1 << 20) == 1 << 20
        assert sums.added == [("up", 50_000_000), ("down", 3_000_000)]

    run_virtual(body)


def test_a_quota_stops_bulk_and_not_control() -> None:
    bandwidth = Bandwidth(book=Sums("used up"))
    with paid_by(bandwidth, "bulk"):
        check_quota("down", "key")
        with pytest.raises(QuotaReachedError, match="used up") as caught:
            check_quota("up", "key")
    assert (caught.value.direction, caught.value.key) == ("up", "key")
    with paid_by(bandwidth, "control"):
        check_quota("up", "key")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("announcement", True), ("record", True), ("payload", False), ("copy", False), ("new", False)],
)
def test_labels_say_what_is_control(kind: str, *, expected: bool) -> None:
    found = []

    class Noting(MemoryStore):
        async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
            found.append(is_control())

        async def delete(self, key: str) -> None:
            found.append(is_control())

    view = MeteredStore(Noting(), Meter(lambda: 0.0)).labelled(peer="p", kind=kind)
    asyncio.run(view.put("a", b""))
    asyncio.run(view.delete("a"))
    assert found == [expected, True]


def test_a_thread_stops_waiting_when_nobody_wants_it_any_more() -> None:
    class StoppedError(Exception):
        pass

    clock = FakeClock()
    looks = []

    def check() -> None:
        looks.append(1)
        raise StoppedError

    rate = RateLimit(100_000.0, now_s=clock.now_s)
    with paid_by(Bandwidth(up=rate), "bulk"), pytest.raises(StoppedError):
        spend_in_thread("up", 1_000_000, check)
    assert looks == [1]


def test_the_account_travels_into_threads() -> None:
    sums = Sums()
    with paid_by(Bandwidth(book=sums), "control"):
        context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(count, "up", 3))
    thread.start()
    thread.join()
    assert sums.added == [("up", 3)]


def test_parallel_waits_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr("shoal.storage.waits.time", SimpleNamespace(monotonic=clock.now_s))
    outer = Waits()
    inner = Waits(outer)
    inner.begin()
    clock.advance(1.0)
    inner.begin()
    clock.advance(1.0)
    assert inner.total_s == 2.0
    inner.end()
    inner.end()
    clock.advance(5.0)
    assert (inner.total_s, outer.total_s) == (2.0, 2.0)


def test_a_timeout_leaves_out_waits_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(loop: VirtualLoop) -> None:
        monkeypatch.setattr("shoal.storage.waits.time", SimpleNamespace(monotonic=loop.time))
        rate = RateLimit(100_000.0, now_s=loop.time)
        begun_at_s = loop.time()
        with paid_by(Bandwidth(up=rate), "bulk"):
            async with excused_timeout(5.0):
                await spend("up", 3_000_000)
                await asyncio.sleep(4.0)
            assert loop.time() - begun_at_s > 30.0
            with pytest.raises(TimeoutError):
                await _spend_and_sleep(1_000_000, 6.0)
        begun_at_s = loop.time()
        with pytest.raises(TimeoutError):
            async with excused_timeout(5.0):
                await asyncio.sleep(100.0)
        assert loop.time() - begun_at_s == pytest.approx(5.0)

    run_virtual(body)


async def _spend_and_sleep(num_bytes: int, seconds: float) -> None:
    async with excused_timeout(5.0):
        await spend("up", num_bytes)
        await asyncio.sleep(seconds)


def test_waits_reach_whoever_collects_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(loop: VirtualLoop) -> None:
        monkeypatch.setattr("shoal.storage.waits.time", SimpleNamespace(monotonic=loop.time))
        rate = RateLimit(100_000.0, now_s=loop.time)
        with collecting_waits() as waits, paid_by(Bandwidth(up=rate), "bulk"):
            waited = await asyncio.gather(spend("up", 500_000), spend("up", 500_000))
            assert max(waited) == pytest.approx(waits.total_s)
            assert sum(waited) > 1.5 * waits.total_s

    run_virtual(body)


def test_a_calls_deadline_and_least_rate_leave_out_waits() -> None:
    clock, excused = FakeClock(), [0.0]
    limits = S3Limits(deadline_s=10.0, min_bytes_per_s=1000.0, min_rate_window_s=5.0)
    call = CallClock(limits, clock.now_s, excused_s=lambda: excused[0])
    pace = Pace(call.child())
    clock.advance(30.0)
    excused[0] = 29.0
    pace.excuse(29.0)
    pace.moved(1)
    assert call.remaining_s() == pytest.approx(9.0)
    clock.advance(5.0)
    with pytest.raises(GiveUpError, match="at least 1000 bytes per second"):
        pace.moved(1)
    clock.advance(5.0)
    with pytest.raises(GiveUpError, match="not done within 10 s"):
        call.child().check()
