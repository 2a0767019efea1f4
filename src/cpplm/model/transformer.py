"""The transformer in training: a decoder, its losses, and heads that predict tokens further ahead.

Shapes: B batch, T tokens, C model_dim, V vocabulary.

Weights are kept in float32; matrix products run in `compute_dtype`. Built under `torch.device("meta")`, the
model takes no memory until `to_empty` and `init_weights`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from cpplm.model.attention import ForwardContext
from cpplm.model.config import ModelConfig
from cpplm.model.decoder import Decoder
from cpplm.model.kernels.loss import linear_cross_entropy
from cpplm.model.kv_cache.view import CacheView, KVCacheSpec
from cpplm.model.multi_token import MultiTokenHead, mtp_targets
from cpplm.model.settings import DEFAULT_KERNELS, KernelSettings


class Losses(NamedTuple):
    """Scalars in nats per token. Training minimizes `total`; the parts are detached."""

    total: Tensor
    next_token: Tensor
    multi_token: Tensor
    indexer: Tensor


class Transformer(Decoder):
    """A decoder that can be trained."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        compute_dtype: torch.dtype = torch.float32,
        kernels: KernelSettings = DEFAULT_KERNELS,
    ) -> None:
        """Uninitialized: `init_weights` or a checkpoint fills it.

        Args:
            config: its shape.
            compute_dtype: of matrix products.
            kernels: how attention and loss are computed, and whether each block's activations are computed
                again in the backward pass (Chen et al. 2016, arXiv 1604.06174).
        """
        super().__init__(config, compute_dtype=compute_dtype)
        self.kernels = kernels
        self.dense_attention = False
        """Sparse layers attend to everything, as in the warm-up of their indexers."""
        self.multi_token = nn.ModuleList(
            MultiTokenHead(config, head) for head in range(config.mtp.depth if config.mtp else 0)
        )

    def cache_specs(self, heads: int = 0) -> list[KVCacheSpec]:
        """Tensors that all layers, and the first multi-token heads, cache per token in decoding."""
        specs = super().cache_specs()
        for head in self.multi_token[:heads]:
            assert isinstance(head, MultiTokenHead)  # noqa: S101  (so that its type is known)
            specs += head.cache_specs()
        return specs

    def forward_context(self, *arguments: Any, **options: Any) -> ForwardContext:
        """The context with the kernels' settings and the state of the indexers' warm-up."""
        return super().forward_context(
            *arguments, **options,
            dense=self.dense_attention, backend=self.kernels.attention,
            gradient_checkpointing=self.kernels.gradient_checkpointing,
        )  # fmt: skip

    def draft_states(
        self, head: int, hidden_BTC: Tensor, next_ids_BT: Tensor, cache: CacheView | None = None
    ) -> Tensor:
        """States, BTC, whose logits predict one token further than `hidden_BTC`.

        Args:
            head: of the multi-token heads, from 0.
            hidden_BTC: what `hidden_states`, or the head before this one, gave for these positions.
            next_ids_BT: the tokens that follow those that `hidden_BTC` was computed from.
            cache: at these positions; it was made for this head, too (see `cache_specs`).
        """
        context = self.forward_context(next_ids_BT, cache)
        return self.multi_token[head](hidden_BTC, self._embed(next_ids_BT), context)

    def loss(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        reduction: Literal["mean", "none"] = "mean",
        documents_BT: Tensor | None = None,
    ) -> Tensor:
        """Cross-entropy of the next token in nats: a scalar, or BT, 0 where the target is `IGNORE_INDEX`."""
        hidden_BTC = self.hidden_states(ids_BT, documents_BT=documents_BT)
        loss = self._cross_entropy(hidden_BTC, targets_BT, reduction)
        return loss if reduction == "mean" else loss.view_as(targets_BT)

    def training_losses(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        multi_token_weight: Tensor | float = 0.0,
        documents_BT: Tensor | None = None,
        target_shares: Tensor | None = None,
        ngram_embeddings: dict[int, Tensor] | None = None,
    ) -> Losses:
        """The loss that training minimizes, and its parts.

        Args:
            ids_BT: tokens.
            targets_BT: the token that follows each; `IGNORE_INDEX` ones count nothing.
            multi_token_weight: of the mean loss of the multi-token heads (lambda); a tensor, so that a
                schedule may change it without compiling again.
            documents_BT: attention stays inside the document that each token names.
            target_shares: factors on the mean losses of the next token and of each multi-token head, shape
                (1 + heads,), as `TorchTrainModule` counts them; None for 1.
            ngram_embeddings: from `embed_ngrams` for these tokens, when it was called before.
        """
        if ngram_embeddings is None:
            ngram_embeddings = self.embed_ngrams(ids_BT, None, documents_BT)
        context = self.forward_context(ids_BT, None, documents_BT, ngram_embeddings)
        hidden_BTC, divergence = self.states(context)
        if target_shares is None:
            target_shares = torch.ones(1 + len(self.multi_token), device=ids_BT.device)
        next_token = target_shares[0] * self._cross_entropy(hidden_BTC, targets_BT, "mean")
        mtp_loss = torch.zeros((), device=ids_BT.device)
        head_targets = mtp_targets(targets_BT, len(self.multi_token))
        for number, (next_ids_BT, mtp_targets_BT) in enumerate(head_targets):
            hidden_BTC = self.multi_token[number](hidden_BTC, self._embed(next_ids_BT), context)
            head_loss = self._cross_entropy(hidden_BTC, mtp_targets_BT, "mean")
            mtp_loss = mtp_loss + target_shares[1 + number] * head_loss / len(self.multi_token)
        total = next_token + multi_token_weight * mtp_loss + divergence
        return Losses(total, next_token.detach(), mtp_loss.detach(), divergence.detach())

    def _cross_entropy(
        self, hidden_BTC: Tensor, targets_BT: Tensor, reduction: Literal["mean", "none"]
    ) -> Tensor:
        return linear_cross_entropy(
            hidden_BTC.flatten(0, 1),
            self.lm_head.weight,
            targets_BT.flatten(),
            vocab_size=self.config.vocab_size,
            softcap=self.config.logit_softcap,
            reduction=reduction,
            backend=self.kernels.kernel,
        )
