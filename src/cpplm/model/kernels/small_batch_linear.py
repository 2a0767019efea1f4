"""Layers of the transformer for a few tokens in bfloat16, on a CPU.

Such a product reads each weight once and does little with it, so its time is that of memory; and between two
products torch's operators take longer to call than to compute. `small_batch_linear.cpp` reads a weight once
for all tokens and does what stands before and behind a product in the same call. What torch rounds is rounded
there, too; only sums are in another order. Weights of few bits are multiplied with tokens of 8 bits instead
(`quantized_matrix.h`), any number of them.

Shapes: C and E widths, H query heads, G key-value heads, D head width, S slots of a pool; "..." and T are
tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cpplm.model.kernels.cpp_extension import load_function

GEMV = "pppppiiiiii"  # the types of its arguments
TILE_ROWS, GROUP = 16, 32  # of quantised weights
MAX_TOKENS = 3  # from four on, oneDNN's products are as quick


def supports(x: Tensor, max_tokens: int = MAX_TOKENS) -> bool:
    """True if these tokens, shape (..., C), are few, and there are kernels for them here."""
    few = x.dtype == torch.bfloat16 and x.numel() <= max_tokens * x.size(-1) and x.device.type == "cpu"
    return few and load_function("gemv", GEMV) is not None


class CompactWeight(NamedTuple):
    """A weight of shape (E, C) whose numbers have 2, 4 or 8 bits (`cpplm.model.quantized`).

    Attributes:
        blocks: bytes, as `quantized_matrix.h` orders them, uint8, shape (tiles of 16 rows, groups of 32
            columns, scales and codes).
        levels: float32: zero, unit, 1 if codes are numbers of the 16 bytes that follow, else 0.
        shape: E and C.
    """

    blocks: Tensor
    levels: Tensor
    shape: tuple[int, int]

    @property
    def bits(self) -> int:
        """Of a code."""
        return self.blocks.size(2) // (GROUP * TILE_ROWS // 8)

    def decode(self) -> Tensor:
        """The weight in bfloat16."""
        zero, unit, has_table, *table = self.levels.tolist()
        scales = self.blocks[..., : 2 * TILE_ROWS].contiguous().view(torch.float16).float()
        packed = self.blocks[..., 2 * TILE_ROWS :].unflatten(2, (self.bits, TILE_ROWS, 4))
        codes = [packed >> shift & (1 << self.bits) - 1 for shift in range(0, 8, self.bits)]
        quads = torch.stack(codes, 3).flatten(2, 3)  # tiles, groups, 8 of a group, rows, 4 neighbours
        bytes_ = torch.tensor(table)[quads.int()] if has_table else quads
        tiles = (bytes_ - zero) / unit * scales[:, :, None, :, None]
        rows, columns = self.shape
        return tiles.bfloat16().permute(0, 3, 1, 2, 4).reshape(-1, columns)[:rows]


DecodeWeight = Tensor | CompactWeight
"""A weight of shape (E, C), in bfloat16 and contiguous, or of few bits."""


def _parts(weight: DecodeWeight) -> tuple[int, int | None, int]:
    """Pointers to numbers and levels, and the bits of a number."""
    if isinstance(weight, CompactWeight):
        return weight.blocks.data_ptr(), weight.levels.data_ptr(), weight.bits
    return weight.data_ptr(), None, 16


def gemv(
    x: Tensor, weight_EC: DecodeWeight, *, normalized: bool = False, residual: Tensor | None = None
) -> Tensor:
    """`F.linear(x, weight_EC)`.

    Args:
        x: tokens, shape (..., C).
        weight_EC: the weight.
        normalized: multiply `norm(x)` instead.
        residual: added to the product, shape (..., E).

    Returns:
        Shape (..., E).
    """
    height, width = weight_EC.shape
    x = x.contiguous()
    added = None if residual is None else residual.contiguous()
    output = x.new_empty(*x.shape[:-1], height)
    numbers, levels, bits = _parts(weight_EC)
    _function("gemv", GEMV)(
        x.data_ptr(), numbers, levels, None if added is None else added.data_ptr(), output.data_ptr(),
        x.numel() // width, width, height, bits, normalized, torch.get_num_threads(),
    )  # fmt: skip
    return output


def fused_mlp(
    x: Tensor, up_EC: DecodeWeight, down_CE: DecodeWeight, gate_EC: DecodeWeight | None = None
) -> Tensor:
    """`x` and an MLP of `norm(x)`, shape (..., C): with a gate SwiGLU, else around a squared ReLU.

    All weights have numbers of the same bits and levels.
    """
    hidden, width = up_EC.shape
    x = x.contiguous()
    output = torch.empty_like(x)
    gate = None if gate_EC is None else _parts(gate_EC)[0]
    up, levels, bits = _parts(up_EC)
    _function("fused_mlp", "ppppppiiiii")(
        x.data_ptr(), gate, up, _parts(down_CE)[0], levels, output.data_ptr(),
        x.numel() // width, width, hidden, bits, torch.get_num_threads(),
    )  # fmt: skip
    return output


def rms_norm(x: Tensor) -> Tensor:
    """`norm(x)`, shape (..., C)."""
    x = x.contiguous()
    output = torch.empty_like(x)
    width = x.size(-1)
    _function("rms_norm", "ppii")(x.data_ptr(), output.data_ptr(), x.numel() // width, width)
    return output


def rope_write_cache(
    projected: Tensor,
    value: Tensor,
    heads: int,
    angles: tuple[Tensor, Tensor],
    scale: float,
    slots: Tensor,
    keys_SGD: Tensor,
    values_SGD: Tensor,
    *,
    normalized: bool = True,
) -> Tensor:
    """Queries, turned, normalized and scaled; keys, likewise, and values go where the cache has them.

    Args:
        projected: queries, then keys, shape (..., at least (H + G) * D), one token behind another.
        value: shape (..., G * D), likewise.
        heads: H.
        angles: of each token, as `rotary_angles` gives them.
        scale: of queries and keys.
        slots: where in the pools the tokens go, int64, one for each.
        keys_SGD: contiguous, written to.
        values_SGD: likewise.
        normalized: whether queries and keys are.

    Returns:
        `norm(rotate(query, angles)) * scale`, shape (..., H, D).
    """
    _, groups, dim = keys_SGD.shape
    query = projected.new_empty(*projected.shape[:-1], heads, dim)
    cosines, sines = (part.contiguous() for part in angles)
    _function("rope_write_cache", "ppppppppiiiiiiif")(
        projected.data_ptr(), value.data_ptr(), cosines.data_ptr(), sines.data_ptr(), slots.data_ptr(),
        query.data_ptr(), keys_SGD.data_ptr(), values_SGD.data_ptr(),
        slots.numel(), projected.stride(-2), value.stride(-2), heads, groups, dim, normalized, scale,
    )  # fmt: skip
    return query


def _function(name: str, arguments: str) -> Callable[..., None]:
    function = load_function(name, arguments)
    assert function is not None  # noqa: S101  (`supports` was asked)
    return function
