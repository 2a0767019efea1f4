"""Tensors in safetensors files: those of checkpoints read and checked, any written piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.model.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, merge_adapter
from cpplm.model.quantized.packing import QuantizedWeight, dense_weights, quantized_weights
from cpplm.model.transformer import Transformer
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint, open_base

MAX_FILE_BYTES = 5_000_000_000  # many tools and some file systems dislike larger ones
_CHUNK = 16 << 20  # bytes handed over at once: large enough to cost no calls, small beside the tensors
# The names of types in safetensors files.
_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def load_tensors(checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """All tensors that were saved as `name`, such as `model.safetensors`, on the CPU.

    They may lie in several files; each is verified.
    """
    part = re.compile(rf"{re.escape(name.removesuffix('.safetensors'))}-\d{{5}}-of-\d{{5}}\.safetensors")
    tensors: dict[str, Tensor] = {}
    for file in [file for file in checkpoint.files if part.fullmatch(file)] or [name]:
        try:
            tensors |= safetensors.torch.load(checkpoint.read(file))
        except safetensors.SafetensorError as error:
            raise UserError(f"{checkpoint.path(file)}: {error}") from error
    return tensors


def load_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All weights of the model: an adapter is merged into those of its base, quantised ones are rounded.

    Raises:
        UserError: the base is gone, or not the one that the adapter was trained on.
    """
    if QUANTIZATION in checkpoint.files:
        return dense_weights(*load_quantized(checkpoint))
    if not checkpoint.is_adapter:
        return load_tensors(checkpoint, "model.safetensors")
    adapter, config = load_tensors(checkpoint, ADAPTER_WEIGHTS), checkpoint.json(ADAPTER_CONFIG)
    try:
        return merge_adapter(load_weights(open_base(checkpoint)), adapter, config)
    except (KeyError, RuntimeError) as error:
        raise UserError(f"{checkpoint.path()}: the adapter does not fit its base: {error}") from error


def load_quantized(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], dict[str, QuantizedWeight]]:
    """All tensors of a quantised model, and its quantised weights by the names of their layers.

    Raises:
        UserError: tensors are missing, or do not have the sizes that the record says.
    """
    tensors, record = load_tensors(checkpoint, "model.safetensors"), checkpoint.json(QUANTIZATION)
    return tensors, quantized_weights(tensors, record, where=checkpoint.path())


def load_model(
    checkpoint: Checkpoint,
    *,
    device: torch.device,
    compute_dtype: torch.dtype,
    weights: Mapping[str, Tensor] | None = None,
) -> Transformer:
    """The model with its weights, on `device`; `weights` where they were read already.

    Raises:
        UserError: the weights are not those of the configuration.
    """
    with torch.device("meta"):
        model = Transformer(checkpoint.config(), compute_dtype=compute_dtype)
    model.to_empty(device=device)
    try:
        model.load_state_dict(weights or load_weights(checkpoint), strict=True)
    except RuntimeError as error:
        raise UserError(f"{checkpoint.path()}: weights do not fit the configuration: {error}") from error
    return model


def split_tensors(tensors: Mapping[str, Tensor], max_bytes: int) -> list[dict[str, Tensor]]:
    """Tensors by file, in their order, as few files as that allows, and at least one."""
    parts: list[dict[str, Tensor]] = [{}]
    room = max_bytes
    for key, tensor in tensors.items():
        room -= tensor.nbytes
        if room < 0 and parts[-1]:
            parts.append({})
            room = max_bytes - tensor.nbytes
        parts[-1][key] = tensor
    return parts


def safetensors_file(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """A safetensors file, piece by piece: eight bytes of header length, the header in JSON, the data.

    The library itself writes to a path or into memory; neither can be hashed or uploaded on the way.
    """
    aligned = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    for name, tensor in aligned:
        end = position + tensor.nbytes
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in aligned:
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]
