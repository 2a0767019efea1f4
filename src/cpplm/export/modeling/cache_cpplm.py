"""The cache of `transformers` as the layers of a cpplm model see it.

Shapes: B batch, T new tokens, S tokens in reach (the new ones last), X whatever a layer caches per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from cpplm.model.kv_cache.view import CacheBatch, CacheView, KVCacheSpec

Layers = list[tuple[KVCacheSpec, ...]]


def cache_layers(specs: Sequence[KVCacheSpec]) -> Layers:
    """What each layer of the cache holds: first keys and values of each attention, then one spec each."""
    paired = [spec for spec in specs if len(spec.shape) == 2]  # of several heads
    return [*zip(paired[::2], paired[1::2], strict=True), *((s,) for s in specs if len(s.shape) == 1)]


def with_all_layers(cache: DynamicCache, layers: Layers) -> None:
    """Give an empty cache of `transformers` a layer for everything that the model caches.

    What is not a pair lies there as keys, with nothing as values, so that everything that `transformers` does
    to a cache (reordering, cropping) is done to it.

    Raises:
        TypeError: a cache of another kind.
        ValueError: it was filled by another model.
    """
    if not isinstance(cache, DynamicCache):
        raise TypeError(f"this model keeps what it needs in a DynamicCache, not in {type(cache).__name__}")
    if len(cache.layers) == len(layers):
        return
    if cache.get_seq_length() > 0:
        raise ValueError("this cache was not filled by this model")
    recording = any(getattr(layer, "record_past", False) for layer in cache.layers)
    lookbacks = [specs[0].lookback for specs in layers]
    cache.layers = [  # there a window counts the token itself
        DynamicLayer() if lookback is None else DynamicSlidingWindowLayer(sliding_window=lookback + 1)
        for lookback in lookbacks
    ]
    if recording:
        cache.activate_past_recording()


class DynamicCacheView(CacheView):
    """The tokens of one forward pass and those before them, which a cache may hold."""

    def __init__(
        self,
        layers: Layers,
        cache: DynamicCache | None,
        positions_BT: Tensor,
        padding_mask: Tensor | None,
        options: Mapping[str, Any],
    ) -> None:
        """Look at a cache.

        Args:
            layers: what it holds.
            cache: the tokens before; takes in the new ones.
            positions_BT: of the new tokens.
            padding_mask: over all tokens so far, 0 for padding, which may only stand in front.
            options: for attention functions of other libraries.

        Raises:
            ValueError: the mask is of another shape.
        """
        self.positions_BT = positions_BT.float()
        self.options = options
        self._cache, self._length = cache, positions_BT.size(1)
        self._past = 0 if cache is None else cache.get_seq_length()
        self._layer_of = {spec.name: (n, specs) for n, specs in enumerate(layers) for spec in specs}
        self._rows: dict[str, Tensor] = {}
        self._real_BS: Tensor | None = None
        total = self._past + self._length
        if padding_mask is not None:
            if padding_mask.dim() != 2 or padding_mask.size(1) != total:
                raise ValueError(
                    f"attention_mask has the shape {tuple(padding_mask.shape)}; it must have a row per text "
                    f"and a column for each of the {total} tokens so far"
                )
            if not bool(padding_mask.all()):
                self._real_BS = padding_mask.bool()

    @property
    def max_context(self) -> int:
        """Tokens before the new ones, padding included."""
        return self._past

    def write(self, name: str, rows_BTX: Tensor) -> None:
        """Store a layer's rows; keys wait until their values come."""
        layer, specs = self._layer_of[name]
        self._rows[name] = rows_BTX.transpose(1, 2) if len(specs) == 2 else rows_BTX.unsqueeze(1)
        if self._cache is not None and name == specs[-1].name:
            keys, values = self._rows[specs[0].name], self._rows[name]
            in_reach = self._cache.update(keys, values if len(specs) == 2 else values[..., :0], layer)
            self._rows |= {spec.name: rows for spec, rows in zip(specs, in_reach, strict=False)}

    def with_history(self, name: str, rows_BTX: Tensor, count: int) -> Tensor:
        """The new rows behind the `count` before them: zero for padding and before the start."""
        if self._real_BS is not None:
            rows_BTX = rows_BTX.masked_fill(~self._real_BS[:, -self._length :, None], 0)
        self.write(name, rows_BTX)
        rows_BSX = self._read(name)
        return F.pad(rows_BSX, (0, 0, count + self._length - rows_BSX.size(1), 0))

    def batches(self, name: str) -> list[CacheBatch]:
        """All rows together; padding is a document of its own."""
        documents_BS = None
        if self._real_BS is not None:
            documents_BS = self._real_BS[:, -self._rows[name].size(-2) :].long() - 1
        return [CacheBatch(slice(None), self._length, self._read, documents_BS)]

    def _read(self, name: str) -> Tensor:
        """Once: afterwards the memory is the cache's alone."""
        rows = self._rows.pop(name)
        return rows.transpose(1, 2) if len(self._layer_of[name][1]) == 2 else rows.squeeze(1)
