"""What a node does for each action of the round machine.

Guarantees: every method does one arrow of the round and returns the event that the machine wants
next. Does not do: decide what comes next (`protocol.round_machine` does), loop (`round_loop` does),
or hold the rules of an arrow (its own module does).
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from shoal.node.applying import apply_record
from shoal.node.checkpoint import CheckpointFolder
from shoal.node.data_source import DataSource
from shoal.node.errors import HaltError
from shoal.node.gatherer import RoundGather
from shoal.node.inner_loop import InnerLoop, Learned
from shoal.node.local_state import LocalState
from shoal.node.round_notes import RoundNotes, make_report
from shoal.node.run_context import RunContext
from shoal.node.staging import check_own, keep_learned, stage_payload
from shoal.node.telemetry.names import EventName
from shoal.node.telemetry.round_timer import PhaseName, RoundTimer
from shoal.node.uploading import attend, upload
from shoal.node.validator import Attended, close_round, recall
from shoal.protocol.chain import ChainHead
from shoal.protocol.errors import ForkError, RemoteProtocolError
from shoal.protocol.record import VerifiedRecord, check_fork
from shoal.protocol.round_machine import (
    Applied,
    Failed,
    NoRecordYet,
    Published,
    RecordSeen,
    Settlement,
    Staged,
    Trained,
)
from shoal.storage.errors import StorageError

logger = logging.getLogger(__name__)

_GIVE_UP_CONFLICTS = 2


class RoundSteps:
    """One node's hands. All methods run on the event loop; heavy work goes to threads."""

    def __init__(
        self, run: RunContext, state: LocalState, data: DataSource, folder: CheckpointFolder
    ) -> None:
        self.run = run
        self.state = state
        self._data = data
        self._inner = InnerLoop(run, state, data)
        self._learned: Learned | None = None
        self._folder = folder
        self._gather = RoundGather(run, state.head)
        self._polling: asyncio.Task[None] | None = None
        self._attending: asyncio.Task[None] | None = None
        self._leaves = False
        self._notes = RoundNotes(timer=RoundTimer(run.meter.now_s))
        self._attended = Attended()
        self._num_conflicts = 0
        self._last: tuple[ChainHead, VerifiedRecord] | None = None
        """The record applied last, and the head before it."""
        self.is_applying = False
        """Parameters are moving in a worker thread: not a moment to look at them."""

    def known_record(self) -> VerifiedRecord | None:
        """The round's record, if the gather has seen it."""
        return self._gather.record

    async def look(self, round_id: int) -> RecordSeen | NoRecordYet:
        """Looks once for the round's record; starts the gather if there is none yet."""
        self._notes = RoundNotes(timer=RoundTimer(self.run.meter.now_s))
        self.run.meter.drain()
        if not self.state.trains:
            await recall(self.run, self.state.head)
        self._gather = RoundGather(
            self.run,
            self.state.head,
            # As soon as the record appears, training for the round is over.
            on_record=lambda: self._inner.interrupt(round_id),
            keep_copies=not self.state.trains,
        )
        try:
            record = await self._gather.look_for_record()
        except StorageError as error:
            logger.warning("round %d: the store cannot be read: %s", round_id, error)
            record = None
        if record is not None:
            self._notes.replayed = True
            await self._keep_learned(round_id)
            return RecordSeen(record)
        self.run.log.emit(EventName.ROUND_OPENED, round_id=round_id)
        self._polling = asyncio.create_task(self._gather.poll())
        return NoRecordYet(round_id)

    async def _check_fork(self) -> None:
        """Looks again, a round later, at the record applied last: another one there is a fork.

        Raises:
            HaltError: E_FORK; both records are kept as evidence.
        """
        if self._last is None:
            return
        before, known = self._last
        round_id, rules = known.record.round_id, self.run.record_rules
        store = self.run.store.labelled(peer="validators", kind="record")
        try:
            async with asyncio.timeout(self.run.limits.transfer_s):
                raw = await store.get(self.run.keys.record(round_id), max_bytes=rules.max_bytes)
            if raw != known.raw:
                check_fork(known, raw, rules, before)
        except ForkError as error:
            raise HaltError(f"{error}; {self._folder.keep_evidence(known.raw, raw)}") from error
        except (RemoteProtocolError, StorageError, TimeoutError) as error:
            # Not a certified record, or none: it proves nothing, and ours is applied already.
            logger.warning("round %d: its record looks different now: %s", round_id, error)

    async def train(self, round_id: int, until_s: float) -> Trained:
        """H inner steps from the base parameters, or fewer (deadline, record, stop)."""
        # Beside the training: a store that hangs must not delay it.
        self._attending = asyncio.create_task(attend(self.run, round_id))
        with self._notes.timer.phase(PhaseName.TRAIN):
            self._learned = await self._inner.finish(round_id, until_s)
        self._notes.result = self._learned.result
        return Trained(round_id)

    async def _keep_learned(self, round_id: int) -> None:
        """An inner loop that ran ahead for a round that is closed already: nothing is lost."""
        ahead = await self._inner.take(round_id)
        if ahead is not None:
            await asyncio.to_thread(keep_learned, self.state, ahead)

    async def stage(self, round_id: int) -> Staged:
        """Pseudo-gradient, error feedback, encoding, signature; durable when it returns."""
        learned = self._learned
        if learned is None:
            raise HaltError("asked to stage before training")
        if learned.result.steps == 0:
            # Nothing was learned: the residual stays as it is and there is nothing to send.
            return Staged(round_id, b"")
        with self._notes.timer.phase(PhaseName.STAGE):
            staged = await asyncio.to_thread(
                stage_payload, self.run, self.state, self._folder, learned
            )
        self._notes.stats = staged.stats
        self._notes.pseudo_gradient_norm = staged.pseudo_gradient_norm
        self._inner.start_ahead(round_id + 1, staged.gradient)
        self.run.log.emit(EventName.PAYLOAD_STAGED, round_id=round_id, num_bytes=len(staged.raw))
        return Staged(round_id, b"" if staged.payload is None else staged.payload.payload_id)

    async def publish(self, round_id: int) -> Published | Failed:
        """Uploads and announces the staged payload; a round that cannot be published is lost."""
        raw = self.state.staged_raw
        payload = None if raw is None else check_own(self.run, self.state, raw)
        if raw is None or payload is None:
            return Published(round_id)
        self._gather.accept_own(payload)
        with self._notes.timer.phase(PhaseName.UPLOAD):
            return await self._publish(round_id, payload.payload_id, raw)

    async def _publish(self, round_id: int, payload_id: bytes, raw: bytes) -> Published | Failed:
        def is_over() -> bool:
            return self._leaves or self.known_record() is not None

        try:
            announced = await upload(self.run, round_id, payload_id, raw, is_over)
        except RemoteProtocolError as error:
            return self._on_conflict(round_id, error)
        if announced:
            self._num_conflicts = 0
            self.run.log.emit(EventName.PAYLOAD_PUBLISHED, round_id=round_id, num_bytes=len(raw))
        return Published(round_id)

    def _on_conflict(self, round_id: int, error: RemoteProtocolError) -> Published | Failed:
        """Another payload of our key: once may be a lost state folder, twice is another node."""
        self._num_conflicts += 1
        self._gather.forget(self.run.me)
        self.run.log.emit(EventName.WARNING, round_id=round_id, message=str(error))
        logger.warning("round %d: %s", round_id, error)
        if self._num_conflicts < _GIVE_UP_CONFLICTS:
            return Published(round_id)
        return Failed(
            f"{error}. It happened in {self._num_conflicts} rounds in a row: stop the other node, "
            "or give this one a key of its own (shoal keygen)"
        )

    async def await_record(self, round_id: int) -> RecordSeen:
        """Gathers until the record is there."""
        with self._notes.timer.phase(PhaseName.WAIT):
            await self._poller()
        return RecordSeen(self._the_record(round_id))

    async def close(self, round_id: int, opened_at_s: float) -> RecordSeen:
        """Validator: closes the round."""
        polling = self._poller()
        closing = asyncio.create_task(
            close_round(self.run, self.state, self._gather, opened_at_s, self._attended)
        )
        with self._notes.timer.phase(PhaseName.WAIT):
            try:
                await asyncio.wait({closing, polling}, return_when=asyncio.FIRST_COMPLETED)
                # Whichever failed says why; the other one would wait for ever.
                for task in (closing, polling):
                    if task.done():
                        await task
            finally:
                closing.cancel()
        return RecordSeen(self._the_record(round_id))

    async def apply(self, verified: VerifiedRecord, settlement: Settlement) -> Applied:
        """Applies exactly what the record lists, settles the residual, makes it durable."""
        await self._check_fork()
        payloads = await asyncio.gather(
            *(self._gather.fetch_counted(entry) for entry in verified.record.counted)
        )
        notes, before = self._notes, self.state.head
        notes.counted = settlement is Settlement.COMMIT
        with notes.timer.phase(PhaseName.APPLY), self._applying():
            notes.update_norm, notes.aggregated = await asyncio.to_thread(
                apply_record, self.run, self.state, self._folder, verified, payloads, settlement
            )
        self._last = (before, verified)
        self.run.familiar.note(verified.record)
        self._inner.rebase()
        await self._stop_gather()
        notes.busy = self._inner.take_intervals()
        self._attended = Attended(verified.record.round_id, frozenset(self._gather.attending))
        if not self.state.trains:
            notes.held_out_loss = await asyncio.to_thread(self._held_out_loss)
        self.run.log.round(
            make_report(
                self.run,
                self._gather,
                notes,
                verified,
                role="peer" if self.state.trains else "validator",
                transfers=self.run.meter.drain(),
            )
        )
        return Applied(verified.head)

    @contextlib.contextmanager
    def _applying(self) -> Iterator[None]:
        self.is_applying = True
        try:
            yield
        finally:
            self.is_applying = False

    def _held_out_loss(self) -> float:
        batch = self._data.held_out_batch()
        self.state.trainer.load_base(self.state.base)
        return self.state.trainer.evaluate(batch)

    def _poller(self) -> "asyncio.Task[None]":
        if self._polling is None:
            self._polling = asyncio.create_task(self._gather.poll())
        return self._polling

    def _the_record(self, round_id: int) -> VerifiedRecord:
        record = self.known_record()
        if record is None:
            raise HaltError(f"round {round_id}: the gather ended without a record")
        return record

    def stop_training(self) -> None:
        """Ends the inner loop after the step in progress, for good; no new upload begins."""
        self._leaves = True
        self._inner.stop()

    async def end(self) -> None:
        """Ends all background work.

        Raises:
            ResourceError: it had failed for want of room.
        """
        await self._inner.close()
        await self._stop_gather()

    async def _stop_gather(self) -> None:
        """Ends the gather of the round.

        Raises:
            ResourceError: it had failed for want of room.
        """
        if self._attending is not None:
            self._attending.cancel()
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await polling
        await self._gather.close()
