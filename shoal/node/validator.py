"""Closing a round: when, with which payloads, and the record that says so.

Guarantees: the record lists only payloads that this validator verified and keeps copies of; more
than the gather limit are thinned by the draw from the round seed, in an open run those who counted
lately before newcomers; weights and state hash are the
ones that every node will compute; the record is written create-once, so a restarted validator finds
its own earlier decision instead of making another.

Does not do: votes of several validators (the types carry them; one of one for now), or scoring.
A record object that is no valid record is removed by the validator: with one validator nothing
certified can be lost by that.
"""

import asyncio
import logging
from collections.abc import Collection, Set
from dataclasses import dataclass, field
from typing import Final

from shoal.node.aggregate import aggregate
from shoal.node.errors import HaltError
from shoal.node.gathered import Gathered, keys_below
from shoal.node.gatherer import RoundGather
from shoal.node.local_state import LocalState
from shoal.node.outer_step import outer_step
from shoal.node.parameters import parameters_root
from shoal.node.run_context import RunContext
from shoal.node.telemetry.names import EventName
from shoal.protocol.chain import ChainHead, next_state, round_seed, void_state
from shoal.protocol.closing import Attendance, should_close, waited_for
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.identity import PeerId
from shoal.protocol.record import build_record, read_known
from shoal.protocol.record_body import CloseReason, CountedPayload, RoundRecord
from shoal.protocol.selection import draw_order
from shoal.storage.errors import ObjectExistsError, StorageError

logger = logging.getLogger(__name__)

_NUM_RECORDS: Final = 8
"""So far back a restarted validator looks for those who counted."""


@dataclass(frozen=True, slots=True)
class Attended:
    """Who attended the round before, kept in memory only: after a restart everybody is new."""

    round_id: int = 0
    peers: frozenset[PeerId] = field(default_factory=frozenset)


async def close_round(
    run: RunContext, state: LocalState, gather: RoundGather, opened_at_s: float, before: Attended
) -> None:
    """Waits until the round may close and its record is there, written by whomever.

    Args:
        run: shared.
        state: for the parameters' root; not changed.
        gather: of the round; polls on its own.
        opened_at_s: when the round began, on the node's clock.
        before: who attended the round before.

    Raises:
        HaltError: the record that was written is refused when read back.
    """
    while gather.record is None:
        expected = await _expected(run, gather, before)
        reason = _reason_to_close(run, gather, opened_at_s, expected)
        if reason is not None:
            await _write_record(run, state, gather, reason)
        if gather.record is None:
            await _changed_or_poll(run, gather)


async def _changed_or_poll(run: RunContext, gather: RoundGather) -> None:
    gather.changed.clear()
    try:
        async with asyncio.timeout(run.limits.poll_s):
            await gather.changed.wait()
    except TimeoutError:
        return


async def _expected(run: RunContext, gather: RoundGather, before: Attended) -> Set[PeerId]:
    attended = before.peers if before.round_id == gather.round_id - 1 else frozenset()
    if not attended:
        return frozenset(gather.attending)
    prefix = run.keys.published_prefix(gather.round_id - 1)
    try:
        async with asyncio.timeout(run.limits.transfer_s):
            keys = await keys_below(run, prefix)
    except (StorageError, TimeoutError):
        # Not knowing who published late, the round waits for everybody who attends it.
        return frozenset(gather.attending)
    published = {key.rsplit("/", 1)[1] for key in keys}
    return waited_for(
        gather.attending, attended, {peer for peer in attended if peer.key.hex() in published}
    )


def _reason_to_close(
    run: RunContext, gather: RoundGather, opened_at_s: float, expected: Set[PeerId]
) -> CloseReason | None:
    timing = run.manifest.timing
    attendance = Attendance(
        opened_at_s=opened_at_s,
        attending=frozenset(gather.attending),
        arrivals_s=tuple((p, g.announced_at_s) for p, g in gather.accepted.items()),
        failed=gather.failed_peers(),
        steady=run.familiar.steady,
    )
    return should_close(
        attendance,
        expected,
        run.clock.now_s(),
        min_peers=timing.min_peers,
        target_peers=timing.target_peers,
        limits=run.limits,
    )


