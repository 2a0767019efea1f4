"""The cache as layers know it: what they keep of each token, and how they write and read it in one pass.

Shapes: B sequences, T new tokens, S tokens that they look back to (new ones included), H query heads, D head
width, X whatever a layer caches per token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class KVCacheSpec:
    """A tensor that a layer caches for each token."""

    name: str
    shape: tuple[int, ...]
    """Per token."""
    lookback: int | None
    """Earlier tokens that a new one needs; None for all."""
    dtype: torch.dtype | None = None
    """None for that of the computation."""


AttendInPlace = Callable[[Tensor, str, str, int | None], Tensor]
"""From queries BTHD, the names of keys and values, and a window, to mixed values BTHD."""


@dataclass(frozen=True)
class CacheBatch:
    """Some rows of a batch that attend together, aligned at their ends."""

    rows: slice
    queries: int
    """Only the first so many new tokens; the rest is padding."""
    read: Callable[[str], Tensor]
    """Rows of a spec's name that the queries look back to, these included, shape BSX."""
    documents_BS: Tensor | None = None
    """-1 in front of the shorter rows; None when all are of one length."""


class CacheView(ABC):
    """The sequences of one batch while the model reads T new tokens of each."""

    positions_BT: Tensor
    """Positions of the new tokens, counted from each sequence's start; float32."""

    @property
    @abstractmethod
    def max_context(self) -> int:
        """Tokens before the new ones, of the longest sequence."""

    @abstractmethod
    def write(self, name: str, rows_BTX: Tensor) -> None:
        """Store a layer's rows of the new tokens."""

    @abstractmethod
    def with_history(self, name: str, rows_BTX: Tensor, count: int) -> Tensor:
        """The new rows, stored, behind the `count` rows before them, which are zero before the start."""

    @abstractmethod
    def batches(self, name: str) -> list[CacheBatch]:
        """The sequences, divided into batches that attend together."""

    @property
    def attend_in_place(self) -> AttendInPlace | None:
        """Attention that reads keys and values where they lie; None where `batches` has to copy them."""
        return None


def with_history(view: CacheView | None, name: str, rows_BTX: Tensor, count: int) -> Tensor:
    """The rows behind the `count` rows before them, shape (B, count + T, X), in training and in decoding."""
    if view is None or count == 0:
        return F.pad(rows_BTX, (0, 0, count, 0))
    return view.with_history(name, rows_BTX, count)
