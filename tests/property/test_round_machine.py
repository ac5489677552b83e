"""The round machine against a model of a node that crashes, restarts and meets records any time.

The model does what a node does for each action, keeps what a node keeps on its disk, and checks the
machine's five guarantees whatever the order of events.
"""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.protocol.chain import ChainHead
from shoal.protocol.closing import derive_limits
from shoal.protocol.errors import OutOfOrderError
from shoal.protocol.record import VerifiedRecord
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
    Started,
    Train,
    Trained,
    start,
    step,
)
from tests.support.fake_clock import FakeClock
from tests.support.manifests import counted, first_head, peer, tiny_manifest, verified_after

MANIFEST = tiny_manifest()
ME, OTHER = peer(1), peer(2)
LIMITS = derive_limits(60.0)
BEFORE_RECORD = (Phase.TRAINING, Phase.STAGING, Phase.PUBLISHING)


class Node:
    """A node's hands and disk; every check is an assertion in here."""

    def __init__(self, *, trains: bool, closes: bool, num_rounds: int) -> None:
        self.clock = FakeClock()
        self.trains, self.closes, self.num_rounds = trains, closes, num_rounds
        self.records: dict[int, VerifiedRecord] = {}
        self.durable_head: ChainHead = first_head(MANIFEST)
        self.durable_staged: bytes | None = None
        self.num_staged = 0
        self.applied: list[int] = []
        self.settled: dict[bytes, Settlement] = {}
        self.published: dict[int, set[bytes]] = {}
        self.published_in_this_life: set[int] = set()
        self.num_restarts = -1
        self.restart()

    def restart(self) -> None:
        self.num_restarts += 1
        self.published_in_this_life = set()
        state = RoundState(
            me=ME.peer,
            trains=self.trains,
            closes=self.closes,
            num_rounds=self.num_rounds,
            limits=LIMITS,
            head=self.durable_head,
            staged_payload=self.durable_staged,
        )
        self.state, self.action = start(state, self.clock.now_s())

    def feed(self, event: Event) -> None:
        before = self.state
        self.state, self.action = step(self.state, event, self.clock.now_s())
        assert before.head.round_id <= self.state.head.round_id <= before.head.round_id + 1
        if self.state.head != before.head:
            assert isinstance(event, Applied)

    def write_record(self, kind: str) -> None:
        """What a validator does; it counts this node only if its payload is in the store."""
        head = self.records[len(self.records)].head if self.records else first_head(MANIFEST)
        if head.round_id >= self.num_rounds or head.round_id + 1 in self.records:
            return
        if head.round_id + 1 != self.durable_head.round_id + 1:
            return
        entries = []
        mine = self.published.get(head.round_id + 1, set())
        if kind == "mine" and mine:
            entries.append(counted(ME, next(iter(mine))))
        if kind in ("mine", "others"):
            entries.append(counted(OTHER, b"o" * 31 + bytes([head.round_id % 256])))
        self.records[head.round_id + 1] = verified_after(head, MANIFEST, tuple(entries))

    @property
    def record_now(self) -> VerifiedRecord | None:
        return self.records.get(self.durable_head.round_id + 1)

    def do(self, *, stages_nothing: bool = False) -> Event | None:
        """Carries out the action in progress and returns its outcome; None: it goes on."""
        action: Action = self.action
        match action:
            case Look(round_id):
                assert round_id == self.durable_head.round_id + 1
                return NoRecordYet(round_id) if self.record_now is None else self._seen()
            case Train(round_id, _):
                assert self.trains
                return Trained(round_id)
            case Stage(round_id):
                return Staged(round_id, self._stage(nothing=stages_nothing))
            case Publish(round_id):
                self._publish(round_id)
                return Published(round_id)
            case AwaitRecord(_):
                assert not self.closes
                return None if self.record_now is None else self._seen()
            case Close(_, opened_at_s):
                assert self.closes
                assert opened_at_s <= self.clock.now_s()
                self.write_record("mine")
                return self._seen()
            case Apply(record, settlement):
                self._apply(record, settlement)
                return Applied(record.head)
            case Finish() | Halt():
                return None

    def _seen(self) -> RecordSeen:
        assert self.record_now is not None
        return RecordSeen(self.record_now)

    def _stage(self, *, nothing: bool) -> bytes:
        assert self.durable_staged is None, "a residual that is not settled would be staged over"
        if nothing:
            return b""
        self.num_staged += 1
        self.durable_staged = self.num_staged.to_bytes(32, "big")
        return self.durable_staged

    def _publish(self, round_id: int) -> None:
        assert round_id == self.durable_head.round_id + 1
        assert self.state.record is None, "published although the record is known"
        assert round_id not in self.published_in_this_life, "published twice"
        assert self.durable_staged is not None
        self.published_in_this_life.add(round_id)
        self.published.setdefault(round_id, set()).add(self.durable_staged)
        assert len(self.published[round_id]) == 1, "another payload for the same round"

    def _apply(self, record: VerifiedRecord, settlement: Settlement) -> None:
        assert record is self.records[record.record.round_id]
        assert record.record.round_id == self.durable_head.round_id + 1
        counts = {entry.payload_id for entry in record.record.counted}
        if self.durable_staged is None:
            assert settlement is Settlement.NOTHING_STAGED
        else:
            assert self.durable_staged not in self.settled
            wanted = Settlement.COMMIT if self.durable_staged in counts else Settlement.ROLL_BACK
            assert settlement is wanted
            self.settled[self.durable_staged] = settlement
        self.applied.append(record.record.round_id)
        self.durable_head, self.durable_staged = record.head, None

    def check(self) -> None:
        assert self.applied == list(range(1, len(self.applied) + 1))
        assert self.state.head.round_id in (self.durable_head.round_id, len(self.applied) - 1)
        unsettled = self.num_staged - len(self.settled)
        assert unsettled == (self.durable_staged is not None)