async def _write_record(
    run: RunContext, state: LocalState, gather: RoundGather, reason: CloseReason
) -> None:
    record = await asyncio.to_thread(
        propose_record, run, state, gather.head, dict(gather.accepted), reason
    )
    raw = build_record(record, (run.identity,))
    store = run.store.labelled(peer="validators", kind="record")
    key = run.keys.record(gather.round_id)
    try:
        # What was bad may have been replaced by now, also by a write of this validator's whose
        # answer was lost: a good record is never removed.
        if gather.bad_record is not None and await gather.look_for_record() is not None:
            return
        async with asyncio.timeout(run.limits.transfer_s):
            if gather.bad_record is not None:
                await store.delete(key)
            await store.put(key, raw)
    except ObjectExistsError:
        logger.info("round %d: somebody wrote the record first", gather.round_id)
    except (StorageError, TimeoutError) as error:
        logger.warning("round %d: the record cannot be written: %r", gather.round_id, error)
        return
    try:
        found = await gather.look_for_record()
    except StorageError:
        return
    if found is None and gather.bad_record == raw:
        raise HaltError(f"this validator's own record of round {gather.round_id} is refused")
    run.log.emit(
        EventName.RECORD_WRITTEN,
        round_id=gather.round_id,
        num_counted=len(record.counted),
        close_reason=reason,
    )


def propose_record(
    run: RunContext,
    state: LocalState,
    head: ChainHead,
    accepted: dict[PeerId, Gathered],
    reason: CloseReason,
) -> RoundRecord:
    """The record of the round after `head`.

    A pure function of its arguments, of who counted lately, and of the time.

    Args:
        run: shared.
        state: for the parameters' root; not changed.
        head: the record before.
        accepted: verified payloads by peer.
        reason: why the round closes.
    """
    manifest, round_id = run.manifest, head.round_id + 1
    order = _seated(run, head, accepted)
    void = len(order) < manifest.timing.min_peers
    counted: tuple[CountedPayload, ...] = ()
    root = state_hash = b""
    if void:
        state_hash = void_state(manifest.run_id, round_id, head.state)
        base = state.base
    else:
        payloads = [accepted[peer].payload for peer in order]
        result = aggregate([p.body for p in payloads], run.layout, manifest.outer)
        counted = tuple(
            CountedPayload(peer=p.peer, payload_id=p.payload_id, weight=weight)
            for p, weight in zip(payloads, result.weights, strict=True)
        )
        ids = [p.payload_id for p in payloads]
        state_hash = next_state(manifest.run_id, round_id, head.state, ids, result.sum_hash)
        base = [flat.copy() for flat in state.base]
        outer_step(base, result.sums, manifest.outer)
    if round_id % manifest.timing.checkpoint_every == 0:
        root = parameters_root(manifest.tensors, base)
    return RoundRecord(
        run_id=manifest.run_id,
        manifest_hash=manifest.manifest_hash,
        round_id=round_id,
        attempt=0,
        previous=head.record_id,
        base_state=head.state,
        state=state_hash,
        void=void,
        counted=counted,
        params_root=root,
        closed_at_ms=int(run.clock.now_s() * 1000),
        close_reason=reason,
    )


def _seated(run: RunContext, head: ChainHead, accepted: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Whose payload counts."""
    seed, limit = round_seed(head), run.manifest.outer.gather_limit
    known = {peer: 1 for peer in accepted if run.familiar.knows(peer.key.hex())}
    others = {peer: 1 for peer in accepted if peer not in known}
    newcomers = draw_order(seed, others, run.familiar.num_newcomer_seats(len(known)))
    return draw_order(seed, known, limit - len(newcomers)) + newcomers


async def recall(run: RunContext, head: ChainHead) -> None:
    """Reads from the last records who counted, once in a process's life.

    Each is known by its id, from the head on; one that cannot be read ends the search until the
    next call.

    Args:
        run: shared; its `familiar` is told.
        head: the last record that this node applied.
    """
    if run.familiar.is_recalled:
        return
    found: list[RoundRecord] = []
    wanted, last = head.record_id, max(head.round_id - _NUM_RECORDS, 0)
    try:
        for round_id in range(head.round_id, last, -1):
            found.append(await _read_known(run, round_id, wanted))
            wanted = found[-1].previous
    except (RemoteProtocolError, StorageError, TimeoutError) as error:
        logger.info("round %d: who counted is not known: %s", head.round_id - len(found), error)
    run.familiar.is_recalled = len(found) == head.round_id - last
    for record in reversed(found):
        run.familiar.note(record)


async def _read_known(run: RunContext, round_id: int, record_id: bytes) -> RoundRecord:
    store = run.store.labelled(peer="validators", kind="record")
    async with asyncio.timeout(run.limits.transfer_s):
        raw = await store.get(run.keys.record(round_id), max_bytes=run.record_rules.max_bytes)
    return read_known(raw, run.record_rules, record_id)
