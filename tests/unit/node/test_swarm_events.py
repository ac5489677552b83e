import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.node.swarm_events import NodeView
from shoal.node.telemetry.names import EventName


@pytest.fixture
def view(tmp_path):
    return NodeView(name="peer-0", log=tmp_path / "events.jsonl")


def write(view, *events, end=b"\n"):
    with view.log.open("ab") as file:
        for event in events:
            raw = event if isinstance(event, bytes) else json.dumps(event).encode()
            file.write(raw + end)


def started(role="peer"):
    return {"event": "node-started", "role": role, "peer": "12D3"}


def report(round_id, **changes):
    return {"event": "round", "round_id": round_id, "counted": True, **changes}


def test_a_log_that_is_not_there_yet_is_empty(view):
    assert view.read_new() == []


def test_a_nodes_life_is_followed(view):
    steps = [
        (started(), "starting"),
        ({"event": "round-opened", "round_id": 1}, "training"),
        ({"event": "inner-step", "round_id": 1, "step": 2, "loss": 3.5}, "training"),
        ({"event": "payload-staged", "round_id": 1, "num_bytes": 9}, "uploading"),
        ({"event": "payload-published", "round_id": 1, "num_bytes": 9}, "waiting"),
    ]
    for event, phase in steps:
        write(view, event)
        assert view.read_new() == []
        assert view.phase == phase
    assert (view.role, view.peer, view.round_id, view.step, view.loss) == (
        "peer",
        "12D3",
        1,
        2,
        3.5,
    )
    write(view, {"event": "payload-rejected", "code": "E_SIG"})
    write(view, {"event": "node-stopped", "finished": True, "parameters_root": "ab"})
    view.read_new()
    assert (view.phase, view.finished, view.parameters_root) == ("finished", True, "ab")
    assert view.rejected == {"E_SIG": 1}


def test_a_restart_forgets_the_root_of_the_last_stop(view):
    write(view, {"event": "node-stopped", "finished": True, "parameters_root": "ab"}, started())
    view.read_new()
    assert (view.finished, view.parameters_root) == (False, "")


def test_only_new_reports_come_back_and_a_replay_replaces_none(view):
    write(view, report(1, mean_loss=1.0), report(2))
    assert [r["round_id"] for r in view.read_new()] == [1, 2]
    assert view.read_new() == []
    write(view, report(1, mean_loss=9.0), report(3))
    assert [r["round_id"] for r in view.read_new()] == [3]
    assert view.reports[1]["mean_loss"] == 1.0


def test_a_half_written_line_is_left_for_the_next_reading(view):
    raw = json.dumps(report(1)).encode()
    for cut in range(1, len(raw)):
        view.log.unlink(missing_ok=True)
        fresh = NodeView(name="x", log=view.log)
        write(fresh, raw[:cut], end=b"")
        assert fresh.read_new() == []
        write(fresh, raw[cut:])
        assert [r["round_id"] for r in fresh.read_new()] == [1]
        assert fresh.num_skipped == 0


@pytest.mark.parametrize(
    "line", [b"", b"garbage", b'{"event": "war', b"[1]", b"3", b"\xff\xfe", b'{"event":"round"}']
)
def test_a_line_that_is_no_event_is_skipped_and_counted(view, line):
    write(view, line, report(1))
    assert [r["round_id"] for r in view.read_new()] == [1]
    assert view.num_skipped == 1


LINES = st.binary(max_size=30) | st.builds(
    lambda name, fields: json.dumps({"event": name, **fields}).encode(),
    st.sampled_from([name.value for name in EventName]),
    st.dictionaries(
        st.sampled_from(["round_id", "role", "peer", "step", "loss", "code", "finished"]),
        st.none() | st.integers() | st.text(max_size=3) | st.booleans() | st.lists(st.integers()),
        max_size=5,
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(LINES, max_size=5))
def test_no_line_stops_the_reading(view, lines):
    view.log.unlink(missing_ok=True)
    fresh = NodeView(name="x", log=view.log)
    write(fresh, *lines, report(12345))
    assert [r for r in fresh.read_new() if r["round_id"] == 12345]
