"""LoRA beside the layers of a model of the transformers library, by the peft library."""

from __future__ import annotations

import json
import warnings
from typing import Any

import torch

from cpplm.core.errors import UserError, import_extra
from cpplm.model.settings import LoraSettings


def with_adapter(model: Any, lora: LoraSettings, seed: int = 0) -> Any:
    """The model, frozen, with a LoRA adapter beside its linear layers.

    Raises:
        UserError: `peft` is not installed, or no layer has a name that ends as asked.
    """
    peft = import_extra("peft", "--lora_rank needs", "hf")
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.lora_rank,
        lora_alpha=lora.lora_alpha,
        target_modules=list(lora.lora_targets) or "all-linear",
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.simplefilter("ignore")  # of transposed weights, which it deals with
        try:
            return peft.get_peft_model(model, config)
        except ValueError as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"--lora_targets {' '.join(lora.lora_targets)}: {reason}") from error


def adapter_record(model: Any) -> dict[str, Any]:
    """The file `adapter_config.json` of a `PeftModel`."""
    record = {**model.peft_config["default"].to_dict(), "inference_mode": True}
    return json.loads(json.dumps(record, default=sorted))  # targets are a set
