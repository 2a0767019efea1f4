"""Rows of one batch that are decoded together, for tests."""

import torch

from cpplm.model.kv_cache.cache import KVCache
from cpplm.model.kv_cache.paged_view import CacheReadMode
from cpplm.model.transformer import Transformer


class Rows:
    """Sequences of one cache that read their tokens side by side; called like the model itself."""

    def __init__(self, model: Transformer, batch: int, *, read_mode: CacheReadMode | None = None) -> None:
        self.model = model
        self.cache = KVCache(
            model.cache_specs(), device=model.device, dtype=model.compute_dtype, read_mode=read_mode
        )
        self.sequences = [self.cache.begin() for _ in range(batch)]

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits BTV of the next tokens."""
        return self.model.logits(self.states(ids))

    def states(self, ids: torch.Tensor, num_outputs: int | None = None) -> torch.Tensor:
        """Hidden states BTC of the next tokens, or of the last of them alone."""
        view = self.cache.view(self.sequences, ids.size(1))
        states = self.model.hidden_states(ids, view, num_outputs=num_outputs)
        for sequence, row in zip(self.sequences, ids.tolist(), strict=True):
            self.cache.advance(sequence, row)
        return states
