"""What one round leaves behind for its report, and the report made from it.

Guarantees: reports are derived, never edited; what was not measured is None. Does not do: I/O.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.compression import QuantizationStats
from shoal.node.aggregate import FULL_WEIGHT, Aggregate
from shoal.node.gatherer import RoundGather
from shoal.node.run_context import RunContext
from shoal.node.telemetry.round_report import PeerTransfer, RoundReport
from shoal.node.telemetry.round_timer import Interval, PhaseName, RoundTimer
from shoal.node.trainer import InnerResult
from shoal.protocol.record import VerifiedRecord
from shoal.storage.meter import Transfer


@dataclass(slots=True, kw_only=True)
class RoundNotes:
    """Filled in by the steps of one round."""

    timer: RoundTimer
    replayed: bool = False
    result: InnerResult | None = None
    stats: QuantizationStats | None = None
    pseudo_gradient_norm: float | None = None
    held_out_loss: float | None = None
    update_norm: float = 0.0
    counted: bool = False
    aggregated: Aggregate | None = None
    busy: Sequence[Interval] = ()
    """When inner loops ran, those ahead of their round included."""


def make_report(
    run: RunContext,
    gather: RoundGather,
    notes: RoundNotes,
    verified: VerifiedRecord,
    *,
    role: str,
    transfers: Sequence[Transfer],
) -> RoundReport:
    """The report of a round that was just applied.

    Args:
        run: shared.
        gather: of the round.
        notes: what the steps noted.
        verified: the applied record.
        role: "peer" or "validator".
        transfers: everything that the meter counted since the round began.
    """
    record, timer, result, stats = verified.record, notes.timer, notes.result, notes.stats
    round_s = timer.elapsed_s()
    exposed_s = timer.exposed_communication_s(transfers, notes.busy)
    own_weight = next((e.weight for e in record.counted if e.peer == run.me), None)
    return RoundReport(
        round_id=record.round_id,
        role=role,
        state_hash=record.state.hex(),
        void=record.void,
        counted=notes.counted,
        replayed=notes.replayed,
        num_counted=len(record.counted),
        num_accepted=len(gather.accepted),
        rejected=_by_code(gather),
        round_s=round_s,
        train_s=timer.seconds(PhaseName.TRAIN),
        stage_s=timer.seconds(PhaseName.STAGE),
        upload_s=timer.seconds(PhaseName.UPLOAD),
        wait_s=timer.seconds(PhaseName.WAIT),
        apply_s=timer.seconds(PhaseName.APPLY),
        exposed_communication_s=exposed_s,
        communication_ratio=exposed_s / round_s if round_s > 0 else 0.0,
        gather_latency_s={p.text: g.latency_s for p, g in gather.accepted.items() if p != run.me},
        downloads=_downloads(transfers),
        uploaded_bytes=sum(t.num_bytes for t in transfers if t.direction == "up"),
        downloaded_bytes=sum(t.num_bytes for t in transfers if t.direction == "down"),
        payload_bytes=run.manifest.payload_bytes,
        dense_bytes=4 * sum(run.manifest.sizes),
        inner_steps=0 if result is None else result.steps,
        tokens=0 if result is None else result.tokens,
        first_loss=None if result is None else _finite(result.first_loss),
        mean_loss=None if result is None else _finite(result.mean_loss),
        last_loss=None if result is None else _finite(result.last_loss),
        held_out_loss=notes.held_out_loss,
        relative_squared_error=stats.relative_squared_error if stats else None,
        mean_ratio=stats.mean_ratio if stats else None,
        pseudo_gradient_norm=notes.pseudo_gradient_norm,
        residual_norm=stats.residual_norm if stats else None,
        update_norm=notes.update_norm,
        agreement_ratio=_agreement(notes.aggregated),
        clip_weight_ratio=None if own_weight is None else own_weight / FULL_WEIGHT,
    )


def _by_code(gather: RoundGather) -> Mapping[str, int]:
    codes = [rejected.code.value for rejected in gather.rejected.values()]
    return {code: codes.count(code) for code in sorted(set(codes))}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _downloads(transfers: Sequence[Transfer]) -> Mapping[str, PeerTransfer]:
    found: dict[str, PeerTransfer] = {}
    for t in transfers:
        if t.direction == "down" and t.kind in ("payload", "copy") and t.num_bytes > 0:
            old = found.get(t.peer, PeerTransfer(num_bytes=0, transfer_s=0.0))
            found[t.peer] = PeerTransfer(
                num_bytes=old.num_bytes + t.num_bytes, transfer_s=old.transfer_s + t.total_s
            )
    return found


def _agreement(aggregated: Aggregate | None) -> float | None:
    """Rho (see the report): 1 when all payloads are equal, near 1/sqrt(R) when unrelated."""
    if aggregated is None:
        return None
    clipped = sum(n * w for n, w in zip(aggregated.norms, aggregated.weights, strict=True))
    squared = sum(float(np.square(p.sums.astype(np.float64)).sum()) for p in aggregated.sums)
    return math.sqrt(squared) / clipped if clipped else None
