"""Linear layers whose weights stay in 2, 4 or 8 bits in memory, for decoding on a CPU in bfloat16.

A product with a few tokens waits for its weights, so that smaller ones are read sooner: `gemv` decodes each
in registers, and multiplies in float32. For many tokens a layer's weight is decoded to bfloat16 once per
product, which takes little of its time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpplm.model.kernels.cpp_extension import load_function
from cpplm.model.kernels.small_batch_linear import CHUNK_BITS, GEMV, MAX_TOKENS, CompactWeight, gemv
from cpplm.model.quantized.packing import QuantizedWeight
from cpplm.model.quantized.recipe import GROUP_SIZE
from cpplm.model.quantized.rounding import levels_table

_BITS = (2, 4, 8)


class CompactLinear(nn.Module):
    """A linear layer without bias, for inference, whose weight takes the bits of its codes."""

    def __init__(self, weights: Sequence[QuantizedWeight]) -> None:
        """Take weights of one format and width, below one another; see `can_compact`."""
        super().__init__()
        book, group_size = weights[0].format.codebook, weights[0].format.group_size
        if book.bits == 8:
            table = torch.tensor([1 / book.unit, book.zero, *[0.0] * 14])
        else:  # repeated, so that only the lowest bits of an index count
            table = levels_table(book).repeat(16 // len(book.levels))
        codes_EC = torch.cat([weight.codes for weight in weights])
        scales_EG = torch.cat([weight.scales for weight in weights])
        padding = -codes_EC.shape[1] % (CHUNK_BITS // book.bits)
        scales_EG = scales_EG.repeat_interleave(group_size // GROUP_SIZE, -1)
        self.compact = CompactWeight(
            words_of(F.pad(codes_EC, (0, padding)), book.bits),
            F.pad(scales_EG, (0, padding // GROUP_SIZE)).half().contiguous(),
            table,
            book.bits,
            (codes_EC.shape[0], codes_EC.shape[1]),
        )
        self.out_features, self.in_features = self.compact.shape

    @property
    def weight(self) -> Tensor:
        """The weight in bfloat16, decoded for whoever reads it."""
        return self.compact.decode()

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features), bfloat16."""
        if x.numel() <= MAX_TOKENS * self.in_features:
            return gemv(x, self.compact)
        return F.linear(x, self.weight)


def words_of(codes_EC: Tensor, bits: int) -> Tensor:
    """Codes as the kernels read them, uint8 in words of 32 bits; see `quantized_matrix.h`."""
    parts = CHUNK_BITS // bits // GROUP_SIZE  # 32 weights each, first those with even places, then odd ones
    codes = codes_EC.view(len(codes_EC), -1, parts, GROUP_SIZE // 2, 2).permute(0, 1, 3, 2, 4).flatten(3)
    shifts = torch.arange(0, 32, bits, dtype=torch.int64)
    words = (codes.long() << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def can_compact(weights: Sequence[QuantizedWeight], device: torch.device, dtype: torch.dtype) -> bool:
    """True if there is a kernel for these weights, below one another, here."""
    first = weights[0]
    return (
        dtype == torch.bfloat16
        and device.type == "cpu"
        and all(weight.format == first.format and weight.scales.dim() == 2 for weight in weights)
        and first.format.codebook.bits in _BITS
        and 16 % min(16, len(first.format.codebook.levels)) == 0
        and first.format.group_size % GROUP_SIZE == 0
        and load_function("gemv", GEMV) is not None
    )
