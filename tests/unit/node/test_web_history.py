import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.node.telemetry.names import EventName
from shoal.node.web.history import MAX_NOTICES, OTHER_CODE, NodeHistory, RunFacts
from shoal.node.web.peers import MAX_PEERS
from shoal.node.web.round_points import RoundPoints
from shoal.node.web.timeline import MAX_ROWS
from shoal.protocol.errors import ErrorCode
from tests.support.web_events import HOSTILE_PEER, log_events, report, started


def history_of(events, **facts):
    history = NodeHistory("node", RunFacts(**facts))
    for event in events:
        history.take(event)
    return history


def test_a_real_peers_log():
    events = log_events("peer")
    reports = [e for e in events if e["event"] == "round"]
    history = history_of(events)
    assert [p.round_id for p in history.points.kept] == [1, 2, 3, 4, 5, 6]
    assert [p.mean_loss for p in history.points.kept] == [r["mean_loss"] for r in reports]
    assert history.totals.uploaded_bytes == sum(r["uploaded_bytes"] for r in reports)
    moved = sum(r["uploaded_bytes"] + r["downloaded_bytes"] for r in reports)
    assert history.points.last.total_bytes == moved
    assert history.now.phase == "finished"
    assert len(history.peers.all()) == 3
    assert all(peer.num_payloads == 6 for peer in history.peers.all())
    assert all(peer.num_bytes == 6 * 20875 for peer in history.peers.all())


def test_latency_is_what_the_report_says():
    event = report(1, gather_latency_s={f"p{i}": i / 10 for i in range(1, 21)})
    (point,) = history_of([started(), event]).points.kept
    assert (point.gather_median_s, point.gather_p95_s, point.gather_worst_s) == (1.05, 1.9, 2.0)


def test_what_was_not_measured_is_none():
    (point,) = history_of([report(1, gather_latency_s={}, mean_loss=None, upload_s=0)]).points.kept
    assert point.gather_median_s is None
    assert point.mean_loss is None
    assert point.upload_bytes_per_s is None


def test_the_phases_of_a_round():
    history, phases = NodeHistory("node"), []
    for event in log_events("peer"):
        history.take(event)
        phases.append(history.now.phase)
    order = [p for i, p in enumerate(phases) if i == 0 or phases[i - 1] != p]
    one_round = ["training", "uploading", "waiting", "between"]
    assert order == ["starting", *one_round * 6, "finished"]


def test_a_replay_after_a_restart_adds_nothing():
    events = [started(), report(1), report(2)]
    history = history_of([*events, started(), report(2, replayed=True, uploaded_bytes=9)])
    assert [p.round_id for p in history.points.kept] == [1, 2]
    assert history.totals.uploaded_bytes == 1000


def test_another_run_in_the_same_log_starts_a_new_history():
    history = history_of([started("aa" * 32), report(1), report(2), started("bb" * 32), report(1)])
    assert [p.round_id for p in history.points.kept] == [1]
    assert history.totals.num_rounds == 1
    assert history.run_id == "bb" * 32


def test_after_a_restart_nothing_is_said_to_go_on():
    history = history_of(log_events("hostile"))
    assert history.timeline is not None
    history.restart()
    assert (history.timeline, history.now.phase) == (None, "starting")
    assert len(history.points.kept) == 4


def test_the_timeline_of_a_running_round():
    timeline = history_of(log_events("hostile")).timeline
    accepted = {row.peer[-6:]: row for row in timeline.arrivals.values() if row.verified_s}
    assert accepted["ZX3Ldp"].verified_s == pytest.approx(6.1)
    assert accepted["ZX3Ldp"].announced_s == pytest.approx(4.7)
    assert accepted["ZX3Ldp"].downloaded_s is None
    assert accepted["6F273h"].downloaded_s == pytest.approx(6.8)
    assert timeline.slowest.endswith("6F273h")
    codes = {row.code for row in timeline.arrivals.values() if row.code}
    assert codes == {"E_SIG", "E_LEN"}


def test_the_report_fills_in_when_downloads_ended():
    timeline = history_of(log_events("peer")).last_timeline
    assert timeline.round_id == 6
    assert timeline.closed_s is not None
    for row in timeline.arrivals.values():
        assert row.announced_s <= row.downloaded_s <= row.verified_s


def refusal(peer, code="E_SIG", round_id=1):
    return {
        "event": "payload-rejected", "time_s": 1.0, "round_id": round_id,
        "peer": peer, "code": code, "detail": "d" * 5000,
    }  # fmt: skip


def test_names_that_peers_choose_cost_a_bounded_amount_of_memory():
    history = history_of([started(), {"event": "round-opened", "round_id": 1, "time_s": 1.0}])
    for number in range(2000):
        history.take(refusal(f"{number}" * 100, code=f"E_MADE_UP_{number}"))
        history.take(report(number + 1, gather_latency_s={f"peer-{number}": 0.1}))
        history.take({"event": "round-opened", "round_id": number + 2, "time_s": 1.0})
    assert set(history.rejected) == {OTHER_CODE}
    assert len(history.notices) == MAX_NOTICES
    assert len(history.peers.all()) == MAX_PEERS
    assert len(json.dumps(history.plain())) < 40_000


def test_a_timeline_has_a_bounded_number_of_rows():
    history = history_of([started(), {"event": "round-opened", "round_id": 1, "time_s": 1.0}])
    for number in range(2000):
        history.take(refusal(f"{number}"))
    assert len(history.timeline.arrivals) == MAX_ROWS


def test_every_error_code_is_counted_under_its_own_name():
    history = history_of([refusal("p", code.value) for code in ErrorCode])
    assert history.rejected == {code.value: 1 for code in ErrorCode}


def test_with_a_roster_only_its_members_are_peers():
    event = report(1, gather_latency_s={"member": 0.1, "stranger": 0.2})
    history = history_of([event], roster=frozenset({"member"}))
    assert [peer.peer for peer in history.peers.all()] == ["member"]


def test_control_characters_of_a_peer_are_replaced():
    history = history_of(log_events("hostile"))
    (row,) = [r for r in history.timeline.arrivals.values() if r.code == "E_SIG"]
    assert row.peer == HOSTILE_PEER[:-1] + "?"
    escape = refusal("\x1b]0;owned\x07")
    assert history_of([escape]).notices[0]["peer"] == "?]0;owned?"


def test_thinning_keeps_the_ends_and_the_newer_half():
    points = RoundPoints(max_points=20)
    for round_id in range(1, 1001):
        points.take(report(round_id))
    kept = [p.round_id for p in points.kept]
    assert len(kept) <= 20
    assert kept[0] == 1
    assert kept[-10:] == list(range(991, 1001))
    assert points.kept[-1].total_bytes == 2000 * 1000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(list(report(1))), inner, max_size=4)
    ),
    max_leaves=8,
)
FIELDS = [name for name in report(1) if name != "event"]
EVENTS = st.fixed_dictionaries(
    {"event": st.sampled_from(sorted(EventName)) | VALUES},
    optional=dict.fromkeys([*FIELDS, "peer", "code", "step", "run_id", "latency_s"], VALUES),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, max_size=3))
def test_no_event_is_ever_a_failure(events):
    history = history_of(
        [started(), {"event": "round-opened", "round_id": 1, "time_s": 1.0}, *events]
    )
    json.dumps(history.plain(), allow_nan=False)
