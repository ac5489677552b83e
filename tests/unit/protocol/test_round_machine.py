import pytest

from shoal.protocol.closing import derive_limits
from shoal.protocol.errors import OutOfOrderError
from shoal.protocol.round_machine import (
    Action,
    Applied,
    Apply,
    AwaitRecord,
    Close,
    Event,
    Failed,
    Finish,
    Halt,
    Look,
    NoRecordYet,
    Phase,
    Publish,
    Published,
    RecordSeen,
    RoundState,
    Settlement,
    Stage,
    Staged,
    Train,
    Trained,
    start,
    step,
)
from tests.support.manifests import counted, first_head, peer, tiny_manifest, verified_after

MANIFEST = tiny_manifest()
ME = peer(1)
MINE, THEIRS = b"m" * 32, b"t" * 32
COUNTS_MINE = verified_after(first_head(MANIFEST), MANIFEST, (counted(ME, MINE),))
COUNTS_THEIRS = verified_after(first_head(MANIFEST), MANIFEST, (counted(peer(2), THEIRS),))
VOID = verified_after(first_head(MANIFEST), MANIFEST)


def state_of(**changes):
    fields = {
        "me": ME.peer,
        "trains": True,
        "closes": False,
        "num_rounds": 3,
        "limits": derive_limits(100.0),
        "head": first_head(MANIFEST),
        **changes,
    }
    return RoundState(**fields)


def run(state, *events, now_s=500.0):
    """The state and action after the events."""
    state, action = start(state, now_s)
    for event in events:
        state, action = step(state, event, now_s)
    return state, action


def test_a_peer_goes_through_the_round_in_order():
    state, action = run(state_of(), now_s=500.0)
    assert action == Look(1)
    wanted: list[tuple[Event, Action]] = [
        (NoRecordYet(1), Train(1, 575.0)),
        (Trained(1), Stage(1)),
        (Staged(1, MINE), Publish(1)),
        (Published(1), AwaitRecord(1)),
        (RecordSeen(COUNTS_MINE), Apply(COUNTS_MINE, Settlement.COMMIT)),
        (Applied(COUNTS_MINE.head), Look(2)),
    ]
    for event, expected in wanted:
        state, action = step(state, event, 600.0)
        assert action == expected
    assert state.head == COUNTS_MINE.head
    assert (state.staged_payload, state.record, state.opened_at_s) == (None, None, 600.0)


def test_a_validator_looks_and_closes_and_never_trains():
    state, action = run(state_of(trains=False, closes=True), NoRecordYet(1))
    assert action == Close(1, 500.0)
    assert run(state_of(trains=False, closes=True), NoRecordYet(1), RecordSeen(VOID))[1] == Apply(
        VOID, Settlement.NOTHING_STAGED
    )
    assert state.phase is Phase.CLOSING


def test_a_node_that_neither_trains_nor_closes_follows():
    assert run(state_of(trains=False), NoRecordYet(1))[1] == AwaitRecord(1)


def test_a_record_that_is_there_already_is_applied_without_training():
    assert run(state_of(), RecordSeen(COUNTS_THEIRS))[1] == Apply(
        COUNTS_THEIRS, Settlement.NOTHING_STAGED
    )


@pytest.mark.parametrize(
    ("record", "settlement"),
    [
        (COUNTS_MINE, Settlement.COMMIT),
        (COUNTS_THEIRS, Settlement.ROLL_BACK),
        (VOID, Settlement.ROLL_BACK),
    ],
)
def test_the_residual_is_committed_only_if_the_record_counts_the_payload_by_its_id(
    record, settlement
):
    events = (NoRecordYet(1), Trained(1), Staged(1, MINE), Published(1), RecordSeen(record))
    assert run(state_of(), *events)[1] == Apply(record, settlement)


def test_a_staged_payload_that_survived_a_crash_is_published_again_and_never_another():
    state, action = run(state_of(staged_payload=MINE), NoRecordYet(1))
    assert action == Publish(1)
    assert state.staged_payload == MINE


def test_a_staged_payload_that_survived_a_crash_is_settled_by_the_record():
    assert run(state_of(staged_payload=MINE), RecordSeen(COUNTS_MINE))[1] == Apply(
        COUNTS_MINE, Settlement.COMMIT
    )


@pytest.mark.parametrize("known_in", ["training", "staging"])
def test_a_payload_is_not_published_once_the_record_is_known(known_in):
    seen = RecordSeen(COUNTS_THEIRS)
    events: list[Event] = [NoRecordYet(1), Trained(1), Staged(1, MINE)]
    events.insert(1 if known_in == "training" else 2, seen)
    assert run(state_of(), *events)[1] == Apply(COUNTS_THEIRS, Settlement.ROLL_BACK)


def test_a_record_seen_during_the_upload_is_applied_after_it():
    events = (NoRecordYet(1), Trained(1), Staged(1, MINE), RecordSeen(COUNTS_MINE), Published(1))
    assert run(state_of(), *events)[1] == Apply(COUNTS_MINE, Settlement.COMMIT)


def test_an_empty_payload_is_neither_published_nor_settled():
    events = (NoRecordYet(1), Trained(1), Staged(1, b""))
    assert run(state_of(), *events)[1] == AwaitRecord(1)
    assert run(state_of(), *events, RecordSeen(VOID))[1] == Apply(VOID, Settlement.NOTHING_STAGED)


def test_after_the_last_round_the_run_is_finished():
    assert run(state_of(num_rounds=1), RecordSeen(VOID), Applied(VOID.head))[1] == Finish()
    assert run(state_of(num_rounds=1, head=VOID.head))[1] == Finish()


def test_a_record_of_another_round_is_refused():
    later = verified_after(VOID.head, MANIFEST)
    state, _ = run(state_of(), NoRecordYet(1))
    with pytest.raises(OutOfOrderError, match="expected round 1, found 2"):
        step(state, RecordSeen(later), 0.0)
    after, _ = run(state_of(), RecordSeen(VOID), Applied(VOID.head))
    with pytest.raises(OutOfOrderError, match="expected round 2, found 1"):
        step(after, RecordSeen(VOID), 0.0)


def test_a_record_while_one_is_being_applied_is_refused():
    state, _ = run(state_of(), RecordSeen(VOID))
    with pytest.raises(OutOfOrderError, match="APPLYING"):
        step(state, RecordSeen(VOID), 0.0)


def test_another_head_than_the_records_is_not_applied():
    state, _ = run(state_of(), RecordSeen(VOID))
    with pytest.raises(OutOfOrderError, match="without its record"):
        step(state, Applied(COUNTS_MINE.head), 0.0)


def test_an_outcome_of_another_phase_is_refused():
    state, _ = run(state_of(), NoRecordYet(1))
    with pytest.raises(OutOfOrderError, match="expected phase STAGING, found TRAINING"):
        step(state, Staged(1, MINE), 0.0)


def test_a_failure_halts_for_good():
    state, action = run(state_of(), NoRecordYet(1), Failed("the key is in use"))
    assert action == Halt("the key is in use")
    for event in (Trained(1), RecordSeen(VOID), NoRecordYet(1)):
        again, action = step(state, event, 0.0)
        assert isinstance(action, Halt)
        assert again == state
