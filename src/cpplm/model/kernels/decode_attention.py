"""Attention of a few new tokens per sequence, on a CPU, over a cache in blocks that are read where they lie.

Decoding reads each key and value once, so its time is that of memory. With torch's operators each row's keys
have to be gathered, brought to float32 and read again, a dozen calls per row and layer. This is one call per
layer (paged attention, Kwon et al. 2023, arXiv 2309.06180, section 4.1). Microseconds of one sequence and
layer, kernel / torch, bfloat16, 12 heads of 64, one thread of an AMD EPYC, torch 2.13, 2026-11-22:

| new tokens | of 150    | of 1000     |
|------------|-----------|-------------|
| 1          | 33 / 65   | 173 / 361   |
| 2          | 57 / 96   | 334 / 460   |
| 4          | 103 / 105 | 657 / 479   |
| 8          | 194 / 132 | 1297 / 632  |

Without the kernel (`cpp_extension.py`) attention goes through torch, sequence by sequence.

Shapes: B sequences, T new tokens, N blocks of a sequence, S slots of a pool, H query heads, G key-value
heads, D head width.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpplm.model.kernels.cpp_extension import load_function

MAX_TOKENS = 3  # new ones of a sequence, see above
_FUNCTIONS = {torch.float32: "attend_float32", torch.bfloat16: "attend_bfloat16"}
_ARGUMENTS = "pppppp" + "iiiiiiiii" + "f"


@dataclass(frozen=True)
class PagedSequences:
    """Block tables of a batch: where the tokens of its sequences lie, the new ones included."""

    block_numbers_BN: NDArray[np.int64]
    """Blocks of each sequence, in order; what is behind a sequence's own is not read."""
    spans_B3: NDArray[np.int64]
    """Position of the first new token, count of new tokens, and how many blocks in front were given back."""
    block_size: int
    """Tokens of a block."""

    @functools.cached_property
    def addresses(self) -> tuple[int, int]:
        """Addresses of both arrays, which are contiguous."""
        assert self.block_numbers_BN.flags.c_contiguous and self.spans_B3.flags.c_contiguous  # noqa: S101
        return self.block_numbers_BN.ctypes.data, self.spans_B3.ctypes.data


def supports(device: torch.device, dtype: torch.dtype) -> bool:
    """True if there is a kernel here for keys and values of this dtype. The first call compiles it."""
    if device.type != "cpu" or dtype not in _FUNCTIONS:
        return False
    return load_function(_FUNCTIONS[dtype], _ARGUMENTS) is not None


def decode_attention(
    query_BTHD: Tensor,
    keys_SGD: Tensor,
    values_SGD: Tensor,
    sequences: PagedSequences,
    *,
    window: int | None = None,
) -> Tensor:
    """Causal scaled dot-product attention of each sequence's new tokens over all of its tokens.

    Args:
        query_BTHD: of the new tokens, padded on the right; G divides H; float32 or bfloat16.
        keys_SGD: the pool, contiguous, the new tokens' keys in it; dtype of the query.
        values_SGD: likewise.
        sequences: which slots are whose.
        window: earlier tokens visible besides the token itself; None for all.

    Returns:
        The mixed values, shape BTHD, dtype of the query; zero where the query is padding. Sums are float32.
    """
    dtype = query_BTHD.dtype
    attend = load_function(_FUNCTIONS[dtype], _ARGUMENTS)
    assert attend is not None  # noqa: S101  (`supports` was asked)
    assert keys_SGD.is_contiguous() and values_SGD.is_contiguous()  # noqa: S101
    assert keys_SGD.dtype == values_SGD.dtype == dtype  # noqa: S101
    query = query_BTHD.contiguous()
    output = torch.empty_like(query)
    rows, tokens, heads, dim = query.shape
    groups = keys_SGD.size(1)
    attend(
        keys_SGD.data_ptr(), values_SGD.data_ptr(), query.data_ptr(), output.data_ptr(), *sequences.addresses,
        rows, tokens, groups, heads // groups, dim, sequences.block_size, sequences.block_numbers_BN.shape[1],
        -1 if window is None else window, torch.get_num_threads(), dim**-0.5,
    )  # fmt: skip
    return output
