"""Rows of one batch that are decoded together, for tests."""

from collections.abc import Sequence

import torch

from cpplm.model.kv_cache.cache import KVCache
from cpplm.model.kv_cache.paged_view import CacheReadMode
from cpplm.model.kv_cache.view import CacheView
from cpplm.model.transformer import Transformer


class Rows:
    """Sequences of one cache that read their tokens side by side; called like the model itself."""

    def __init__(self, model: Transformer, batch: int, *, read_mode: CacheReadMode | None = None) -> None:
        self.model = model
        self.cache = KVCache(
            model.cache_specs(), device=model.device, dtype=model.compute_dtype, read_mode=read_mode
        )
        self.sequences = [self.cache.begin() for _ in range(batch)]

    def view(self, counts: int | Sequence[int]) -> CacheView:
        return self.cache.view(self.sequences, counts)

    def __call__(self, ids: torch.Tensor, counts: Sequence[int] | None = None) -> torch.Tensor:
        """Logits BTV of the next tokens; of a row, only the first `counts` are real."""
        counts = counts or [ids.size(1)] * len(ids)
        logits = self.model(ids, self.view(counts))
        for sequence, row, count in zip(self.sequences, ids.tolist(), counts, strict=True):
            self.cache.advance(sequence, row[:count])
        return logits

    def release(self) -> None:
        for sequence in self.sequences:
            self.cache.release(sequence)
