"""Quantised weights in files: codes of few bits, scales in float16.

A weight NAME.weight becomes NAME.packed (bytes; the first code in the lowest bits) and NAME.scales, or the
three parts of scales of a rank. `quantization.json` beside them says which layers there are and how each is
quantised; a run of quantisation-aware training has the same file beside its latent weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cpplm.core.errors import UserError
from cpplm.model.quantized.layers import (
    CODES,
    LATENT,
    LOW_RANK,
    SCALES,
    QuantizedEmbedding,
    QuantizedLinear,
    in_blocks,
)
from cpplm.model.quantized.recipe import WeightFormat
from cpplm.model.quantized.rounding import TINY, levels_table, nearest_codes, nonzero_scales

PACKED, VERSION = "packed", 1


@dataclass(frozen=True)
class QuantizedWeight:
    """One weight: codes in its shape, uint8, and scales in float32, of rows (OG) or, flat, of blocks (B)."""

    format: WeightFormat
    codes: Tensor
    scales: Tensor

    def dequantize(self) -> Tensor:
        """The weight in float32."""
        table, size = levels_table(self.format.codebook), self.format.group_size
        levels_BN = in_blocks(table[self.codes.long()], size)
        return (levels_BN * self.scales.reshape(-1, 1)).flatten()[: self.codes.numel()].view_as(self.codes)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Codes below 2**bits in bytes, uint8, one dimension, the first in the lowest bits."""
    flat = codes.flatten().numpy().astype(np.uint8)
    planes = (flat[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return torch.from_numpy(np.packbits(planes, bitorder="little"))


def unpack_codes(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes that `pack_codes` has packed, uint8."""
    if bits == 8:
        return packed[:count]
    if bits in (2, 4):
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        return ((packed.unsqueeze(-1) >> shifts) & (2**bits - 1)).flatten()[:count]
    planes = np.unpackbits(packed.numpy(), bitorder="little")[: count * bits].reshape(count, bits)
    return torch.from_numpy((planes << np.arange(bits, dtype=np.uint8)).sum(1, dtype=np.uint8))


@torch.no_grad()
def packed_tensors(model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """The state of a model with quantised layers as a packed file holds it; other matrices in `dtype`."""
    state, tensors = model.state_dict(), dict[str, Tensor]()
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, QuantizedLinear | QuantizedEmbedding)
    }
    for name, tensor in state.items():
        owner, _, part = name.rpartition(".")
        if owner not in layers:
            is_matrix = tensor.dim() > 1 and tensor.is_floating_point()
            tensors[name] = tensor.to("cpu", dtype if is_matrix else tensor.dtype)
        elif part in (SCALES, *LOW_RANK):
            tensors[name] = tensor.cpu().half()
        elif part in (LATENT, CODES):
            weight = _read(state, owner, layers[owner].format, tuple(tensor.shape))
            tensors[f"{owner}.{PACKED}"] = pack_codes(weight.codes.cpu(), weight.format.codebook.bits)
    return tensors


def quantization_record(model: nn.Module, recipe: str, *, packed: bool) -> dict[str, Any]:
    """The record of a model in `quantization.json`."""
    layers = {
        name: {"format": str(module.format), "shape": _shape(module)}
        for name, module in model.named_modules()
        if isinstance(module, QuantizedLinear | QuantizedEmbedding)
    }
    return {"version": VERSION, "recipe": recipe, "packed": packed, "layers": layers}


def _shape(module: QuantizedLinear | QuantizedEmbedding) -> list[int]:
    if isinstance(module, QuantizedLinear):
        return [module.out_features, module.in_features]
    return [module.num_embeddings, module.embedding_dim]


def restore_layers(model: nn.Module, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Put the quantised layers of a training run into a model, and all its state, in place.

    Args:
        model: of the plain model's shape; what it holds is lost.
        tensors: as its `state_dict` was.
        record: of its `quantization.json`.

    Raises:
        RuntimeError: the tensors do not fit.
    """
    for name, entry in record["layers"].items():
        weight_format, meta = WeightFormat.parse(entry["format"]), torch.empty(entry["shape"], device="meta")
        module = model.get_submodule(name)
        if isinstance(module, nn.Embedding):
            layer: nn.Module = QuantizedEmbedding(meta, weight_format, sparse=module.sparse, init="absmax")
        else:
            frozen = f"{name}.{CODES}" in tensors
            layer = QuantizedLinear(
                meta, weight_format, init="absmax", bias=getattr(module, "bias", None), freeze_codes=frozen
            )
        model.set_submodule(name, layer)
    model.load_state_dict(tensors, strict=True, assign=True)


def quantized_weights(
    tensors: Mapping[str, Tensor], record: Mapping[str, Any], *, where: str
) -> dict[str, QuantizedWeight]:
    """The quantised weights of a file by the names of their layers.

    Raises:
        UserError: tensors are missing, or do not have the sizes that the record says.
    """
    if record.get("version") != VERSION:
        raise UserError(f"{where} has an unknown format", fix="Read it with a newer cpplm.")
    weights = {}
    for name, entry in record["layers"].items():
        weight_format = WeightFormat.parse(entry["format"])
        try:
            weights[name] = _read(tensors, name, weight_format, tuple(entry["shape"]))
        except (KeyError, RuntimeError, ValueError) as error:
            raise UserError(f"{where}: the tensors of {name} do not fit: {error}") from error
    return weights


def _read(
    tensors: Mapping[str, Tensor], name: str, weight_format: WeightFormat, shape: tuple[int, ...]
) -> QuantizedWeight:
    if f"{name}.{SCALES}" in tensors:
        scales = tensors[f"{name}.{SCALES}"].half().float()
    else:
        left_OR, right_RG, magnitude_R = (tensors[f"{name}.{part}"].half().float() for part in LOW_RANK)
        scales = ((left_OR * magnitude_R) @ right_RG).clamp(min=TINY)
    if f"{name}.{LATENT}" in tensors:
        latent = tensors[f"{name}.{LATENT}"]
        values = in_blocks(latent, weight_format.group_size) / nonzero_scales(scales).reshape(-1, 1)
        codes = nearest_codes(values, weight_format.codebook)
        codes = codes.flatten()[: latent.numel()]
    elif f"{name}.{CODES}" in tensors:
        codes = tensors[f"{name}.{CODES}"]
    else:
        count = shape[0] * shape[1]
        codes = unpack_codes(tensors[f"{name}.{PACKED}"], weight_format.codebook.bits, count)
    return QuantizedWeight(weight_format, codes.reshape(shape), scales)


def dense_weights(tensors: Mapping[str, Tensor], weights: Mapping[str, QuantizedWeight]) -> dict[str, Tensor]:
    """The state of the plain model: rounded weights where a file has the quantised ones."""
    parts = (LATENT, CODES, PACKED, SCALES, *LOW_RANK)
    own = {f"{name}.{part}" for name in weights for part in parts}
    dense = {name: tensor for name, tensor in tensors.items() if name not in own}
    return dense | {f"{name}.weight": weight.dequantize() for name, weight in weights.items()}
