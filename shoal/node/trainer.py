"""The inner loop: H AdamW steps from the base parameters, alone.

Guarantees: the learning rate is a pure function of the run's inner step number, so that peers that
restarted, joined late or were interrupted agree on it; a batch without labels is skipped; a loss or
a gradient that is not finite stops the node's round, never reaches a payload; the loop ends after H
steps, at the deadline, or when it is interrupted, whichever is first, and says which.

Does not do: choose data (see `data.assignment`), or touch the network. AdamW's state is kept from
round to round and never sent (SparseLoCo, arXiv 2508.15706; DiLoCo, arXiv 2311.08105).
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.node.data.batches import Batch
from shoal.node.errors import HaltError
from shoal.node.model import CausalLM, parameters_of
from shoal.protocol.manifest import TrainingSection

BatchSource = Callable[[int], Batch]
"""Gives the batch of inner step 0, 1, ... of the round in progress."""


class EndReason(StrEnum):
    """Why the inner loop ended."""

    ALL_STEPS = "all-steps"
    DEADLINE = "deadline"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True, slots=True)
class InnerResult:
    """What one inner loop did."""

    steps: int
    tokens: int
    first_loss: float
    mean_loss: float
    last_loss: float
    """NaN where no step was made."""
    reason: EndReason


def learning_rate(step: int, total_steps: int, section: TrainingSection) -> float:
    """Linear warm-up, then cosine down to `min_lr_ratio`.

    Args:
        step: the inner step, counted from 0 over the whole run.
        total_steps: inner steps of the whole run.
        section: the manifest's training section.
    """
    if step < section.warmup_steps:
        return section.learning_rate * (step + 1) / section.warmup_steps
    span = max(total_steps - section.warmup_steps, 1)
    progress = min((step - section.warmup_steps) / span, 1.0)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return section.learning_rate * (section.min_lr_ratio + (1 - section.min_lr_ratio) * cosine)


class Trainer:
    """A model, its AdamW and nothing else. One thread at a time may use it."""

    def __init__(self, model: CausalLM, section: TrainingSection, num_rounds: int) -> None:
        self.model = model
        self.section = section
        self.total_steps = num_rounds * section.inner_steps
        self.optimizer = torch.optim.AdamW(
            parameters_of(model),
            lr=section.learning_rate,
            betas=(section.beta1, section.beta2),
            weight_decay=section.weight_decay,
        )

    def load_base(self, base: Sequence[npt.NDArray[np.float32]]) -> None:
        """Overwrites the model's parameters with flat base parameters, payload order."""
        with torch.no_grad():
            for parameter, flat in zip(parameters_of(self.model), base, strict=True):
                parameter.copy_(torch.from_numpy(flat).view(parameter.shape))

    def move(
        self, start: Sequence[npt.NDArray[np.float32]], to: Sequence[npt.NDArray[np.float32]]
    ) -> None:
        """Adds `to` - `start` to the model's parameters: the steps made since `start` stay."""
        with torch.no_grad():
            for parameter, old, new in zip(parameters_of(self.model), start, to, strict=True):
                shift = torch.from_numpy(new - old).view(parameter.shape)
                parameter.add_(shift.to(parameter.device))

    def state_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """AdamW's state as named arrays, for a checkpoint; empty before the first step."""
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        for i, parameter in enumerate(parameters_of(self.model)):
            for name, value in self.optimizer.state.get(parameter, {}).items():
                arrays[f"adamw.{i}.{name}"] = value.detach().cpu().numpy().copy()
        return arrays

    def load_state_arrays(self, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Takes AdamW's state back; arrays of other names are ignored."""
        for i, parameter in enumerate(parameters_of(self.model)):
            names = ("step", "exp_avg", "exp_avg_sq")
            if f"adamw.{i}.step" in arrays:
                self.optimizer.state[parameter] = {
                    name: torch.from_numpy(np.array(arrays[f"adamw.{i}.{name}"])) for name in names
                }

    def run(
        self,
        round_id: int,
        batches: BatchSource,
        *,
        out_of_time: Callable[[], bool],
        interrupt: threading.Event,
        on_step: Callable[[int, float], None],
        before_step: Callable[[], None] = lambda: None,
    ) -> InnerResult:
        """Trains the model in place.

        Args:
            round_id: the round, for the schedule.
            batches: gives the batch of step 0, 1, ...
            out_of_time: True once `publish_by` has passed.
            interrupt: set from another thread to end the loop after the step in progress.
            on_step: called after every step with the number of steps made and the loss.
            before_step: called between steps, when the model may be moved.

        Raises:
            HaltError: the loss or the gradient is not finite.
        """
        losses: list[float] = []
        tokens = 0
        reason = EndReason.ALL_STEPS
        self.model.train()
        for step in range(self.section.inner_steps):
            if interrupt.is_set() or out_of_time():
                reason = EndReason.INTERRUPTED if interrupt.is_set() else EndReason.DEADLINE
                break
            before_step()
            batch = batches(step)
            if not batch.is_trainable:
                continue
            lr = learning_rate(
                (round_id - 1) * self.section.inner_steps + step, self.total_steps, self.section
            )
            losses.append(self._step(batch, lr))
            tokens += batch.inputs.size
            on_step(len(losses), losses[-1])
        return _result(losses, tokens, reason)

    def evaluate(self, batch: Batch) -> float:
        """Mean loss over a batch with the model's present parameters."""
        self.model.eval()
        with torch.no_grad():
            return float(self._loss(batch))

    def _loss(self, batch: Batch) -> Tensor:
        device = parameters_of(self.model)[0].device
        inputs = torch.from_numpy(batch.inputs).to(device)
        loss: Tensor = self.model(inputs, torch.from_numpy(batch.labels).to(device))
        return loss

    def _step(self, batch: Batch, lr: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch)
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(
            parameters_of(self.model), self.section.grad_clip, error_if_nonfinite=False
        )
        value = float(loss.detach())
        if not (math.isfinite(value) and math.isfinite(float(norm))):
            raise HaltError(
                f"training diverged: loss {value}, gradient norm {float(norm)}; "
                "lower training.learning_rate or training.grad_clip in a new run"
            )
        self.optimizer.step()
        return value


def _result(losses: list[float], tokens: int, reason: EndReason) -> InnerResult:
    return InnerResult(
        steps=len(losses),
        tokens=tokens,
        first_loss=losses[0] if losses else math.nan,
        mean_loss=sum(losses) / len(losses) if losses else math.nan,
        last_loss=losses[-1] if losses else math.nan,
        reason=reason,
    )
