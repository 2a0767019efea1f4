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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
from cpplm.train.checkpoint.weights import MAX_FILE_BYTES, load_model

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FILES = {"config.json", WEIGHTS, INDEX, "generation_config.json", "README.md", *tokenizer_export.FILES}
_NUMBERED = re.compile(r"model-\d{5}-of-\d{5}\.safetensors|\w+_cpplm\.py")
# What ends a text, and an assistant's turn.
ENDS = (EOS, BOS, SPECIAL_IDS["<|assistant_end|>"])
SUPPRESSED = [id_ for id_ in range(NUM_SPECIAL) if id_ not in ENDS]
"""Never generated, as by our own engine (`cpplm.generate.sequence`)."""

Dtype = Literal["float32", "bfloat16"]


class Architecture(NamedTuple):
    """What computes an exported model, and what it wants."""

    name: str
    config: Callable[[ModelConfig], dict[str, Any]]
    weights: Callable[[ModelConfig, Mapping[str, Tensor]], dict[str, Tensor]]
    source_files: Callable[[], dict[str, bytes]]


OURS = Architecture(
    remote_code.ARCHITECTURE,
    remote_code.exported_config,
    remote_code.exported_weights,
    remote_code.source_files,
)
LLAMA = Architecture(llama.ARCHITECTURE, llama.exported_config, llama.exported_weights, dict)


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
    architecture: Architecture = OURS,
    dtype: Dtype = "float32",
    compressed: bool = False,
    overwrite: bool = False,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> ExportResult:
    """Write the folder, whole or not at all.

    Args:
        checkpoint: of the model.
        out: the folder.
        run: where the checkpoint is from, for the model card.
        architecture: that computes it; a model that is no plain Llama is for `OURS` alone.
        dtype: of the weights; float32 is what training keeps.
        compressed: keep the bits of a quantised model, as compressed-tensors has them; of `LLAMA` alone.
        overwrite: replace an earlier export.
        max_file_bytes: weights are split before a file grows larger; a single tensor never is.

    Raises:
        UserError: the model is no plain Llama, `out` may not be written, the disk is full, or the checkpoint
            is damaged.
    """
    if architecture is LLAMA:
        llama.refuse_other_models(checkpoint.config())
    with atomic_directory(out, overwrite=overwrite, known=is_exported) as folder:
        model = load_model(checkpoint, device=torch.device("cpu"), compute_dtype=torch.float32)
        weights = architecture.weights(model.config, model.state_dict())
        parameters = sum(weight.numel() for weight in weights.values() if weight.is_floating_point())
        more: dict[str, Any] = {"dtype": dtype}
        if compressed:
            weights, more["quantization_config"] = compressed_llama(checkpoint, getattr(torch, dtype))
        else:
            weights = _cast(weights, dtype)
        _write_folder(
            folder, model.config, weights, checkpoint.tokenizer(), architecture, more, max_file_bytes
        )
        result = ExportResult(
            out=out,
            step=checkpoint.step,
            left_out=left_out(model.config),
            bytes=sum(weight.nbytes for weight in weights.values()),
            parameters=parameters,
        )
        card = model_card(
            checkpoint, run,
            architecture=architecture.name, remote_code=architecture is OURS,
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
        weights = _cast(OURS.weights(model.config, model.state_dict()), "float32")
        more = {"dtype": "float32"}
        _write_folder(folder, model.config, weights, tokenizer, OURS, more, MAX_FILE_BYTES)


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
    folder: Path, config: ModelConfig, weights: Mapping[str, Tensor], tokenizer: Tokenizer,
    architecture: Architecture, more: Mapping[str, Any], max_file_bytes: int,
) -> None:  # fmt: skip
    """Everything but the card; `more` is for `config.json`."""
    storage = Storage(folder)
    write_weights(storage, weights, max_file_bytes)
    tokenizer_export.export_hf(tokenizer, folder)
    storage.write_json("config.json", {**architecture.config(config), **_COMMON, **more})
    storage.write_json("generation_config.json", {**_TOKENS, "suppress_tokens": SUPPRESSED})
    for name, source in architecture.source_files().items():
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
