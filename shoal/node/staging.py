"""From trained parameters to a signed payload that survives a crash.

Guarantees: when `stage_payload` returns, the payload and everything that a restart needs to settle
its residual are on this node's disk, and the payload has passed everybody's check; only then may it
leave the machine.

Does not do: upload (see `publisher`), or settle the residual (see `applying`).
"""

import math
from dataclasses import dataclass

import numpy as np

from shoal.compression import CheckedBody, CompressionError, QuantizationStats
from shoal.node.checkpoint import CheckpointFolder
from shoal.node.errors import HaltError
from shoal.node.inner_loop import Learned
from shoal.node.local_state import LocalState, to_snapshot
from shoal.node.model import parameters_of
from shoal.node.pseudo_gradient import Flat, pseudo_gradient
from shoal.node.run_context import BodyChecker, RunContext
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.protocol.payload import Payload, PayloadContext, build_payload, validate


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedPayload:
    """What staging made."""

    raw: bytes
    payload: Payload[CheckedBody] | None
    """None: every chunk is empty, there is nothing to send."""
    stats: QuantizationStats
    gradient: list[Flat]
    """This node's own pseudo-gradient, dense."""
    pseudo_gradient_norm: float


def stage_payload(
    run: RunContext, state: LocalState, folder: CheckpointFolder, learned: Learned
) -> StagedPayload:
    """Pseudo-gradient, error feedback, encoding, signature, checkpoint.

    Args:
        run: shared.
        state: its residual takes up the pseudo-gradient, its `staged_raw` the payload.
        folder: where the checkpoint goes.
        learned: what the inner loop did, and from where.

    Raises:
        HaltError: the update is not finite, or others would refuse the payload.
        ResourceError: the checkpoint cannot be written.
    """
    if state.feedback is None:
        raise HaltError("a node that does not train was asked to stage a payload")
    gradient = pseudo_gradient(learned.start, parameters_of(state.trainer.model))
    norm = math.sqrt(sum(float(np.dot(g, g)) for g in gradient))
    try:
        staged = state.feedback.stage(gradient)
    except CompressionError as error:
        raise HaltError(f"this node's own update cannot be encoded: {error}") from error
    manifest = run.manifest
    raw = build_payload(
        run.identity,
        run_id=manifest.run_id,
        manifest_hash=manifest.manifest_hash,
        codec_value_bits=manifest.codec.value_bits,
        round_id=state.head.round_id + 1,
        base_state=state.head.state,
        inner_steps=learned.result.steps,
        tokens=learned.result.tokens,
        body=staged.body,
    )
    payload = check_own(run, state, raw)
    state.staged_raw = raw
    folder.save(to_snapshot(state, manifest))
    return StagedPayload(
        raw=raw, payload=payload, stats=staged.stats, gradient=gradient, pseudo_gradient_norm=norm
    )


def keep_learned(state: LocalState, learned: Learned) -> None:
    """Takes up what was learned for a round that closed meanwhile; nothing is sent.

    Raises:
        HaltError: the update is not finite.
    """
    if state.feedback is None or learned.result.steps == 0:
        return
    try:
        state.feedback.stage(pseudo_gradient(learned.start, parameters_of(state.trainer.model)))
    except CompressionError as error:
        raise HaltError(f"this node's own update cannot be encoded: {error}") from error
    state.feedback.rollback()


def check_own(run: RunContext, state: LocalState, raw: bytes) -> Payload[CheckedBody] | None:
    """The node's own payload through everybody's check; None if there is nothing to send.

    Raises:
        HaltError: others would refuse it: our bug, better found here.
    """
    context = PayloadContext(
        round_id=state.head.round_id + 1,
        base_state=state.head.state,
        seen={},
        check_body=BodyChecker(run.layout),
    )
    try:
        return validate(raw, run.payload_rules, context)
    except RemoteProtocolError as error:
        if error.code is ErrorCode.E_ALL_ZERO:
            return None
        raise HaltError(f"this node's own payload would be refused: {error}") from error
