"""Memory of n-grams, read beside the transformer's own layers.

`EngramMemory` is the conditional memory of Cheng et al. 2026 (arXiv 2601.07372, section 2): the last tokens,
made canonical, are hashed into tables of embeddings; a gate compares what was found with the hidden state; a
short causal convolution spreads it. `NgramBranch` has no tables: it mixes the last few states in a
bottleneck.

Both start as the identity: tables and output matrices are zero. Both look back only: at n-1 ids, or states.

Shapes: B batch, T tokens, C model_dim, N longest order, K tables (orders times hash heads), E head_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpplm.model.attention import ForwardContext
from cpplm.model.config import ModelConfig
from cpplm.model.kv_cache.view import CacheView, KVCacheSpec, with_history
from cpplm.model.layers import Linear, norm, within_document
from cpplm.model.ngram_hash import HASH_BITS, hash_multipliers, table_rows


class EngramMemory(nn.Module):
    """Hashed n-gram embeddings, gated by the hidden state.

    Buffers are part of the checkpoint: `canonical_V` maps each id to the one that stands for its like (see
    `cpplm.tokenizer.token_normalization`), `rows_K`, `offsets_K` and `multipliers_KN` are the hash functions.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        assert config.engram is not None  # noqa: S101  (the caller asked)
        self.engram = config.engram
        self.layer = layer
        self.longest = max(self.engram.ngram_orders)
        self.lookback = self.longest * (self.engram.kernel_size - 1)  # of the convolution
        self._ids, self._gated = f"engram ids {layer}", f"engram values {layer}"
        rows = table_rows(self.engram, layer)
        width = len(rows) * self.engram.head_dim
        self.table = nn.Embedding(sum(rows), self.engram.head_dim, sparse=True)
        self.key = Linear(width, config.model_dim)
        self.value = Linear(width, config.model_dim)
        self.taps = nn.Parameter(torch.empty(self.engram.kernel_size, config.model_dim))
        for name, shape in {
            "canonical_V": (config.vocab_size,),
            "rows_K": (len(rows),),
            "offsets_K": (len(rows),),
            "multipliers_KN": (len(rows), self.longest),
        }.items():
            self.register_buffer(name, torch.empty(shape, dtype=torch.int64))
        self.canonical_V: Tensor
        self.rows_K: Tensor
        self.offsets_K: Tensor
        self.multipliers_KN: Tensor

    def cache_specs(self) -> list[KVCacheSpec]:
        """The last ids, and what the convolution reaches."""
        rows = [KVCacheSpec(self._ids, (1,), self.longest - 1, torch.int64)]
        return rows + [KVCacheSpec(self._gated, (self.taps.size(1),), self.lookback)] * (self.lookback > 0)

    @torch.no_grad()
    def init_constants(self) -> None:
        """Fill the hash functions; every id stands for itself."""
        rows = torch.tensor(table_rows(self.engram, self.layer))
        self.rows_K.copy_(rows)
        self.offsets_K.copy_(rows.cumsum(0) - rows)
        self.multipliers_KN.copy_(torch.tensor(hash_multipliers(self.engram, self.layer)))
        self.canonical_V.copy_(torch.arange(self.canonical_V.numel()))

    def addresses(
        self, ids_BT: Tensor, cache: CacheView | None, documents_BT: Tensor | None = None
    ) -> Tensor:
        """Rows of the table to read, shape BTK: products, their exclusive or, mixed, modulo the primes.

        Before the start of the sequence, or of the document, stands id 0, which is padding.
        """
        canonical_BT1 = self.canonical_V[ids_BT].unsqueeze(-1)
        back = self.longest - 1
        ids_BS = with_history(cache, self._ids, canonical_BT1, back).squeeze(-1)
        length = ids_BT.size(1)
        hashed_BTK = torch.zeros((), dtype=torch.int64, device=ids_BT.device)
        for distance in range(self.longest):
            first = back - distance
            ids_BT1 = ids_BS[:, first : first + length].unsqueeze(-1)
            ids_BT1 = within_document(ids_BT1, documents_BT, distance) + 1
            hashed_BTK = hashed_BTK ^ ((ids_BT1 * self.multipliers_KN[:, distance]) & (2**HASH_BITS - 1))
        hashed_BTK = hashed_BTK ^ (hashed_BTK >> 15)
        return hashed_BTK % self.rows_K + self.offsets_K

    def embed_ngrams(
        self, ids_BT: Tensor, cache: CacheView | None, documents_BT: Tensor | None = None
    ) -> Tensor:
        """The embeddings of the n-grams that end at each token, shape (B, T, K * E).

        Apart from `forward`, to stay outside of a compiled graph, which cannot give sparse gradients.
        """
        return self.table(self.addresses(ids_BT, cache, documents_BT)).flatten(-2)

    def forward(self, x_BTC: Tensor, context: ForwardContext) -> Tensor:
        """The memory's contribution to the residual stream, which comes normalized, shape BTC."""
        ngrams_BTX = context.ngram_embeddings[self.layer].to(x_BTC.dtype)
        score_BT1 = (x_BTC * norm(self.key(ngrams_BTX))).sum(-1, keepdim=True) * x_BTC.size(-1) ** -0.5
        gated_BTC = score_BT1.float().sigmoid().to(x_BTC.dtype) * self.value(ngrams_BTX)
        return gated_BTC + F.silu(self._convolve(norm(gated_BTC), context))

    def _convolve(self, x_BTC: Tensor, context: ForwardContext) -> Tensor:
        """Each channel alone, over the token itself and every N-th before it (section 2.3)."""
        rows_BSC = with_history(context.cache, self._gated, x_BTC, self.lookback)
        taps = self.taps.to(x_BTC.dtype)
        length = x_BTC.size(1)
        spread_BTC = torch.zeros_like(x_BTC)
        for tap in range(self.engram.kernel_size):
            distance = self.longest * tap
            first = self.lookback - distance
            earlier_BTC = within_document(rows_BSC[:, first : first + length], context.documents_BS, distance)
            spread_BTC = spread_BTC + taps[tap] * earlier_BTC
        return spread_BTC


