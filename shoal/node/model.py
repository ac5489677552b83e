"""The language model: transformers enters here and nowhere else.

Guarantees: only architectures that transformers itself ships, built from the manifest's settings,
with no network and no remote code; parameters are fp32 on the CPU, named and ordered as
`named_parameters` lists them (tied weights once).

Does not do: load weights from anywhere (see `parameters`), or know about training.
"""

import os
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from shoal.node.errors import ConfigError
from shoal.protocol.manifest import ModelSection, TensorSection

# Set before transformers is imported (inside the functions): it must never ask a hub for anything.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# Sizes beyond these are a mistake or an attack: they are checked before anything is allocated.
_MAX_SETTING = 1 << 24
# What transformers raises for settings that do not fit together.
_REFUSALS = (ValueError, TypeError, KeyError, RuntimeError, AttributeError, ZeroDivisionError)


class CausalLM(nn.Module):
    """A causal language model whose forward pass gives the mean loss over labelled tokens."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy, a float32 scalar.

        Args:
            inputs: (B, T) int64 token ids.
            labels: (B, T) int64 next-token ids, -100 where there is none; already shifted.
        """
        logits = self.inner(input_ids=inputs, use_cache=False).logits
        return nn.functional.cross_entropy(
            logits.float().reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100
        )


def build_model(section: ModelSection, vocab_size: int, seed: int) -> CausalLM:
    """A model with fresh parameters drawn from `seed`.

    Args:
        section: architecture and settings from the plan or the manifest.
        vocab_size: number of token ids of the run's tokenizer.
        seed: of torch's generator; the same seed gives the same parameters on one machine only,
            which is why they are stored once as the genesis.

    Raises:
        ConfigError: transformers does not know the architecture or refuses the settings.
    """
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM  # noqa: PLC0415  # slow import

    settings = dict(section.settings.as_dict())
    _check_settings(section.model_type, settings, CONFIG_MAPPING)
    try:
        config = CONFIG_MAPPING[section.model_type](**settings, vocab_size=vocab_size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:  # transformers refuses settings with many classes
        reason = " ".join(str(error).split())
        raise ConfigError(
            "the run's model", "model.settings", f"settings of {section.model_type}", reason
        ) from error
    return CausalLM(model)


def tensor_table(model: CausalLM) -> tuple[TensorSection, ...]:
    """Names and shapes of the parameters, in payload order."""
    return tuple(
        TensorSection(name=name, shape=tuple(parameter.shape))
        for name, parameter in model.inner.named_parameters()
    )


def parameters_of(model: CausalLM) -> list[Tensor]:
    """The live parameters, in payload order."""
    return [parameter for _, parameter in model.inner.named_parameters()]


def _check_settings(
    model_type: str, settings: Mapping[str, object], known: Mapping[str, object]
) -> None:
    if model_type not in known:
        raise ConfigError(
            "the run's model", "model.model_type", "an architecture of transformers", model_type
        )
    for name, value in settings.items():
        if isinstance(value, int) and abs(value) > _MAX_SETTING:
            raise ConfigError(
                "the run's model",
                f"model.settings.{name}",
                f"a number up to {_MAX_SETTING}",
                str(value),
            )
