"""The inner loop of a round, in its round's time or one round ahead of it.

Without overlap a round's inner loop starts when the round before is applied. With
`timing.overlap = "one-round"` it starts as soon as the round before is staged: while that one's
payload is uploaded, gathered and recorded, this node already trains. The one update that its
parameters lack is guessed: its own pseudo-gradient of that round stands in for everybody's (eager
updates, arXiv 2502.12996). The guess is replaced by what was really applied as soon as it is:
between two steps the model is moved by the difference, and what the steps before have learned stays
(Streaming DiLoCo, arXiv 2501.18512). Only the steps until then are made at another place than the
one that the update will be applied to. The pseudo-gradient is what the steps did: the parameters
that the inner loop began with, moved alike, minus those that it ended with.

Guarantees: what a node trains on is a pure function of (run, record, peer) in both modes: the seed
comes from the newest record that a node is sure to have when the inner loop may start; a checkpoint
made while training goes on holds the optimiser as it was before; the applied updates, and so the
parameters' bits, do not depend on the mode of any node.

Does not do: decide when (see `round_steps`), or share anything with other nodes.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from shoal.node.data_source import BatchSource, DataSource
from shoal.node.errors import HaltError, NodeError
from shoal.node.local_state import LocalState
from shoal.node.pseudo_gradient import Flat
from shoal.node.run_context import RunContext
from shoal.node.telemetry.names import EventName
from shoal.node.telemetry.round_timer import Interval
from shoal.node.trainer import InnerResult
from shoal.protocol.chain import round_seed

OVERLAP = "one-round"


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A finished inner loop."""

    result: InnerResult
    start: list[Flat]
    """The parameters that it began with, moved as the model was."""


@dataclass(slots=True, kw_only=True)
class _Ground:
    """What an inner loop's steps are counted from; `start` is the training thread's own."""

    start: list[Flat]
    next: list[Flat] | None = None
    """Where to go on from, once the step in progress is made."""


@dataclass(slots=True, kw_only=True)
class _Running:
    round_id: int
    task: "asyncio.Task[InnerResult]"
    ground: _Ground
    interrupt: threading.Event
    started_s: float


class InnerLoop:
    """Runs a node's inner loops, at most one at a time, in a worker thread."""

    def __init__(self, run: RunContext, state: LocalState, data: DataSource) -> None:
        self._run = run
        self._state = state
        self._data = data
        self._running: _Running | None = None
        self._stopped = False
        self._computed: list[Interval] = []

    @property
    def overlaps(self) -> bool:
        """Whether the run trains one round ahead."""
        return self._run.manifest.timing.overlap == OVERLAP

    def start_ahead(self, round_id: int, guess: list[Flat]) -> None:
        """Begins the inner loop of the next round, if the run overlaps and has that round.

        Args:
            round_id: the next round.
            guess: of the update that is missing: the pseudo-gradient that this node has just
                staged.
        """
        if self.overlaps and round_id <= self._run.manifest.run.num_rounds and not self._stopped:
            start = [flat - step for flat, step in zip(self._state.base, guess, strict=True)]
            until_s = self._run.clock.now_s() + self._run.limits.training_s
            self._begin(round_id, start, until_s)

    def rebase(self) -> None:
        """Lets what runs ahead go on from the base parameters, which have the update by now.

        They must not change before that inner loop has ended, and its result is staged.
        """
        if self._running is not None:
            self._running.ground.next = self._state.base

    async def finish(self, round_id: int, until_s: float) -> Learned:
        """The result of a round's inner loop, begun ahead or now.

        Args:
            round_id: the round.
            until_s: when to end it, for one that begins now.
        """
        if self._running is None:
            self._begin(round_id, self._state.base, until_s)
        running = self._running
        if running is None or running.round_id != round_id:
            raise HaltError(f"round {round_id}: the inner loop of another round is running")
        try:
            result = await asyncio.shield(running.task)
        finally:
            if running.task.done():
                self._end(running)
        return Learned(result=result, start=running.ground.start)

    async def take(self, round_id: int) -> Learned | None:
        """What an inner loop that runs ahead for `round_id` has learned so far; None: none runs."""
        if self._running is None or self._running.round_id != round_id:
            return None
        self._running.interrupt.set()
        return await self.finish(round_id, 0.0)

    def interrupt(self, round_id: int) -> None:
        """Ends the inner loop of `round_id` after the step in progress."""
        if self._running is not None and self._running.round_id == round_id:
            self._running.interrupt.set()

    def stop(self) -> None:
        """Ends whatever runs after the step in progress, for good."""
        self._stopped = True
        if self._running is not None:
            self._running.interrupt.set()

    async def close(self) -> None:
        """Waits for the end of whatever runs."""
        self.stop()
        if self._running is not None:
            with contextlib.suppress(NodeError):
                await self._running.task
            self._end(self._running)

    def take_intervals(self) -> list[Interval]:
        """When inner loops ran since the last call, on the meter's clock; what runs included."""
        taken, self._computed = self._computed, []
        if self._running is not None:
            taken.append((self._running.started_s, self._run.meter.now_s()))
        return taken

    def _begin(self, round_id: int, start: list[Flat], until_s: float) -> None:
        if self.overlaps:
            self._state.frozen_trainer = self._state.trainer.state_arrays()
        interrupt = threading.Event()
        if self._stopped:
            interrupt.set()
        # Here and not in the thread: the head may move while that waits for its turn.
        batches = self._data.batches(self._seed(round_id), self._run.me.key)
        ground = _Ground(start=start)
        work = asyncio.to_thread(self._train, round_id, ground, batches, until_s, interrupt)
        self._running = _Running(
            round_id=round_id,
            task=asyncio.create_task(work),
            ground=ground,
            interrupt=interrupt,
            started_s=self._run.meter.now_s(),
        )

    def _end(self, running: _Running) -> None:
        self._computed.append((running.started_s, self._run.meter.now_s()))
        self._state.frozen_trainer = None
        self._running = None

    def _train(
        self,
        round_id: int,
        ground: _Ground,
        batches: BatchSource,
        until_s: float,
        interrupt: threading.Event,
    ) -> InnerResult:
        log, clock, trainer = self._run.log, self._run.clock, self._state.trainer
        trainer.load_base(ground.start)

        def follow() -> None:
            if ground.next is not None:
                trainer.move(ground.start, ground.next)
                ground.start, ground.next = ground.next, None

        return trainer.run(
            round_id,
            batches,
            out_of_time=lambda: clock.now_s() >= until_s,
            interrupt=interrupt,
            on_step=_reporter(log.emit, round_id),
            before_step=follow,
        )

    def _seed(self, round_id: int) -> bytes:
        """Of the record one round back, or two when the inner loop may start before that one."""
        state, wanted = self._state, max(round_id - (2 if self.overlaps else 1), 0)
        if wanted == state.head.round_id:
            return round_seed(state.head)
        return round_seed(replace(state.head, record_id=state.previous_record_id))


def _reporter(emit: Callable[..., None], round_id: int) -> Callable[[int, float], None]:
    return lambda step, loss: emit(EventName.INNER_STEP, round_id=round_id, step=step, loss=loss)
