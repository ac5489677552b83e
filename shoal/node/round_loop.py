"""The one loop of the program: train, stage, publish, await the record, apply, again.

    look -> train -> stage -> publish -> (gather) await or close -> apply -> look -> ...

Guarantees: the machine decides, this loop does; a stop is obeyed between two actions, an upload in
progress is finished first, and everything up to the last durable point is found again at the next
start. Does not do: start or stop processes, handle signals.
"""

import asyncio
from dataclasses import dataclass
from typing import assert_never

from shoal.node.errors import HaltError
from shoal.node.round_steps import RoundSteps
from shoal.protocol.round_machine import (
    Action,
    Apply,
    AwaitRecord,
    Close,
    Event,
    Finish,
    Halt,
    Look,
    Phase,
    Publish,
    RecordSeen,
    RoundState,
    Stage,
    Train,
    start,
    step,
)

_BEFORE_RECORD = (Phase.TRAINING, Phase.STAGING, Phase.PUBLISHING)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the loop ended."""

    finished: bool
    """All rounds of the run are applied; else the node was asked to stop."""
    round_id: int
    """The last applied round."""


async def run_rounds(steps: RoundSteps, state: RoundState, stop: asyncio.Event) -> Outcome:
    """Runs until the run is over, a stop is asked for, or the node must halt.

    Args:
        steps: the node's hands.
        state: where the node's checkpoint stands.
        stop: set it to leave at the next good moment.

    Raises:
        NodeError: the node cannot go on.
    """
    clock = steps.run.clock
    state, action = start(state, clock.now_s())
    try:
        while not isinstance(action, Finish):
            event = await _unless_stopped(steps, action, stop)
            if event is None:
                break
            known = steps.known_record()
            if known is not None and state.record is None and state.phase in _BEFORE_RECORD:
                state, _ = step(state, RecordSeen(known), clock.now_s())
            state, action = step(state, event, clock.now_s())
    finally:
        await steps.end()
    return Outcome(isinstance(action, Finish), state.head.round_id)


async def _unless_stopped(steps: RoundSteps, action: Action, stop: asyncio.Event) -> Event | None:
    """Does the action; None if a stop came first. Uploads and checkpoints are never cut short."""
    if stop.is_set() and not isinstance(action, Publish):
        return None
    work = asyncio.create_task(_do(steps, action))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return await work
        steps.stop_training()
        if isinstance(action, Stage | Publish | Train | Apply):
            done, _ = await asyncio.wait({work}, timeout=_patience_s(action))
            if steps.is_applying:
                # Half-moved parameters must not be reported as the node's last word.
                done, _ = await asyncio.wait({work})
            if done:
                # What is done is done: the machine must stand where the disk stands.
                return await work
        return None
    finally:
        stopping.cancel()
        work.cancel()


def _patience_s(action: Action) -> float:
    """How long a stop waits for what is in progress."""
    return 15.0 if isinstance(action, Publish) else 5.0


async def _do(steps: RoundSteps, action: Action) -> Event:
    match action:
        case Look(round_id):
            return await steps.look(round_id)
        case Train(round_id, until_s):
            return await steps.train(round_id, until_s)
        case Stage(round_id):
            return await steps.stage(round_id)
        case Publish(round_id):
            return await steps.publish(round_id)
        case AwaitRecord(round_id):
            return await steps.await_record(round_id)
        case Close(round_id, opened_at_s):
            return await steps.close(round_id, opened_at_s)
        case Apply(record, settlement):
            return await steps.apply(record, settlement)
        case Halt(reason):
            raise HaltError(reason)
        case Finish():
            raise HaltError("asked to act after the end of the run")
        case _:
            assert_never(action)
