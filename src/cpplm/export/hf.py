"""A checkpoint as a folder that `transformers` loads.

FOLDER/config.json                     shape; names the architecture
       model.safetensors               weights; above 5 GB several files and `model.safetensors.index.json`
       generation_config.json          which tokens end a text, which are never generated
       tokenizer.json, tokenizer_config.json   see `cpplm.tokenizer.export`; with the chat template
       README.md                       the model card
       configuration_cpplm.py, ...     modeling code, see `remote_code.py`; a plain Llama needs none
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.export import llama, remote_code
from cpplm.export.atomic_directory import atomic_directory
from cpplm.export.card import model_card
from cpplm.export.compressed_tensors import compressed_llama
from cpplm.export.hf_files import write_weights
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer import export as tokenizer_export
from cpplm.tokenizer.special_tokens import BOS, EOS, NUM_SPECIAL, PAD, SPECIAL_IDS
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.weights import load_model

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FILES = {"config.json", WEIGHTS, INDEX, "generation_config.json", "README.md", *tokenizer_export.FILES}
_NUMBERED = re.compile(r"model-\d{5}-of-\d{5}\.safetensors|\w+_cpplm\.py")
# What ends a text, and an assistant's turn.
ENDS = (EOS, BOS, SPECIAL_IDS["<|assistant_end|>"])
SUPPRESSED = [id_ for id_ in range(NUM_SPECIAL) if id_ not in ENDS]
"""Never generated, as by our own engine (`cpplm.generate.sequence`)."""

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ExportResult:
    """Facts of what was written."""

    out: Path
    step: int
    left_out: list[str]
    """Parts of the model that are not exported, in words."""
    bytes: int
    """Of the weights."""
    parameters: int


def export_to_hf(
    checkpoint: Checkpoint,
    out: Path,
    *,
    run: str = "",
    as_llama: bool = False,
    dtype: Dtype = "float32",
    compressed: bool = False,
    overwrite: bool = False,
) -> ExportResult:
    """Write the folder, whole or not at all.

    Args:
        checkpoint: of the model.
        out: the folder.
        run: where the checkpoint is from, for the model card.
        as_llama: for `LlamaForCausalLM` instead of our modeling code; for a plain Llama alone.
        dtype: of the weights; float32 is what training keeps.
        compressed: keep the bits of a quantised model, as compressed-tensors has them; with `as_llama` alone.
        overwrite: replace an earlier export.

    Raises:
        UserError: the model is no plain Llama, `out` may not be written, the disk is full, or the checkpoint
            is damaged.
    """
    architecture = llama if as_llama else remote_code
    if as_llama:
        llama.refuse_other_models(checkpoint.config())
    with atomic_directory(out, overwrite=overwrite, known=is_exported) as folder:
        model = load_model(checkpoint, device=torch.device("cpu"), compute_dtype=torch.float32)
        weights = architecture.exported_weights(model.config, model.state_dict())
        parameters = sum(weight.numel() for weight in weights.values() if weight.is_floating_point())
        config = {**architecture.exported_config(model.config), **_COMMON, "dtype": dtype}
        if compressed:
            weights, config["quantization_config"] = compressed_llama(checkpoint, getattr(torch, dtype))
        else:
            weights = _cast(weights, dtype)
        sources = {} if as_llama else remote_code.source_files()
        _write_folder(folder, weights, checkpoint.tokenizer(), config, sources)
        result = ExportResult(
            out=out,
            step=checkpoint.step,
            left_out=left_out(model.config),
            bytes=sum(weight.nbytes for weight in weights.values()),
            parameters=parameters,
        )
        card = model_card(
            checkpoint, run,
            architecture=architecture.ARCHITECTURE, remote_code=not as_llama,
            left_out=result.left_out, dtype=dtype, parameters=result.parameters,
        )  # fmt: skip
        Storage(folder).write("README.md", card.encode())
    return result


def export_model(model: Transformer, tokenizer: Tokenizer, out: Path) -> None:
    """Write the folder of a model in training, whole or not at all: float32, without a card.

    Raises:
        UserError: `out` may not be written, or the disk is full.
    """
    with atomic_directory(out, overwrite=True, known=is_exported) as folder:
        weights = _cast(remote_code.exported_weights(model.config, model.state_dict()), "float32")
        config = {**remote_code.exported_config(model.config), **_COMMON, "dtype": "float32"}
        _write_folder(folder, weights, tokenizer, config, remote_code.source_files())


def load_exported(folder: Path, like: Transformer) -> Transformer:
    """The model in a folder of ours, on the device and in the precision of another of the same shape.

    Raises:
        UserError: no such folder, or a model of another shape.
    """
    config = dataclasses.replace(like.config, mtp=None)
    try:
        shape = json.loads((folder / "config.json").read_text()).get("shape")
        files = [
            safetensors.torch.load_file(file, device="cpu") for file in sorted(folder.glob("*.safetensors"))
        ]
    except (OSError, ValueError, AttributeError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder} is no exported model: {error}") from error
    if shape != json.loads(json.dumps(remote_code.exported_config(config)["shape"])):
        raise UserError(f"{folder} has a model of another shape than the one that is served")
    with torch.device("meta"):
        model = Transformer(config, compute_dtype=like.compute_dtype)
    model.to_empty(device=like.device)
    weights = {name: weight for file in files for name, weight in file.items()}
    try:
        model.load_state_dict(remote_code.imported_weights(config, weights))
    except RuntimeError as error:
        raise UserError(f"{folder}: {error}") from error
    return model


def _write_folder(
    folder: Path, weights: Mapping[str, Tensor], tokenizer: Tokenizer, config: Mapping[str, Any],
    sources: Mapping[str, bytes],
) -> None:  # fmt: skip
    """Everything but the card: `config` becomes `config.json`, `sources` are Python files."""
    storage = Storage(folder)
    write_weights(storage, weights)
    tokenizer_export.export_hf(tokenizer, folder)
    storage.write_json("config.json", config)
    storage.write_json("generation_config.json", {**_TOKENS, "suppress_tokens": SUPPRESSED})
    for name, source in sources.items():
        storage.write(name, source)


_TOKENS: dict[str, Any] = {"bos_token_id": BOS, "eos_token_id": list(ENDS), "pad_token_id": PAD}
_COMMON: dict[str, Any] = {**_TOKENS, "tie_word_embeddings": False, "use_cache": True}


def left_out(config: ModelConfig) -> list[str]:
    """Parts of a model that no export has, in words."""
    count = config.mtp.depth if config.mtp else 0
    return [f"{count} head{'s' * (count > 1)} for further tokens (MTP)"] if count else []


def is_exported(name: str) -> bool:
    """True for the name of a file of an export."""
    return name in FILES or _NUMBERED.fullmatch(name) is not None


def _cast(weights: Mapping[str, Tensor], dtype: Dtype) -> dict[str, Tensor]:
    """Weights in a dtype, but for integers."""
    to = getattr(torch, dtype)
    return {
        name: (weight.to("cpu", to) if weight.is_floating_point() else weight.cpu()).contiguous()
        for name, weight in weights.items()
    }
