import contextlib
import itertools
import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.telemetry.event_log import EventLog
from shoal.node.telemetry.names import EventName
from shoal.node.telemetry.round_report import PeerTransfer, RoundReport
from shoal.node.telemetry.round_timer import PhaseName, RoundTimer, measure, overlap, union
from shoal.storage.meter import Transfer
from tests.support.fake_clock import FakeClock


def report(**changes):
    fields = {
        "round_id": 3,
        "role": "peer",
        "state_hash": "ab",
        "void": False,
        "counted": True,
        "replayed": False,
        "num_counted": 2,
        "num_accepted": 2,
        "round_s": 10.0,
        "train_s": 5.0,
        "stage_s": 1.0,
        "upload_s": 1.0,
        "wait_s": 1.0,
        "apply_s": 1.0,
        "exposed_communication_s": 0.5,
        "communication_ratio": 0.05,
        "uploaded_bytes": 10,
        "downloaded_bytes": 20,
        "payload_bytes": 10,
        "dense_bytes": 100,
        "downloads": {"p": PeerTransfer(num_bytes=20, transfer_s=0.25)},
        **changes,
    }
    return RoundReport(**fields)


@pytest.fixture
def log(tmp_path):
    made = EventLog(tmp_path / "deep" / "events.jsonl", FakeClock(7.0).now_s)
    yield made
    made.close()


def read(tmp_path):
    raw = (tmp_path / "deep" / "events.jsonl").read_text(encoding="ascii")
    assert raw.endswith("\n")
    return [json.loads(line) for line in raw.splitlines()]


def test_an_event_is_one_line_with_name_and_time_at_once(log, tmp_path):
    log.emit(EventName.WARNING, message='a "quoted"\nline with é')
    log.emit(EventName.INNER_STEP, step=1, loss=2.5)
    assert read(tmp_path) == [
        {"event": "warning", "time_s": 7.0, "message": 'a "quoted"\nline with é'},
        {"event": "inner-step", "time_s": 7.0, "step": 1, "loss": 2.5},
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_null(log, tmp_path, value):
    log.emit(EventName.INNER_STEP, loss=value)
    assert read(tmp_path)[0]["loss"] is None
    assert "NaN" not in (tmp_path / "deep" / "events.jsonl").read_text()


def test_a_report_is_an_event_with_all_its_fields(log, tmp_path):
    log.round(report())
    (event,) = read(tmp_path)
    assert event["event"] == "round"
    assert set(event) == {"event", "time_s", *RoundReport.__slots__}
    assert event["downloads"] == {"p": {"num_bytes": 20, "transfer_s": 0.25}}


def test_many_threads_write_whole_lines(log, tmp_path):
    def write(name):
        for i in range(200):
            log.emit(EventName.WARNING, message=f"{name} {i} " + "x" * 200)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(tmp_path)) == 800


def test_a_log_goes_on_where_it_was(log, tmp_path):
    log.emit(EventName.WARNING, message="one")
    log.close()
    again = EventLog(tmp_path / "deep" / "events.jsonl", FakeClock().now_s)
    again.emit(EventName.WARNING, message="two")
    again.close()
    assert [e["message"] for e in read(tmp_path)] == ["one", "two"]


def test_after_a_torn_line_the_next_event_is_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "warning"}\n{"event": "war')
    log = EventLog(path, FakeClock().now_s)
    log.emit(EventName.WARNING, message="after")
    log.close()
    assert json.loads(path.read_bytes().splitlines()[-1])["message"] == "after"


def test_a_full_disk_drops_the_log_with_one_message_and_stops_nothing(capsys):
    log = EventLog(Path("/dev/full"), FakeClock().now_s)
    for _ in range(3):
        log.emit(EventName.WARNING, message="x")
    log.close()
    found = capsys.readouterr().err
    assert found.count("event log dropped") == 1
    assert "No space left on device" in found


def test_events_after_the_close_are_dropped(log, tmp_path):
    log.emit(EventName.WARNING, message="one")
    log.close()
    log.emit(EventName.WARNING, message="two")
    log.close()
    assert len(read(tmp_path)) == 1


def transfer(start, end, num_bytes=1):
    return Transfer(
        peer="p",
        direction="down",
        kind="payload",
        num_bytes=num_bytes,
        started_at_s=start,
        first_byte_s=None,
        total_s=end - start,
        ok=True,
        num_retries=0,
    )


def timed(*phases):
    """A timer of a round that began at 0, after the phases (name, start, end)."""
    clock = FakeClock(0.0)
    timer = RoundTimer(clock.now_s)
    for name, start, end in phases:
        clock.time_s = start
        with timer.phase(name):
            clock.time_s = end
    return timer


def test_a_phase_adds_up_and_counts_though_it_fails():
    clock = FakeClock(0.0)
    timer = RoundTimer(clock.now_s)
    for seconds in (1, 2):
        with timer.phase(PhaseName.TRAIN):
            clock.advance(seconds)
    with contextlib.suppress(ZeroDivisionError), timer.phase(PhaseName.WAIT):
        clock.advance(4)
        raise ZeroDivisionError
    assert timer.seconds(PhaseName.TRAIN) == 3
    assert timer.seconds(PhaseName.WAIT) == 4
    assert timer.seconds(PhaseName.APPLY) == 0
    assert timer.elapsed_s() == 7


@pytest.mark.parametrize(
    ("phases", "transfers", "exposed"),
    [
        ([], [(1, 3)], 2),
        ([], [(1, 3), (2, 5)], 4),
        ([(PhaseName.TRAIN, 0, 10)], [(1, 3)], 0),
        ([(PhaseName.TRAIN, 0, 2)], [(1, 3)], 1),
        ([(PhaseName.STAGE, 2, 3), (PhaseName.APPLY, 4, 5)], [(1, 6)], 3),
        ([(PhaseName.WAIT, 0, 10), (PhaseName.UPLOAD, 0, 10)], [(1, 3)], 2),
        ([], [(-5, 2)], 2),
        ([], [(-5, -2)], 0),
        ([], [], 0),
    ],
)
def test_exposed_communication_is_transfer_without_computation(phases, transfers, exposed):
    found = timed(*phases).exposed_communication_s([transfer(*t) for t in transfers])
    assert found == pytest.approx(exposed)


def test_a_transfer_without_bytes_is_no_communication():
    assert timed().exposed_communication_s([transfer(1, 3, num_bytes=0)]) == 0


INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def points(intervals):
    return {p for start, end in intervals for p in range(start, end)}


@given(INTERVALS, INTERVALS)
def test_union_and_overlap_hold_the_same_points_as_sets(first, second):
    one, other = union(first), union(second)
    assert points(one) == points(first)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(one))
    assert measure(one) == len(points(first))
    assert points(overlap(one, other)) == points(first) & points(second)
    assert measure(overlap(one, other)) == len(points(first) & points(second))
