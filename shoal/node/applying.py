"""Applying a record: aggregate, compare, step, settle the residual, make it durable.

Guarantees: the update is computed from exactly the payloads that the record lists, in its order;
weights and state hash are compared with the record before a parameter moves, and the parameters'
root, where the record has one, before anything is saved; after a failure the node's disk still
holds the state before the round.

Does not do: fetch payloads, or choose them.
"""

from collections.abc import Sequence

from shoal.compression import CheckedBody
from shoal.node.aggregate import Aggregate, aggregate
from shoal.node.checkpoint import CheckpointFolder
from shoal.node.errors import DivergedError
from shoal.node.local_state import LocalState, to_snapshot
from shoal.node.outer_step import outer_step
from shoal.node.parameters import parameters_root
from shoal.node.run_context import RunContext
from shoal.protocol.chain import next_state, void_state
from shoal.protocol.errors import ErrorCode
from shoal.protocol.payload import Payload
from shoal.protocol.record import VerifiedRecord
from shoal.protocol.round_machine import Settlement


def apply_record(
    run: RunContext,
    state: LocalState,
    folder: CheckpointFolder,
    verified: VerifiedRecord,
    payloads: Sequence[Payload[CheckedBody]],
    settlement: Settlement,
) -> tuple[float, Aggregate | None]:
    """Moves `state` to the record's state; durable when it returns.

    Args:
        run: shared.
        state: changed in place.
        folder: where the checkpoint goes.
        verified: the record of the round after the state's head.
        payloads: those that it lists, in its order.
        settlement: what becomes of the staged residual.

    Returns:
        The norm of the update, and the aggregate (None for a void round).

    Raises:
        DivergedError: this node computes something else than the record says.
        ResourceError: the checkpoint cannot be written.
    """
    record = verified.record
    result = None if record.void else _aggregate(run, verified, payloads)
    _compare_state(run, state, verified, result)
    update_norm = 0.0
    if result is not None:
        update_norm = outer_step(state.base, result.sums, run.manifest.outer)
    if record.params_root:
        root = parameters_root(run.manifest.tensors, state.base)
        _require_equal(record.round_id, "root of the parameters", record.params_root, root)
    _settle(state, settlement)
    state.previous_record_id, state.head = state.head.record_id, verified.head
    folder.save(to_snapshot(state, run.manifest))
    return update_norm, result


def _aggregate(
    run: RunContext, verified: VerifiedRecord, payloads: Sequence[Payload[CheckedBody]]
) -> Aggregate:
    result = aggregate([p.body for p in payloads], run.layout, run.manifest.outer)
    weights = tuple(entry.weight for entry in verified.record.counted)
    if weights != result.weights:
        raise DivergedError(
            f"{ErrorCode.E_STATE} round {verified.record.round_id}: clip weights: the record says "
            f"{weights}, this node computes {result.weights}; nothing was applied"
        )
    return result


def _compare_state(
    run: RunContext, state: LocalState, verified: VerifiedRecord, result: Aggregate | None
) -> None:
    run_id, round_id = run.manifest.run_id, verified.record.round_id
    if result is None:
        found = void_state(run_id, round_id, state.head.state)
    else:
        ids = [entry.payload_id for entry in verified.record.counted]
        found = next_state(run_id, round_id, state.head.state, ids, result.sum_hash)
    _require_equal(round_id, "state hash", verified.record.state, found)


def _require_equal(round_id: int, what: str, expected: bytes, found: bytes) -> None:
    if expected != found:
        raise DivergedError(
            f"{ErrorCode.E_STATE} round {round_id}: {what}: the record says {expected.hex()}, this "
            f"node computes {found.hex()}; nothing was saved"
        )


def _settle(state: LocalState, settlement: Settlement) -> None:
    state.staged_raw = None
    if state.feedback is None or state.feedback.staged_body is None:
        return
    if settlement is Settlement.COMMIT:
        state.feedback.commit()
    else:
        state.feedback.rollback()
