"""The month's sums: kept over restarts, never given back, warned about once."""

import json
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.monthly_use import FILE_NAME, MonthlyUse, MonthSums, month_of
from tests.support.fake_clock import FakeClock


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def use_of(folder: Path, clock: FakeClock, up: int = 0, down: int = 0) -> MonthlyUse:
    return MonthlyUse(folder / FILE_NAME, clock.now_s, up_bytes=up, down_bytes=down)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(at("2026-11-30T12:00:00"))


def test_sums_survive_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    use = use_of(tmp_path, clock)
    use.add("up", 100)
    use.add("down", 7)
    assert use.num_unsaved_bytes == 107
    use.save()
    assert use.num_unsaved_bytes == 0
    use.add("up", 1)
    again = use_of(tmp_path, clock)
    assert again.sums() == MonthSums(month="2026-11", up=100, down=7)
    assert again.trouble == ""


def test_a_new_month_begins_at_zero_also_without_a_running_node(
    tmp_path: Path, clock: FakeClock
) -> None:
    use = use_of(tmp_path, clock, up=100)
    use.add("up", 100)
    use.save()
    assert use.exhausted("up")
    clock.time_s = at("2026-12-01T00:00:00")
    assert not use.exhausted("up")
    assert use.sums() == MonthSums(month="2026-12")
    assert use.num_unsaved_bytes > 0
    assert use_of(tmp_path, clock, up=100).sums() == MonthSums(month="2026-12")


def test_a_clock_that_goes_back_gives_nothing_back(tmp_path: Path, clock: FakeClock) -> None:
    clock.time_s = at("2026-12-01T00:00:05")
    use = use_of(tmp_path, clock, up=100)
    use.add("up", 100)
    use.save()
    clock.time_s = at("2026-11-30T23:59:58")
    assert use.exhausted("up")
    assert use_of(tmp_path, clock, up=100).sums() == MonthSums(month="2026-12", up=100)


def test_a_clock_that_was_years_ahead_does_not_lock_the_quota_for_years(
    tmp_path: Path, clock: FakeClock
) -> None:
    clock.time_s = at("2036-01-01T00:00:00")
    use = use_of(tmp_path, clock, down=100)
    use.add("down", 100)
    clock.time_s = at("2026-11-30T12:00:00")
    assert use.sums() == MonthSums(month="2026-11", down=100)
    assert use.exhausted("down")
    clock.time_s = at("2026-12-01T00:00:00")
    assert not use.exhausted("down")


def test_the_message_names_quota_setting_and_reset(tmp_path: Path, clock: FakeClock) -> None:
    use = use_of(tmp_path, clock, down=2000)
    use.add("down", 2500)
    assert use.exhausted("down") == (
        "E_QUOTA the month's download quota is used up: 2,500 of 2,000 bytes "
        "([bandwidth] monthly_download_bytes); a new month begins at 2026-12-01 00:00 UTC"
    )
    assert use.exhausted("up") == ""


def test_warnings_come_once_a_month(tmp_path: Path, clock: FakeClock) -> None:
    use = use_of(tmp_path, clock, up=1000)
    use.add("up", 799)
    assert use.notices() == []
    use.add("up", 1)
    (nearly,) = use.notices()
    assert nearly.startswith("80% of the month's upload quota of 1,000 bytes is used")
    assert use.notices() == []
    use.add("up", 200)
    (full,) = use.notices()
    assert full.startswith("E_QUOTA")
    assert use.notices() == []
    clock.time_s = at("2027-01-03T00:00:00")
    use.add("up", 5000)
    assert len(use.notices()) == 1


TORN = [
    b"",
    b"{",
    b'{"format": "shoal/monthly-use/1", "month": "2026-1',
    b"[1, 2]",
    b"null",
    b'{"format": "something else"}',
    b'{"format": "shoal/monthly-use/1", "month": "2026-11", "up": -1, "down": 0}',
    b'{"format": "shoal/monthly-use/1", "month": "2026-11", "up": true, "down": 0}',
    b'{"format": "shoal/monthly-use/1", "month": "2026-13", "up": 1, "down": 0}',
    b'{"format": "shoal/monthly-use/1", "month": "never!!", "up": 1, "down": 0}',
    b'{"format": "shoal/monthly-use/1", "month": 202611, "up": 1, "down": 0}',
    b'{"format": "shoal/monthly-use/1", "month": "2026-11", "up": 1e99, "down": 0}',
    b"[" * 4000,
    b" " * 100_000,
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("raw", TORN, ids=range(len(TORN)))
def test_a_torn_or_foreign_file_is_put_aside(tmp_path: Path, clock: FakeClock, raw: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(raw)
    use = use_of(tmp_path, clock)
    assert use.sums() == MonthSums(month="2026-11")
    assert FILE_NAME in use.trouble
    # Whoever only looks leaves it there, so that the node too says what is wrong.
    assert use_of(tmp_path, clock).trouble
    use.add("up", 3)
    use.save()
    assert (tmp_path / f"{FILE_NAME}.bad").read_bytes() == raw
    assert use_of(tmp_path, clock).sums().up == 3


@given(st.binary(max_size=300))
def test_no_bytes_in_the_file_are_fatal(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    folder = tmp_path_factory.mktemp("use")
    (folder / FILE_NAME).write_bytes(raw)
    use = use_of(folder, FakeClock(at("2026-11-30T12:00:00")))
    assert use.sums().up == 0


def test_a_folder_in_its_place_is_not_fatal(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / FILE_NAME).mkdir()
    use = use_of(tmp_path, clock)
    assert use.trouble
    use.add("up", 1)
    use.save()
    assert json.loads((tmp_path / FILE_NAME).read_bytes())["up"] == 1


def test_threads_lose_nothing(tmp_path: Path, clock: FakeClock) -> None:
    use = use_of(tmp_path, clock)

    def add() -> None:
        for _ in range(2000):
            use.add("up", 1)
            use.add("down", 2)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        use.save()
    for thread in threads:
        thread.join()
    use.save()
    assert use_of(tmp_path, clock).sums() == MonthSums(month="2026-11", up=8000, down=16000)


@given(st.lists(st.floats(0, 4e9), min_size=1, max_size=20))
def test_sums_only_fall_when_the_month_rises(times_s: list[float]) -> None:
    clock = FakeClock(times_s[0])
    use = MonthlyUse(None, clock.now_s, up_bytes=0, down_bytes=0)
    before = use.sums()
    for now_s in times_s:
        clock.time_s = now_s
        use.add("up", 10)
        now = use.sums()
        assert now.up > before.up or now.month > before.month
        assert now.month >= month_of(now_s)
        before = now
