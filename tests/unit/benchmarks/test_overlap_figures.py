"""The figures of benchmarks/overlap, from logs whose times are known."""

import pytest

from benchmarks.overlap.figures import computing, figures_of
from benchmarks.overlap.logs import events_of

NUM_ROUNDS = 4


def peer_log(*, train_s=8.0, round_s=10.0, state=lambda r: f"state {r}", own_ratio=0.1):
    """Rounds of `round_s`: four steps, staging for 0.5 s, at the end applying for 0.5 s."""
    events = []
    for r in range(1, NUM_ROUNDS + 1):
        start_s = (r - 1) * round_s
        for step in range(1, 5):
            time_s = start_s + train_s * step / 4
            events.append({"event": "inner-step", "round_id": r, "step": step, "time_s": time_s})
        staged_s = start_s + train_s + 0.5
        events.append({"event": "payload-staged", "round_id": r, "time_s": staged_s})
        events.append(
            {
                "event": "round",
                "round_id": r,
                "time_s": start_s + round_s,
                "role": "peer",
                "stage_s": 0.5,
                "apply_s": 0.5,
                "state_hash": state(r),
                "communication_ratio": own_ratio,
            }
        )
    return events


def validator_log():
    return [{**e, "role": "validator"} for e in peer_log() if e["event"] == "round"]


def test_a_peer_computes_from_before_its_first_step_to_the_end_of_staging_and_while_it_applies():
    assert computing(peer_log()[:6]) == [(9.5, 10.0), (8.0, 8.5), (0.0, 8.0)]


def test_time_counts_in_which_no_peer_computes():
    logs = {"peer-0": peer_log(), "validator-0": validator_log()}
    found = figures_of(logs, NUM_ROUNDS)
    assert found.round_s == pytest.approx(10.0)
    assert found.swarm_ratio == pytest.approx(0.1)
    assert found.own_ratio == {"peer-0": 0.1}
    assert (found.num_state_hashes, found.num_rounds) == (1, 2)


def test_a_slower_peer_hides_what_a_faster_one_waits_for():
    logs = {"peer-0": peer_log(train_s=5.0), "peer-1": peer_log(train_s=8.75)}
    assert figures_of(logs, NUM_ROUNDS).swarm_ratio == pytest.approx(0.025)


def test_one_node_with_another_state_is_seen():
    logs = {"peer-0": peer_log(), "peer-1": peer_log(state=lambda r: f"state {min(r, 3)}")}
    assert figures_of(logs, NUM_ROUNDS).num_state_hashes == 2


def test_a_round_without_a_report_is_refused():
    with pytest.raises(ValueError, match=r"rounds \[1, 2, 3\]"):
        figures_of({"peer-0": peer_log()[:-1]}, NUM_ROUNDS)


def test_half_a_line_is_not_read(tmp_path):
    file = tmp_path / "events.jsonl"
    assert events_of(file) == []
    file.write_text('{"event": "round"}\n{"eve')
    assert events_of(file) == [{"event": "round"}]
