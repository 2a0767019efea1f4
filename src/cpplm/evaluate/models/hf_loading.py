"""Causal models of the transformers library from local directories, packed ones of ours too.

Weights are read from safetensors alone, none of a directory's code runs, nothing is looked up on a network.
The library itself, which looks for `model.safetensors`, refuses packed ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cpplm.core.errors import UserError, import_extra
from cpplm.evaluate.models.hf_tokens import HfTokens
from cpplm.generate.load import compact_layers
from cpplm.model.quantized.directory import is_packed, read_packed
from cpplm.model.quantized.packing import dense_weights, quantized_weights

# Where a configuration names its context, newest convention first.
_CONTEXT_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
)


def import_transformers() -> ModuleType:
    """The library, quiet; UserError where it is not installed."""
    transformers: ModuleType = import_extra("transformers", "models of Hugging Face need", "hf")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def read_config(transformers: ModuleType, folder: Path) -> Any:
    """The configuration of a directory.

    Raises:
        UserError: it is damaged, of another kind, or would run code.
    """
    with refuse_what_fails(folder):
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def read_model(
    transformers: ModuleType, folder: Path, dtype: torch.dtype, device: torch.device | None = None
) -> Any:
    """The causal model of a directory that `require_readable` has accepted; none of its code runs.

    Args:
        transformers: the library.
        folder: the directory.
        dtype: of its weights.
        device: for inference there; weights of few bits stay so where there are kernels for them. None for
            plain weights on the CPU.

    Raises:
        UserError: something is damaged, of another kind, or would run code; names it.
    """
    options = {"dtype": dtype, "output_loading_info": True}
    quantized = None
    if is_packed(folder):
        tensors, record = read_packed(folder)
        quantized = quantized_weights(tensors, record, where=str(folder))
        config, weights = read_config(transformers, folder), dense_weights(tensors, quantized)
        with refuse_what_fails(folder):
            model_type = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
            model, info = model_type.from_pretrained(None, config=config, state_dict=weights, **options)
    else:
        with refuse_what_fails(folder):
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder, use_safetensors=True, trust_remote_code=False, local_files_only=True, **options
            )
    wrong = [*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])]
    if wrong:
        raise UserError(
            f"{folder}: weights are missing or of another shape: {', '.join(sorted(wrong)[:3])}"
            + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        )
    if device is not None:
        model = model.to(device)
        if quantized and device.type == "cpu" and dtype == torch.bfloat16:
            compact_layers(model, quantized, device, dtype)
    return model


@contextmanager
def refuse_what_fails(folder: Path) -> Iterator[None]:
    """Raises a UserError for whatever a stranger's files make the library raise."""
    try:
        yield
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{folder} is loaded with Python code of its own, which is never run here",
                fix="Serve the model with a program that you trust to run it, and name its --url.",
            ) from error
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{folder} cannot be loaded as a causal language model: {type(error).__name__}: {reason}"
        ) from error


def context_length(config: Any, name: str) -> int:
    """The context that a configuration of `transformers` names, else UserError."""
    for key in _CONTEXT_NAMES:
        length = getattr(config, key, None)
        if isinstance(length, int) and length > 0:
            return length
    raise UserError(f"the configuration of {name} does not say how long its context is")


def start_id(config: Any, tokens: HfTokens, name: str) -> int:
    """The token that begins a document, else the one that ends it, of a tokenizer or a configuration.

    Raises:
        UserError: nothing names one.
    """
    bos_ids, eos_ids = (token_ids(config, f"{role}_token_id") for role in ("bos", "eos"))
    for id_ in (tokens.bos_id, *bos_ids, tokens.eos_id, *eos_ids):
        if id_ is not None:
            return id_
    raise UserError(f"{name} names no token that begins or ends a text (bos_token, eos_token)")


def token_ids(config: Any, name: str) -> list[int]:
    """The token ids under a name of a configuration, which may hold one, several or none."""
    value = getattr(config, name, None)
    return [id_ for id_ in (value if isinstance(value, list) else [value]) if isinstance(id_, int)]


def files_hash(folder: Path, pattern: str) -> str:
    """A hash of the names and contents of the files of a folder that match."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
