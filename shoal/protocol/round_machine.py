"""The round as a pure state machine: (state, event, now) -> (state, action).

Guarantees, each shown by a stateful property test:

1. Rounds are applied in order, each once: `Apply` of round r is asked only when r - 1 is applied,
   and only `Applied(r)` moves the machine to round r + 1.
2. Nothing is applied that is not in a `VerifiedRecord` of exactly that round (the type is the
   proof: only `record.read_record` makes one).
3. A payload is published at most once a round, and never after the round's record is known.
4. The residual is settled exactly once for every staged payload: committed if the record counts
   that payload by its id, else rolled back.
5. After `Halt` nothing more happens.

The same machine serves peers and validators: a node that trains answers `Train`, one that closes
rounds answers `Close`; both apply.

Does not do: I/O, time, training. `now_s` and the events come from the caller; the action that comes
back is the one thing to do next, and its outcome is the next event.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import assert_never

from shoal.protocol.chain import ChainHead
from shoal.protocol.closing import TimeLimits
from shoal.protocol.errors import OutOfOrderError
from shoal.protocol.identity import PeerId
from shoal.protocol.record import VerifiedRecord


class Phase(Enum):
    """What the machine waits for."""

    LOOKING = auto()  # is there a record of the round already?
    TRAINING = auto()
    STAGING = auto()  # the trained parameters become a staged payload
    PUBLISHING = auto()
    AWAITING_RECORD = auto()
    CLOSING = auto()  # this node tries to write the record
    APPLYING = auto()
    FINISHED = auto()
    HALTED = auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundState:
    """Where a node stands."""

    me: PeerId
    trains: bool
    closes: bool
    num_rounds: int
    limits: TimeLimits
    head: ChainHead
    """The last applied record."""
    phase: Phase = Phase.LOOKING
    opened_at_s: float = 0.0
    staged_payload: bytes | None = None
    """Id of the payload whose residual is not settled yet."""
    record: VerifiedRecord | None = None
    """The record of the round in progress, once known."""

    @property
    def round_id(self) -> int:
        """The round in progress: the one after the head."""
        return self.head.round_id + 1


# What happened.


@dataclass(frozen=True, slots=True)
class Started:
    """The node (re)started; `staged_payload` survived in its checkpoint, if any."""

    staged_payload: bytes | None = None


@dataclass(frozen=True, slots=True)
class NoRecordYet:
    """The store has no record of the round in progress."""

    round_id: int


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """A verified record of the round in progress."""

    record: VerifiedRecord


@dataclass(frozen=True, slots=True)
class Trained:
    """The inner loop ended (all steps, or out of time, or interrupted by the record)."""

    round_id: int


@dataclass(frozen=True, slots=True)
class Staged:
    """The payload exists, durably, and was not sent yet; an empty id: there is nothing to send."""

    round_id: int
    payload_id: bytes


@dataclass(frozen=True, slots=True)
class Published:
    """The payload is in the store and announced; or it could not be, which changes nothing here."""

    round_id: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The record's update is in the parameters and in a durable checkpoint."""

    head: ChainHead


@dataclass(frozen=True, slots=True)
class Failed:
    """Something that no round can go on after: fork, state mismatch, key in use."""

    reason: str


Event = Started | NoRecordYet | RecordSeen | Trained | Staged | Published | Applied | Failed


# What to do next.


@dataclass(frozen=True, slots=True)
class Look:
    """Look once for the record of `round_id`."""

    round_id: int


