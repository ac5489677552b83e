"""One frozen report per round; every log line, table and picture derives from it.

Guarantees: the field names are the metric names. Does not do: I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerTransfer:
    """What one peer's objects cost in one round."""

    num_bytes: int
    transfer_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundReport:
    """One node's view of one round. NaN is never used: what was not measured is None."""

    round_id: int
    role: str
    state_hash: str
    """Hex; equal on all nodes that applied the same records."""
    void: bool
    counted: bool
    """This node's payload is in the record."""
    replayed: bool
    """The record existed before this node began the round: catching up."""
    num_counted: int
    num_accepted: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Number of refused payloads by code."""

    round_s: float
    train_s: float
    stage_s: float
    upload_s: float
    wait_s: float
    """From the end of the upload to the record: others still train."""
    apply_s: float
    exposed_communication_s: float
    """Time with a transfer going on while this node did not compute."""
    communication_ratio: float
    """exposed_communication_s / round_s."""

    gather_latency_s: Mapping[str, float] = field(default_factory=dict)
    """By peer: from its announcement's appearance to its verified payload."""
    downloads: Mapping[str, PeerTransfer] = field(default_factory=dict)
    """By peer, payload bytes and the time they took."""
    uploaded_bytes: int
    downloaded_bytes: int
    payload_bytes: int
    """Exact length of one payload on the wire and on disk."""
    dense_bytes: int
    """The same pseudo-gradient as plain fp32."""

    inner_steps: int = 0
    tokens: int = 0
    first_loss: float | None = None
    mean_loss: float | None = None
    last_loss: float | None = None
    held_out_loss: float | None = None

    relative_squared_error: float | None = None
    """Of quantisation: sum (v - q)^2 / sum v^2 over the kept values."""
    mean_ratio: float | None = None
    """sum q v / sum v^2 over the kept values."""
    pseudo_gradient_norm: float | None = None
    residual_norm: float | None = None
    update_norm: float = 0.0
    agreement_ratio: float | None = None
    """rho: norm of the summed update / (number of payloads * their mean clipped norm)."""
    clip_weight_ratio: float | None = None
    """This node's clip weight, 0 to 1."""