class NgramBranch(nn.Module):
    """Weighted sums of the last n states, for each order n, in a bottleneck."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        assert config.engram is not None  # noqa: S101  (the caller asked)
        self.orders = config.engram.ngram_orders
        self.lookback = max(self.orders) - 1
        self._states = f"ngram states {layer}"
        width = config.engram.bottleneck_dim
        self.reduce = Linear(config.model_dim, width)
        self.expand = Linear(width, config.model_dim)
        self.taps = nn.Parameter(torch.empty(sum(self.orders), width))

    @torch.no_grad()
    def init_constants(self) -> None:
        """Each order starts with the mean of its states."""
        self.taps.copy_(
            torch.cat([torch.full((order, 1), 1 / order) for order in self.orders]).expand_as(self.taps)
        )

    def cache_specs(self) -> list[KVCacheSpec]:
        """The last states."""
        return [KVCacheSpec(self._states, (self.taps.size(1),), self.lookback)]

    def forward(self, x_BTC: Tensor, context: ForwardContext) -> Tensor:
        """The branch's contribution to the residual stream, which comes normalized, shape BTC."""
        lookback, length, documents_BS = self.lookback, x_BTC.size(1), context.documents_BS
        rows_BSX = with_history(context.cache, self._states, self.reduce(x_BTC), lookback)
        total: Tensor | None = None
        for order, taps in zip(self.orders, self.taps.to(x_BTC.dtype).split(list(self.orders)), strict=True):
            window = [
                within_document(rows_BSX[:, lookback - back : lookback - back + length], documents_BS, back)
                * taps[back]
                for back in range(order)
            ]
            mixed_BTX = F.silu(torch.stack(window).sum(0))
            total = mixed_BTX if total is None else total + mixed_BTX
        assert total is not None  # noqa: S101  (there is at least one order)
        return self.expand(total)