@dataclass(frozen=True, slots=True)
class Train:
    """Train from the base parameters until H steps, `until_s`, or the round's record appears."""

    round_id: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Stage:
    """Error feedback, selection, encoding, signing; make the result durable."""

    round_id: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Upload the staged payload (create-once), read it back, announce it."""

    round_id: int


@dataclass(frozen=True, slots=True)
class AwaitRecord:
    """Gather while waiting for the record of `round_id`."""

    round_id: int


@dataclass(frozen=True, slots=True)
class Close:
    """Gather, decide when the round is over, write its record create-once."""

    round_id: int
    opened_at_s: float


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply exactly what `record` lists, settle the residual, checkpoint."""

    record: VerifiedRecord
    settle: "Settlement"


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop with `reason`."""

    reason: str


class Settlement(Enum):
    """What becomes of the staged residual."""

    NOTHING_STAGED = auto()
    COMMIT = auto()
    ROLL_BACK = auto()


Action = Look | Train | Stage | Publish | AwaitRecord | Close | Apply | Finish | Halt


def start(state: RoundState, now_s: float) -> tuple[RoundState, Action]:
    """The first action of a node whose checkpoint holds `state.head`."""
    return step(state, Started(state.staged_payload), now_s)


def step(state: RoundState, event: Event, now_s: float) -> tuple[RoundState, Action]:
    """The next state and the one action that it asks for.

    Args:
        state: where the node stands.
        event: what happened, normally the outcome of the action before.
        now_s: the caller's clock.

    Raises:
        OutOfOrderError: the event cannot follow the state; our own bug, the node must stop.
    """
    if state.phase is Phase.HALTED:
        return state, Halt("halted before")
    match event:
        case Failed(reason):
            return replace(state, phase=Phase.HALTED), Halt(reason)
        case Started(staged_payload):
            return _look(replace(state, staged_payload=staged_payload), now_s)
        case RecordSeen(record):
            return _on_record(state, record)
        case NoRecordYet(round_id):
            _expect(state, round_id, Phase.LOOKING)
            return _on_no_record(state)
        case Trained(round_id):
            _expect(state, round_id, Phase.TRAINING)
            return replace(state, phase=Phase.STAGING), Stage(round_id)
        case Staged(round_id, payload_id):
            _expect(state, round_id, Phase.STAGING)
            return _on_staged(replace(state, staged_payload=payload_id or None))
        case Published(round_id):
            _expect(state, round_id, Phase.PUBLISHING)
            return _await(state)
        case Applied(head):
            _expect(state, head.round_id, Phase.APPLYING)
            return _on_applied(state, head, now_s)
        case _:
            assert_never(event)


def _look(state: RoundState, now_s: float) -> tuple[RoundState, Action]:
    if state.head.round_id >= state.num_rounds:
        return replace(state, phase=Phase.FINISHED), Finish()
    return replace(state, phase=Phase.LOOKING, opened_at_s=now_s), Look(state.round_id)


def _on_no_record(state: RoundState) -> tuple[RoundState, Action]:
    if state.trains and state.staged_payload is None:
        until_s = state.opened_at_s + state.limits.training_s
        return replace(state, phase=Phase.TRAINING), Train(state.round_id, until_s)
    if state.trains:
        # Restarted between staging and the record: the same bytes go out again, never others.
        return replace(state, phase=Phase.PUBLISHING), Publish(state.round_id)
    return _await(state)


def _on_record(state: RoundState, record: VerifiedRecord) -> tuple[RoundState, Action]:
    _expect_round(state, record.record.round_id)
    match state.phase:
        case Phase.LOOKING | Phase.AWAITING_RECORD | Phase.CLOSING:
            return _apply(state, record)
        case Phase.TRAINING | Phase.STAGING | Phase.PUBLISHING:
            # What was learned so far still goes into the residual; the record is kept until then.
            return replace(state, record=record), _continue(state)
        case Phase.APPLYING | Phase.FINISHED | Phase.HALTED:
            raise OutOfOrderError(f"a record of round {state.round_id} in phase {state.phase.name}")
        case _:
            assert_never(state.phase)


def _continue(state: RoundState) -> Action:
    """The action in progress, named again: the caller carries on with it."""
    match state.phase:
        case Phase.TRAINING:
            return Train(state.round_id, state.opened_at_s)
        case Phase.STAGING:
            return Stage(state.round_id)
        case _:
            return Publish(state.round_id)


def _on_staged(state: RoundState) -> tuple[RoundState, Action]:
    if state.record is not None or state.staged_payload is None:
        return _await(state)
    return replace(state, phase=Phase.PUBLISHING), Publish(state.round_id)


def _await(state: RoundState) -> tuple[RoundState, Action]:
    if state.record is not None:
        return _apply(state, state.record)
    if state.closes:
        return replace(state, phase=Phase.CLOSING), Close(state.round_id, state.opened_at_s)
    return replace(state, phase=Phase.AWAITING_RECORD), AwaitRecord(state.round_id)


def _apply(state: RoundState, record: VerifiedRecord) -> tuple[RoundState, Action]:
    new_state = replace(state, phase=Phase.APPLYING, record=record)
    return new_state, Apply(record, _settlement(state, record))


def _settlement(state: RoundState, record: VerifiedRecord) -> Settlement:
    if state.staged_payload is None:
        return Settlement.NOTHING_STAGED
    counted = {entry.payload_id for entry in record.record.counted}
    return Settlement.COMMIT if state.staged_payload in counted else Settlement.ROLL_BACK


def _on_applied(state: RoundState, head: ChainHead, now_s: float) -> tuple[RoundState, Action]:
    if state.record is None or head.record_id != state.record.record_id:
        raise OutOfOrderError(f"round {head.round_id} applied without its record")
    return _look(replace(state, head=head, record=None, staged_payload=None), now_s)


def _expect(state: RoundState, round_id: int, phase: Phase) -> None:
    _expect_round(state, round_id)
    if state.phase is not phase:
        raise OutOfOrderError(f"expected phase {phase.name}, found {state.phase.name}")


def _expect_round(state: RoundState, round_id: int) -> None:
    if round_id != state.round_id:
        raise OutOfOrderError(f"expected round {state.round_id}, found {round_id}")
