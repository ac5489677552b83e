"""The soak's own figures: slopes, goodput, recovery, and a schedule that leaves nothing out."""

import random
from itertools import islice

import pytest

from benchmarks.soak.faults import Fault, FaultKind, schedule
from benchmarks.soak.outcome import (
    Outcome,
    goodput_by_peer,
    payload_goodput,
    recovery_s,
    rounds_goodput,
    undisturbed_round_s,
)
from benchmarks.soak.processes import Process, Sample
from benchmarks.soak.trends import slope_per_h, trends
from shoal.protocol.identity import PeerId
from shoal.protocol.record import VerifiedRecord
from tests.support.manifests import counted, first_head, peer, tiny_manifest, verified_after

MANIFEST = tiny_manifest()
HERE, THERE = peer(1), peer(2)
NOW_S = 1_000_000.0


def series(pid: int, values: list[float]) -> list[Sample]:
    return [
        Sample(
            time_s=5.0 * number,
            process=Process("s3", "peer-0", pid),
            rss_kib=0,
            anonymous_kib=int(value),
            pss_kib=None,
            num_fds=0,
            num_threads=0,
        )
        for number, value in enumerate(values)
    ]


def test_the_slope_of_a_leak_is_found_among_outliers():
    draw = random.Random(5)  # noqa: S311 - noise
    values = [1000.0 + number + draw.gauss(0, 3) for number in range(700)]
    for number in range(0, 700, 5):
        values[number] += 5000.0
    found = slope_per_h([5.0 * number for number in range(700)], values)
    assert found == pytest.approx(720.0, rel=0.02)


def test_a_process_that_was_started_again_is_a_series_of_its_own():
    # Each fills its caches, then stays as it is; the second is larger than the first.
    first = series(1, [*range(0, 1000, 20), *[1000.0] * 100])
    second = series(2, [*range(0, 3000, 60), *[3000.0] * 100])
    (trend,) = trends(
        [*first, *second], lambda s: s.anonymous_kib, warm_up_s=250.0, min_span_s=300.0
    )
    assert (trend.num_series, trend.num_long, trend.highest) == (2, 2, 3000.0)
    assert (trend.slope_per_h, trend.worst_per_h) == (0.0, 0.0)


def test_a_short_life_has_no_slope():
    (trend,) = trends(
        series(1, [0.0] * 20), lambda s: s.anonymous_kib, warm_up_s=50.0, min_span_s=100.0
    )
    assert (trend.num_long, trend.slope_per_h) == (0, None)


def chain(*rounds: tuple[float, tuple[PeerId, ...]]) -> list[VerifiedRecord]:
    """Records that close at these seconds, counting these peers."""
    head, found = first_head(MANIFEST), []
    for number, (closed_s, peers) in enumerate(rounds):
        entries = tuple(
            counted(one, bytes([number, place]) * 16)
            for place, one in enumerate((HERE, THERE))
            if one.peer in peers
        )
        closed_at_ms = int((NOW_S + closed_s) * 1000)
        found.append(verified_after(head, MANIFEST, entries, closed_at_ms=closed_at_ms))
        head = found[-1].head
    return found


def outcome(records: list[VerifiedRecord], *faults: Fault) -> Outcome:
    return Outcome(
        began_at_s=NOW_S,
        ended_at_s=NOW_S + 100.0,
        records=records,
        views=[],
        peers={"here": HERE.peer, "there": THERE.peer},
        kinds={"here": "s3", "there": "p2p"},
        faults=list(faults),
        samples=[],
        samples_began_at_s=NOW_S,
        unexpected=[],
        failed_to_leave=[],
        late=[],
        orphans={},
        leftovers=[],
    )


def fault(kind: FaultKind, target: str, began_s: float, ended_s: float) -> Fault:
    return Fault(
        kind=kind,
        target=target,
        began_at_s=NOW_S + began_s,
        ended_at_s=NOW_S + ended_s,
        proof="seen",
    )


BOTH = (HERE.peer, THERE.peer)
# One round before the soak begins, two that are calm, one that a fault makes long.
RECORDS = chain(
    (-5.0, ()), (10.0, BOTH), (20.0, BOTH), (50.0, (HERE.peer,)), (60.0, BOTH), (70.0, ())
)
FREEZE = fault(FaultKind.FREEZE_PEER, "there", 25.0, 45.0)


def test_goodput_is_counted_from_the_records_of_the_time_with_faults():
    seen = outcome(RECORDS, FREEZE)
    assert payload_goodput(seen) == 7 / 10
    assert goodput_by_peer(seen) == {"here": 4 / 5, "there": 3 / 5}


def test_rounds_are_measured_against_those_that_no_fault_touched():
    seen = outcome(RECORDS, FREEZE)
    assert undisturbed_round_s(seen) == pytest.approx(10.0)
    # Five rounds, one void, where ten had found room.
    assert rounds_goodput(seen) == pytest.approx(4 / 10)


def test_a_peer_has_recovered_when_it_counts_in_a_round_that_began_later():
    assert recovery_s(outcome(RECORDS), FREEZE) == pytest.approx(15.0)


def test_the_server_has_recovered_with_the_next_round_that_is_not_void():
    store = fault(FaultKind.KILL_STORE, "store", 30.0, 40.0)
    assert recovery_s(outcome(RECORDS), store) == pytest.approx(10.0)
    late = fault(FaultKind.KILL_VALIDATOR, "validator-0", 64.0, 65.0)
    assert recovery_s(outcome(RECORDS), late) is None


def test_every_kind_of_fault_comes_before_any_comes_again():
    number = len(FaultKind)
    planned = list(islice(schedule(3), 3 * number))
    for start in range(0, 3 * number, number):
        assert {one.kind for one in planned[start : start + number]} == set(FaultKind)
    assert planned == list(islice(schedule(3), 3 * number))
    assert planned != list(islice(schedule(4), 3 * number))
