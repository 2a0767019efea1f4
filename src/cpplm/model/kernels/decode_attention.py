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

`decode_attention.cpp` is compiled once per machine, in a second, and kept under ~/.cache/cpplm. Without a
g++ that knows OpenMP there is no kernel, and attention goes through torch, sequence by sequence.

Shapes: B sequences, T new tokens, N blocks of a sequence, S slots of a pool, H query heads, G key-value
heads, D head width.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpplm.core.hardware import processor_features

MOST_TOKENS = 3  # new ones of a sequence, see above
_SOURCE = Path(__file__).with_suffix(".cpp")
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
_FUNCTIONS = {torch.float32: "attend_float32", torch.bfloat16: "attend_bfloat16"}


@dataclass(frozen=True)
class Blocks:
    """Where the tokens of some sequences lie, the new ones included."""

    numbers_BN: NDArray[np.int64]
    """Blocks of each sequence, in order; what is behind a sequence's own is not read."""
    places_B3: NDArray[np.int64]
    """Position of the first new token, count of new tokens, and how many blocks in front are gone."""
    size: int
    """Tokens of a block."""


def can_decode(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there is a kernel here for keys and values of this dtype. The first call compiles it."""
    return device.type == "cpu" and dtype in _FUNCTIONS and _library() is not None


def decode_attention(
    query_BTHD: Tensor, keys_SGD: Tensor, values_SGD: Tensor, blocks: Blocks, *, window: int | None = None
) -> Tensor:
    """Causal scaled dot-product attention of each sequence's new tokens over all of its tokens.

    Args:
        query_BTHD: of the new tokens, padded on the right; G divides H.
        keys_SGD: the pool, contiguous, the new tokens' keys in it; float32 or bfloat16.
        values_SGD: likewise.
        blocks: which slots are whose.
        window: earlier tokens visible besides the token itself; None for all.

    Returns:
        The mixed values, shape BTHD, dtype of the query; zero where the query is padding. Sums are float32.
    """
    library = _library()
    assert library is not None  # noqa: S101  (`can_decode` was asked)
    assert keys_SGD.is_contiguous() and values_SGD.is_contiguous()  # noqa: S101
    query = query_BTHD.float().contiguous()
    output = torch.empty_like(query)
    rows, tokens, heads, dim = query.shape
    groups, threads = keys_SGD.size(1), torch.get_num_threads()
    reach = -1 if window is None else window
    sizes = np.array(
        [rows, tokens, groups, heads // groups, dim, blocks.size, blocks.numbers_BN.shape[1], reach, threads]
    )
    getattr(library, _FUNCTIONS[keys_SGD.dtype])(
        keys_SGD.data_ptr(), values_SGD.data_ptr(), query.data_ptr(), output.data_ptr(),
        blocks.numbers_BN.ctypes.data, blocks.places_B3.ctypes.data, sizes.ctypes.data, dim**-0.5,
    )  # fmt: skip
    return output.to(query_BTHD.dtype)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled kernel, None where it cannot be made."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    made_from = "\0".join((_SOURCE.read_text(encoding="utf-8"), compiler, *_FLAGS, processor_features()))
    name = f"decode_attention-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.so"
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cpplm"
        if not (cache / name).exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:  # whole or not at all
                made = Path(folder) / name
                command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(made)]
                subprocess.run(command, check=True, capture_output=True, timeout=120)
                made.replace(cache / name)
        library = ctypes.CDLL(str(cache / name))
    except (OSError, RuntimeError, subprocess.SubprocessError):  # no home, no room, no OpenMP
        return None
    for function in _FUNCTIONS.values():
        getattr(library, function).argtypes = [*[ctypes.c_void_p] * 7, ctypes.c_float]
        getattr(library, function).restype = None
    return library
