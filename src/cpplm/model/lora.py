"""Low-rank adaptation (LoRA, Hu et al. 2021, arXiv 2106.09685): frozen matrices with trained updates.

W x becomes W x + alpha / rank * B A x, where A (rank rows) starts random and B (rank columns) at zero, so
that the model is at first what it was. Files hold A and B as the PEFT library writes them, by the names that
the modules have in our export for `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.model.config import ModelConfig
from cpplm.model.layers import Linear
from cpplm.model.settings import LoraSettings
from cpplm.model.transformer import Transformer

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TARGETS = (
    "attention.query", "attention.key", "attention.value", "attention.output",
    "mlp.gate", "mlp.up", "mlp.down",
)  # fmt: skip
# PEFT's wrapper, and the decoder in the model for transformers (`cpplm.export.remote_code`).
_PREFIX = "base_model.model.model.decoder."


class LoraLinear(Linear):
    """A frozen matrix with its update. Names are PEFT's: `lora_A.weight` and `lora_B.weight`."""

    def __init__(self, frozen: Linear, rank: int, alpha: float) -> None:
        super().__init__(frozen.in_features, frozen.out_features)
        self.weight = frozen.weight
        self.lora_A = Linear(frozen.in_features, rank)
        self.lora_B = Linear(rank, frozen.out_features)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return super().forward(x) + self.scale * self.lora_B(self.lora_A(x))


def add_lora(model: Transformer, settings: LoraSettings, *, seed: int) -> None:
    """Freeze a model and put updates beside its matrices, in place.

    Args:
        model: on its device.
        settings: rank above 0.
        seed: of A; B is zero.

    Raises:
        UserError: a target is no matrix of the blocks.
    """
    targets = _target_names(model, settings)
    model.requires_grad_(False)
    random = torch.Generator().manual_seed(seed)  # on the CPU: the same numbers for every device
    for name in targets:
        linear = model.get_submodule(name)
        assert isinstance(linear, Linear)  # noqa: S101  (see `_target_names`)
        with torch.device(linear.weight.device):
            adapted = LoraLinear(linear, settings.lora_rank, settings.lora_alpha)
        model.set_submodule(name, adapted)
        bound = linear.in_features**-0.5  # PEFT's
        start = torch.empty(settings.lora_rank, linear.in_features, device="cpu")
        with torch.no_grad():
            adapted.lora_A.weight.copy_(start.uniform_(-bound, bound, generator=random))
            adapted.lora_B.weight.zero_()


def check_targets(config: ModelConfig, settings: LoraSettings) -> None:
    """Refuse targets that a model of this shape does not have.

    Raises:
        UserError: it is one.
    """
    with torch.device("meta"):
        _target_names(Transformer(config), settings)


def _target_names(model: Transformer, settings: LoraSettings) -> list[str]:
    """The modules to adapt, in order. Heads for further tokens are not: no export has them."""
    named = model.blocks.named_modules(prefix="blocks")
    names = [name for name, module in named if isinstance(module, Linear)]
    for target in settings.lora_targets:
        if not any(_matches(name, (target,)) for name in names):
            raise UserError(
                f"--lora_targets {target} is no matrix of the model's blocks",
                fix=f"Usual ones are {', '.join(TARGETS)}.",
            )
    return [name for name in names if _matches(name, settings.lora_targets or TARGETS)]


def _matches(name: str, targets: tuple[str, ...]) -> bool:
    """As PEFT: the whole name or its last parts. A layer's number does not count: all layers are alike."""
    inner = name.split(".", 2)[2]
    return any(inner == target or inner.endswith(f".{target}") for target in targets)


def adapter_config(model: Transformer, settings: LoraSettings) -> dict[str, Any]:
    """The adapter of a model as PEFT's `LoraConfig` records it."""
    adapted = [name for name, module in model.named_modules() if isinstance(module, LoraLinear)]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": settings.lora_rank,
        "lora_alpha": settings.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.split(".", 2)[2] for name in adapted}),
        "inference_mode": True,
    }


def adapter_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the state of a model those of its adapter, by PEFT's names."""
    return {_PREFIX + name: tensor for name, tensor in state.items() if ".lora_" in name}


def load_adapter(model: Transformer, tensors: Mapping[str, Tensor]) -> None:
    """Fill in what `adapter_tensors` gave.

    Raises:
        RuntimeError: they are not those of this adapter.
    """
    own = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    model.load_state_dict({**model.state_dict(), **own}, strict=True)


def merge_adapter(
    weights: Mapping[str, Tensor], adapter: Mapping[str, Tensor], config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The weights of a model that needs no adapter: W + alpha / rank * B A.

    Raises:
        KeyError, RuntimeError: the adapter is of another model.
    """
    merged = dict(weights)
    for key in adapter:
        if key.endswith(".lora_A.weight"):
            name = key.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
            update = adapter[f"{_PREFIX}{name}.lora_B.weight"] @ adapter[key]
            merged[f"{name}.weight"] = weights[f"{name}.weight"] + config["lora_alpha"] / config["r"] * update
    return merged
