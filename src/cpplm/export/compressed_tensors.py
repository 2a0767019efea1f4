"""Packed weights in the format of the library compressed-tensors, with which transformers and vLLM load them.

NAME.weight of a linear layer becomes NAME.weight_packed (whole numbers of 4 or 8 bits, counted from the
least one, eight or four in an int32, the first in its lowest bits), NAME.weight_scale, NAME.weight_shape. A
weight is such a number times the scale of its group. Levels without 0, as those of half4, are odd numbers of
half steps, for which half4 takes 8 bits. All else has plain numbers, embeddings and heads tied to them too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.export import llama
from cpplm.export.atomic_directory import atomic_directory
from cpplm.export.hf_files import copy_companions, is_of_folder, write_weights
from cpplm.model.quantized.directory import is_packed, read_packed
from cpplm.model.quantized.packing import QuantizedWeight, dense_weights, pack_codes, quantized_weights
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint
from cpplm.train.checkpoint.weights import load_tensors

_BITS = (4, 8)  # what those that load them have kernels for


def export_packed_directory(source: Path, out: Path, *, dtype: torch.dtype, overwrite: bool) -> int:
    """Write a packed directory of `compress quantize hf:DIR`, whole or not at all; the bytes of its weights.

    Raises:
        UserError: it is none, has formats that there are not here, or `out` may not be written.
    """
    if not is_packed(source):
        raise UserError(f"{source} is no packed directory", fix="Make one: 'cpplm compress quantize hf:DIR'.")
    quantized, plain = _split(*read_packed(source), where=str(source))
    weights, record = compressed(quantized, plain, dtype)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    with atomic_directory(out, overwrite=overwrite, known=is_of_folder) as folder:
        write_weights(Storage(folder), weights)
        copy_companions(source, folder)
        more = {"quantization_config": record, "dtype": str(dtype).removeprefix("torch.")}
        Storage(folder).write_json("config.json", {**config, **more})
    return sum(weight.nbytes for weight in weights.values())


def compressed_llama(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of a packed checkpoint of a plain Llama, and its "quantization_config"; see `compressed`.

    Raises:
        UserError: it is not quantised, or has formats that there are not here.
    """
    if QUANTIZATION not in checkpoint.files:
        raise UserError(f"{checkpoint.path()} is not quantised", fix="Use 'cpplm compress quantize' first.")
    tensors, config = load_tensors(checkpoint, "model.safetensors"), checkpoint.config()
    quantized, plain = _split(tensors, checkpoint.json(QUANTIZATION), where=checkpoint.path())
    renamed = {}
    for name, weight in quantized.items():
        codes, scales = (
            llama.renamed_weights(config, {f"{name}.weight": part}) for part in (weight.codes, weight.scales)
        )
        for new in codes:
            renamed[new.removesuffix(".weight")] = QuantizedWeight(weight.format, codes[new], scales[new])
    plain = llama.renamed_weights(config, plain) | llama.norm_weights(config)
    return compressed(renamed, plain, dtype)


def _split(
    tensors: Mapping[str, Tensor], record: Mapping[str, Any], *, where: str
) -> tuple[dict[str, QuantizedWeight], dict[str, Tensor]]:
    """The quantised linear layers by name, and all else in plain numbers."""
    quantized = quantized_weights(tensors, record, where=where)
    linear = {name: weight for name, weight in quantized.items() if weight.scales.dim() == 2}
    plain = dense_weights(tensors, quantized)
    return linear, {
        name: weight for name, weight in plain.items() if name.removesuffix(".weight") not in linear
    }


def compressed(
    quantized: Mapping[str, QuantizedWeight], plain: Mapping[str, Tensor], dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, and the "quantization_config" of its `config.json`.

    Args:
        quantized: linear layers by name.
        plain: all other weights.
        dtype: of these and of scales.

    Raises:
        UserError: a format that compressed-tensors does not have.
    """
    written = {
        name: weight.to(dtype) if weight.is_floating_point() else weight for name, weight in plain.items()
    }
    schemes: dict[tuple[int, int], list[str]] = {}
    for name, weight in quantized.items():
        bits, tensors = _pack(name, weight, dtype)
        written |= {f"{name}.{part}": tensor for part, tensor in tensors.items()}
        schemes.setdefault((bits, weight.format.group_size), []).append(name)
    groups = {
        f"group_{number}": {
            "targets": ["Linear"] if len(schemes) == 1 else names,
            "weights": {
                "num_bits": bits, "type": "int", "symmetric": True, "dynamic": False,
                "strategy": "group", "group_size": group_size,
            },
        }
        for number, ((bits, group_size), names) in enumerate(schemes.items())
    }  # fmt: skip
    matrices = {name.removesuffix(".weight") for name, weight in plain.items() if weight.dim() == 2}
    return {name: tensor.contiguous() for name, tensor in written.items()}, {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": sorted((matrices | {"lm_head"}) - quantized.keys()),
    }


def _pack(name: str, weight: QuantizedWeight, dtype: torch.dtype) -> tuple[int, dict[str, Tensor]]:
    """The bits of a number, and the tensors of a layer."""
    book = weight.format.codebook
    if not book.unit or weight.format.group_size == 1:
        raise UserError(
            f"{name} is {weight.format}; compressed-tensors has even levels and groups alone",
            fix="Use a recipe such as q4_0 or int8.",
        )
    steps = 1 if book.zero.is_integer() else 2  # of a level
    values = weight.codes.long() * steps - round(book.zero * steps)
    most = max(book.zero, len(book.levels) - 1 - book.zero) * steps
    bits = next(bits for bits in _BITS if most <= 2 ** (bits - 1))
    packed = pack_codes(values + 2 ** (bits - 1), bits)
    return bits, {
        "weight_packed": packed.view(torch.int32).view(len(values), -1),
        "weight_scale": (weight.scales / (book.unit * steps)).to(dtype),
        "weight_shape": torch.tensor(values.shape),
    }