def strange_events(node: Node) -> list[Event]:
    """Events that cannot follow the present state, whatever it is."""
    later = node.state.round_id + 1
    events: list[Event] = [
        NoRecordYet(later),
        Trained(later),
        Staged(later, b"x" * 32),
        Published(later),
        Trained(node.state.round_id - 1),
        Applied(node.state.head),
    ]
    if node.state.head.round_id > 0:
        events.append(RecordSeen(node.records[node.state.head.round_id]))
    if node.state.phase is not Phase.LOOKING:
        events.append(NoRecordYet(node.state.round_id))
    if node.state.phase is not Phase.TRAINING:
        events.append(Trained(node.state.round_id))
    if node.state.phase is not Phase.STAGING:
        events.append(Staged(node.state.round_id, b"x" * 32))
    if node.state.phase is not Phase.PUBLISHING:
        events.append(Published(node.state.round_id))
    if node.state.phase is not Phase.APPLYING:
        head = node.state.head
        events.append(
            Applied(ChainHead(round_id=head.round_id + 1, record_id=bytes(32), state=bytes(32)))
        )
    return events


class RoundMachine(RuleBasedStateMachine):
    trains, closes = True, False

    def __init__(self) -> None:
        super().__init__()
        self.node = Node(trains=self.trains, closes=self.closes, num_rounds=6)
        self.halted = False

    @property
    def goes_on(self) -> bool:
        return not self.halted

    @precondition(lambda self: self.goes_on)
    @rule(nothing=st.sampled_from([False, False, False, True]), seconds=st.floats(0, 100))
    def carries_on(self, nothing, seconds):
        self.node.clock.advance(seconds)
        event = self.node.do(stages_nothing=nothing)
        if event is None:
            return
        self._notice()
        self.node.feed(event)

    def _notice(self):
        """What the round loop does: a record that the gather saw is told before the outcome."""
        node = self.node
        if node.record_now and node.state.record is None and node.state.phase in BEFORE_RECORD:
            phase = node.state.phase
            outcome = node.action
            node.feed(RecordSeen(node.record_now))
            assert node.state.phase is phase
            assert type(node.action) is type(outcome)

    @precondition(lambda self: self.goes_on)
    @rule(kind=st.sampled_from(["mine", "mine", "others", "void"]))
    def a_record_appears(self, kind):
        self.node.write_record(kind)

    @precondition(lambda self: self.goes_on and self.node.state.phase in BEFORE_RECORD)
    @rule()
    def the_record_is_noticed_in_the_middle(self):
        if not isinstance(self.node.action, Publish):
            self._notice()

    @precondition(lambda self: self.goes_on)
    @rule()
    def it_crashes_before_the_action(self):
        self.node.restart()

    @precondition(lambda self: self.goes_on)
    @rule()
    def it_crashes_after_the_action_before_the_event(self):
        if not isinstance(self.node.action, Publish) or self.node.state.record is None:
            self.node.do()
        self.node.restart()

    @precondition(lambda self: self.goes_on)
    @rule(data=st.data())
    def an_event_out_of_order_is_refused(self, data):
        before = self.node.state
        with pytest.raises(OutOfOrderError):
            step(before, data.draw(st.sampled_from(strange_events(self.node))), 0.0)
        assert self.node.state is before

    @precondition(lambda self: self.goes_on)
    @rule(chance=st.integers(0, 19))
    def it_halts(self, chance):
        if chance == 0:
            self.node.feed(Failed("a fork"))
            assert self.node.action == Halt("a fork")
            self.halted = True

    @precondition(lambda self: self.halted)
    @rule(data=st.data())
    def nothing_happens_after_a_halt(self, data):
        round_id = self.node.state.round_id
        events: list[Event] = [
            Started(None),
            NoRecordYet(round_id),
            Trained(round_id),
            Staged(round_id, b"x" * 32),
            Published(round_id),
            Applied(self.node.state.head),
            Failed("again"),
        ]
        if self.node.record_now:
            events.append(RecordSeen(self.node.record_now))
        before = self.node.state
        self.node.feed(data.draw(st.sampled_from(events)))
        assert isinstance(self.node.action, Halt)
        assert self.node.state == before

    @invariant()
    def the_guarantees_hold(self):
        if not self.halted:
            self.node.check()


