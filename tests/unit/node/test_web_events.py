import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.node.telemetry.event_log import EventLog
from shoal.node.telemetry.names import EventName


def test_event_names_are_frozen():
    assert sorted(EventName) == [
        "bandwidth",
        "caught-up",
        "inner-step",
        "node-started",
        "node-stopped",
        "payload-accepted",
        "payload-published",
        "payload-rejected",
        "payload-staged",
        "record-rejected",
        "record-written",
        "round",
        "round-opened",
        "warning",
    ]


@pytest.fixture
def log(tmp_path):
    log = EventLog(tmp_path / "state" / "events.jsonl", lambda: 5.0)
    yield log
    log.close()


def test_a_subscriber_gets_what_the_file_gets(log):
    seen: list[Any] = []
    log.subscribe(seen.append)
    log.emit(EventName.INNER_STEP, round_id=1, step=2, loss=float("nan"))
    line = json.loads(log.path.read_text())
    assert seen == [line]
    assert line == {
        "event": "inner-step", "time_s": 5.0, "round_id": 1, "step": 2, "loss": None,
    }  # fmt: skip


def test_after_unsubscribing_nothing_more_comes(log):
    seen: list[Any] = []
    unsubscribe = log.subscribe(seen.append)
    unsubscribe()
    unsubscribe()
    log.emit(EventName.WARNING, message="x")
    assert seen == []


def test_after_close_nothing_comes_and_nothing_fails(log):
    seen: list[Any] = []
    unsubscribe = log.subscribe(seen.append)
    log.close()
    log.emit(EventName.WARNING, message="x")
    unsubscribe()
    assert seen == []


def test_a_full_disk_takes_the_file_but_not_the_subscribers(log, monkeypatch, capsys):
    def full(_text):
        raise OSError(28, "No space left on device")

    seen: list[Any] = []
    log.subscribe(seen.append)
    monkeypatch.setattr(log, "_file", SimpleNamespace(write=full, close=lambda: None))
    log.emit(EventName.WARNING, message="first")
    log.emit(EventName.WARNING, message="second")
    assert [event["message"] for event in seen] == ["first", "second"]
    assert "event log dropped" in capsys.readouterr().err


def test_events_of_several_threads_come_in_the_order_of_the_file(log):
    seen: list[Any] = []
    log.subscribe(seen.append)

    def emit(thread):
        for step in range(200):
            log.emit(EventName.INNER_STEP, thread=thread, step=step)

    threads = [threading.Thread(target=emit, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [json.loads(line) for line in log.path.read_text().splitlines()]
    assert len(seen) == 800
