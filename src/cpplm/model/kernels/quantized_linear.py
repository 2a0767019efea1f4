"""Linear layers whose weights stay in 2, 4 or 8 bits in memory, for decoding on a CPU in bfloat16.

A product with a few tokens waits for its weights, so that smaller ones are read sooner; one with many is
quicker, too, as products of 8 bits take half the time of bfloat16 (`quantized_matrix.h`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpplm.model.kernels.cpp_extension import load_function
from cpplm.model.kernels.small_batch_linear import GEMV, GROUP, TILE_ROWS, CompactWeight, gemv
from cpplm.model.quantized.codebooks import Codebook
from cpplm.model.quantized.packing import QuantizedWeight

_BITS = (2, 4, 8)


class CompactLinear(nn.Module):
    """A linear layer without bias, for inference, whose weight takes the bits of its codes."""

    def __init__(self, weights: Sequence[QuantizedWeight]) -> None:
        """Take weights of one format and width, below one another; see `can_compact`."""
        super().__init__()
        weight_format = weights[0].format
        codes_EC = torch.cat([weight.codes for weight in weights])
        scales_EG = torch.cat([weight.scales for weight in weights])
        scales_EG = scales_EG.repeat_interleave(weight_format.group_size // GROUP, -1)
        self.out_features, self.in_features = codes_EC.shape
        padding = (0, 0, 0, -self.out_features % TILE_ROWS)
        self.compact = CompactWeight(
            blocks_of(F.pad(codes_EC, padding), F.pad(scales_EG, padding), weight_format.codebook.bits),
            levels_of(weight_format.codebook),
            (self.out_features, self.in_features),
        )

    @property
    def weight(self) -> Tensor:
        """The weight in bfloat16, decoded for whoever reads it."""
        return self.compact.decode()

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features), bfloat16."""
        return gemv(x, self.compact)


def blocks_of(codes_EC: Tensor, scales_EG: Tensor, bits: int) -> Tensor:
    """A weight as the kernels read it, see `CompactWeight`; E is a multiple of 16, C of 32."""
    scales = scales_EG.half().unflatten(0, (-1, TILE_ROWS)).transpose(1, 2).contiguous().view(torch.uint8)
    tiles = codes_EC.unflatten(0, (-1, TILE_ROWS)).unflatten(2, (-1, bits, 8 // bits, 4))
    tiles = tiles.permute(4, 0, 2, 3, 1, 5)  # first those that share a byte
    codes = sum(part << bits * place for place, part in enumerate(tiles))
    return torch.cat([scales, codes.flatten(2)], 2)


def levels_of(book: Codebook) -> Tensor:
    """Levels as the kernels read them, see `CompactWeight`; rounded to 8 bits if they are not uniform."""
    if book.unit:
        return torch.tensor([book.zero, book.unit, 0.0, *[0.0] * 16])
    return torch.tensor([128.0, 127.0, 1.0, *[round(127 * level) + 128.0 for level in book.levels]])


def can_compact(weights: Sequence[QuantizedWeight], device: torch.device, dtype: torch.dtype) -> bool:
    """True if there is a kernel for these weights, below one another, here."""
    first = weights[0]
    return (
        dtype == torch.bfloat16
        and device.type == "cpu"
        and all(weight.format == first.format and weight.scales.dim() == 2 for weight in weights)
        and first.format.codebook.bits in _BITS
        and first.format.group_size % GROUP == 0
        and first.codes.shape[1] % GROUP == 0
        and load_function("gemv", GEMV) is not None
    )