class ValidatorMachine(RoundMachine):
    trains, closes = False, True


class TrainingValidatorMachine(RoundMachine):
    trains, closes = True, True


STATEFUL = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestPeer = RoundMachine.TestCase
TestPeer.settings = STATEFUL
TestValidator = ValidatorMachine.TestCase
TestValidator.settings = settings(STATEFUL, max_examples=25)
TestTrainingValidator = TrainingValidatorMachine.TestCase
TestTrainingValidator.settings = settings(STATEFUL, max_examples=25)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_rounds_of_faults_are_applied_in_order(seed):
    draw = random.Random(seed)  # noqa: S311  # a test's scheduler, not a secret
    node = Node(trains=True, closes=False, num_rounds=1000)
    num_actions = 0
    while not isinstance(node.action, Finish):
        num_actions += 1
        assert num_actions < 50_000, "the machine makes no progress"
        node.clock.advance(draw.random())
        if draw.random() < 0.05:
            node.restart()
            continue
        if draw.random() < 0.12:
            node.write_record(draw.choice(["mine", "others", "void"]))
        if node.record_now and node.state.record is None and node.state.phase in BEFORE_RECORD:
            node.feed(RecordSeen(node.record_now))
            if isinstance(node.action, Publish):
                # The upload in progress ends without having sent anything.
                node.feed(Published(node.state.round_id))
                continue
        event = node.do(stages_nothing=draw.random() < 0.02)
        if draw.random() < 0.03:
            node.restart()
        elif event is not None:
            node.feed(event)
        node.check()
    assert node.applied == list(range(1, 1001))
    assert node.num_restarts > 100
    assert {Settlement.COMMIT, Settlement.ROLL_BACK} <= set(node.settled.values())
    assert len(node.published) > 300
