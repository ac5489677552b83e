"""What a node remembers from round to round, and its checkpoint form.

Guarantees: `to_snapshot` and `from_snapshot` are inverse to the bit: base parameters, residual,
staged payload, AdamW state, torch's random state, chain head. A snapshot of another run, manifest
or model is refused.

Does not do: I/O (see `checkpoint`), or change anything by itself: `round_steps` does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shoal.compression import CompressionError, ErrorFeedback
from shoal.node.checkpoint import Snapshot
from shoal.node.errors import CheckpointError
from shoal.node.trainer import Trainer
from shoal.protocol.chain import ChainHead
from shoal.protocol.manifest import RunManifest
from shoal.protocol.payload import PAYLOAD_PREFIX_BYTES

Flat = npt.NDArray[np.float32]
_FORMAT = "shoal/node-state/1"


@dataclass(slots=True, kw_only=True)
class LocalState:
    """Mutable: the node's own copy of everything that moves."""

    head: ChainHead
    previous_record_id: bytes
    """Of the record before the head; the head's own id at the genesis."""
    base: list[Flat]
    """Base parameters, flat float32, payload order."""
    trainer: Trainer
    feedback: ErrorFeedback | None = None
    """None on a node that does not train."""
    staged_raw: bytes | None = None
    """The whole signed payload whose residual is not settled yet."""
    frozen_trainer: dict[str, npt.NDArray[np.generic]] | None = None
    """AdamW's state for checkpoints while an inner loop that runs ahead changes the real one."""

    @property
    def trains(self) -> bool:
        """Whether this node contributes payloads."""
        return self.feedback is not None


def to_snapshot(state: LocalState, manifest: RunManifest) -> Snapshot:
    """Everything that a restart needs, as arrays and strings."""
    arrays: dict[str, npt.NDArray[np.generic]] = {
        f"base.{i}": value for i, value in enumerate(state.base)
    }
    if state.feedback is not None:
        arrays |= {f"residual.{i}": value for i, value in enumerate(state.feedback.residuals)}
        frozen = state.frozen_trainer
        arrays |= state.trainer.state_arrays() if frozen is None else frozen
        arrays["rng"] = torch.get_rng_state().numpy()
    if state.staged_raw is not None:
        arrays["staged"] = np.frombuffer(state.staged_raw, dtype=np.uint8)
    return Snapshot(
        round_id=state.head.round_id,
        arrays=arrays,
        facts={
            "format": _FORMAT,
            "run_id": manifest.run_id.hex(),
            "manifest_hash": manifest.manifest_hash.hex(),
            "record_id": state.head.record_id.hex(),
            "previous_record_id": state.previous_record_id.hex(),
            "state": state.head.state.hex(),
        },
    )


def from_snapshot(snapshot: Snapshot, state: LocalState, manifest: RunManifest) -> None:
    """Fills `state` (made for the same manifest) from a snapshot.

    Raises:
        CheckpointError: the snapshot is of another run or model, or lacks something.
    """
    _check_facts(snapshot.facts, manifest)
    try:
        _fill(snapshot, state)
    except KeyError as error:
        raise CheckpointError(f"the checkpoint lacks {error}") from error
    except (ValueError, RuntimeError, CompressionError) as error:
        raise CheckpointError(f"the checkpoint does not fit this model: {error}") from error


def _check_facts(facts: Mapping[str, str], manifest: RunManifest) -> None:
    expected = {
        "format": _FORMAT,
        "run_id": manifest.run_id.hex(),
        "manifest_hash": manifest.manifest_hash.hex(),
    }
    for name, value in expected.items():
        if facts.get(name) != value:
            raise CheckpointError(
                f"the state folder belongs to something else: {name} expected {value}, "
                f"found {facts.get(name)}; choose another state_dir"
            )


def _fill(snapshot: Snapshot, state: LocalState) -> None:
    arrays = snapshot.arrays
    for i, flat in enumerate(state.base):
        found = arrays[f"base.{i}"]
        if found.shape != flat.shape or found.dtype != flat.dtype:
            raise ValueError(f"base.{i} is {found.dtype} {found.shape}, expected {flat.shape}")
        flat[:] = found
    state.head = ChainHead(
        round_id=snapshot.round_id,
        record_id=bytes.fromhex(snapshot.facts["record_id"]),
        state=bytes.fromhex(snapshot.facts["state"]),
    )
    state.previous_record_id = bytes.fromhex(snapshot.facts["previous_record_id"])
    state.staged_raw = arrays["staged"].tobytes() if "staged" in arrays else None
    if state.feedback is None:
        return
    residuals = [arrays[f"residual.{i}"].astype(np.float32) for i in range(len(state.base))]
    body = None if state.staged_raw is None else state.staged_raw[PAYLOAD_PREFIX_BYTES:]
    state.feedback.restore(residuals, body)
    state.trainer.load_state_arrays(arrays)
    torch.set_rng_state(torch.from_numpy(arrays["rng"].astype(np.uint8)))
