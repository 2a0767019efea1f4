"""The transformer.

Rotary positions, normalized queries and keys, untied embedding and output head, squared ReLU or SwiGLU,
RMSNorm without weights (also right after the embedding), no biases, grouped-query attention, capped logits,
sliding windows, and per layer two learned scalars: one scales the residual stream, one mixes the embedding
back in. The configuration may add value embeddings, smear, backout, induction, n-gram memory (`engram`),
several residual streams (`hyper_connections`), heads that predict tokens further ahead (`multi_token`), and
sparse attention.

Shapes: B batch, T tokens, C model_dim, V vocabulary. `x` is the residual stream BTC, or streams BTNC.

Weights are kept in float32; matrix products run in `compute_dtype`. Built under `torch.device("meta")`, the
model takes no memory until `to_empty` and `init_weights`.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cpplm.model.attention import ForwardContext
from cpplm.model.block import TransformerBlock
from cpplm.model.config import SMEAR_GATE_INPUTS, ModelConfig
from cpplm.model.engram import EngramMemory, NgramBranch
from cpplm.model.hyper_connections import HyperConnection, expand_streams, reduce_streams
from cpplm.model.induction import Induction
from cpplm.model.kernels.loss import linear_cross_entropy
from cpplm.model.kv_cache.spec import KVCacheSpec
from cpplm.model.kv_cache.view import CacheView, with_history
from cpplm.model.layers import Linear, norm, rotary_angles
from cpplm.model.multi_token import MultiTokenHead, mtp_targets
from cpplm.model.settings import DEFAULT_KERNELS, KernelSettings

BACKOUT_INIT = 0.2
# Matrices that start random; those that write to the residual stream, and what is not named, start at zero.
RANDOM_WEIGHTS = (
    ".query.weight", ".key.weight", ".value.weight", ".head_weights.weight", ".gate.weight", ".up.weight",
    ".reduce.weight", ".merge.weight", ".value_embedding.weight",
)  # fmt: skip


class Losses(NamedTuple):
    """Scalars in nats per token. Training minimizes `total`; the parts are detached."""

    total: Tensor
    next_token: Tensor
    multi_token: Tensor
    indexer: Tensor


class Transformer(nn.Module):
    """A causal language model over token ids."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        compute_dtype: torch.dtype = torch.float32,
        kernels: KernelSettings = DEFAULT_KERNELS,
    ) -> None:
        """Uninitialised: `init_weights` or a checkpoint fills it.

        Args:
            config: its shape.
            compute_dtype: of matrix products.
            kernels: how attention and loss are computed, and whether each block's activations are computed
                again in the backward pass (Chen et al. 2016, arXiv 1604.06174).
        """
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.kernels = kernels
        self.dense_attention = False
        """Sparse layers attend to everything, as in the warm-up of their indexers."""
        self.embedding = nn.Embedding(config.padded_vocab_size, config.model_dim)
        self.blocks = nn.ModuleList(TransformerBlock(config, layer) for layer in range(config.num_layers))
        self.lm_head = Linear(config.model_dim, config.padded_vocab_size)
        self.residual_scales = nn.Parameter(torch.empty(config.num_layers))
        self.embedding_scales = nn.Parameter(torch.empty(config.num_layers))
        if config.smear:
            self.smear_gate = Linear(min(SMEAR_GATE_INPUTS, config.model_dim), 1)
            self.smear_scale = nn.Parameter(torch.empty(()))
        if config.backout:
            self.backout_scale = nn.Parameter(torch.empty(()))
        self.induction = Induction(config) if config.induction else None
        self.multi_token = nn.ModuleList(
            MultiTokenHead(config, head) for head in range(config.mtp.depth if config.mtp else 0)
        )

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> None:
        """Fill every weight in place, the same for the same seed on any device.

        The matrices that write to the residual stream start at zero, so each block starts as the identity;
        the head starts small, so an untrained model's loss is ln(vocab_size).
        """
        generator = torch.Generator().manual_seed(seed)
        config = self.config
        bound = math.sqrt(3.0 / config.model_dim)  # uniform with standard deviation 1/sqrt(model_dim)
        for name, parameter in self.named_parameters():
            value = torch.zeros(parameter.shape)
            if name == "embedding.weight":
                value.normal_(0.0, config.embedding_init, generator=generator)
            elif name == "lm_head.weight":
                value.normal_(0.0, 0.001, generator=generator)
            elif name.endswith(RANDOM_WEIGHTS):
                value.uniform_(-bound, bound, generator=generator)
                if name.endswith(".mlp.up.weight"):
                    value.mul_(config.mlp_init)
            elif name.endswith("_gate.weight"):
                value.uniform_(0.0, 0.02, generator=generator)  # a little above the middle, as in nanochat
            parameter.copy_(value)
        self.residual_scales.copy_(torch.linspace(*config.residual_scales, config.num_layers))
        self.embedding_scales.copy_(torch.linspace(*config.embedding_scales, config.num_layers))
        if config.backout:
            self.backout_scale.fill_(BACKOUT_INIT)
        for module in self.modules():
            if isinstance(module, EngramMemory | NgramBranch | HyperConnection | Induction):
                module.init_constants()

    def set_canonical_ids(self, canonical_V: Tensor) -> None:
        """Tell n-gram memories which ids stand for the same text (`cpplm.tokenizer.token_normalization`)."""
        for module in self.modules():
            if isinstance(module, EngramMemory):
                module.canonical_V.copy_(canonical_V)

    def cache_specs(self, heads: int = 0) -> list[KVCacheSpec]:
        """Tensors that all layers, and the first multi-token heads, cache per token in decoding."""
        specs: list[KVCacheSpec] = []
        for part in (*self.blocks, *self.multi_token[:heads]):
            assert isinstance(part, TransformerBlock | MultiTokenHead)  # noqa: S101  (so that its type is known)
            specs += part.cache_specs()
        if self.config.smear:
            specs.append(KVCacheSpec("smear", (self.config.model_dim,), 1))
        if self.induction is not None:
            specs.append(self.induction.cache_specs())
        return specs

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.weight.device

    def hidden_states(
        self, ids_BT: Tensor, cache: CacheView | None = None, documents_BT: Tensor | None = None
    ) -> Tensor:
        """Normalised output of the last block, shape BTC, for tokens that follow those in the cache.

        Args:
            ids_BT: the tokens.
            cache: what came before them; they count as read when the cache advances.
            documents_BT: attention stays inside the document that each token names; not with a cache.
        """
        return self._states(self._context(ids_BT, cache, documents_BT, self.embed_ngrams(ids_BT, cache)))[0]

    def embed_ngrams(self, ids_BT: Tensor, cache: CacheView | None = None) -> dict[int, Tensor]:
        """Embeddings of the n-grams that end at these tokens, by layer with an n-gram memory."""
        return {
            layer: block.engram.embed_ngrams(ids_BT, cache)
            for layer, block in enumerate(self.blocks)
            if isinstance(block.engram, EngramMemory)
        }

    def _context(
        self,
        ids_BT: Tensor,
        cache: CacheView | None = None,
        documents_BT: Tensor | None = None,
        ngram_embeddings: dict[int, Tensor] | None = None,
    ) -> ForwardContext:
        if cache is None:
            positions = torch.arange(ids_BT.size(1), device=ids_BT.device, dtype=torch.float32)
        else:
            positions = cache.positions_BT
        angles = rotary_angles(positions, self.config.head_dim, self.config.rope_base)
        dense, backend = self.dense_attention, self.kernels.attention
        return ForwardContext(
            ids_BT, positions, angles, cache, documents_BT, dense, backend, ngram_embeddings or {}
        )

    def _states(self, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """Normalised states BTC, and the mean divergence of the indexers."""
        config, ids_BT, cache = self.config, context.ids_BT, context.cache
        embedded_BTC = self._smear(self._embed(ids_BT), cache)
        if self.induction is not None:
            next_ids_BT, lengths_BT = self.induction.match(ids_BT, cache, context.documents_BS)
            embedded_BTC = embedded_BTC + self.induction(self._embed(next_ids_BT), lengths_BT)
        embedded = expand_streams(embedded_BTC, config.hyper_connections)
        residual_scales = self.residual_scales.to(self.compute_dtype).unbind()
        embedding_scales = self.embedding_scales.to(self.compute_dtype).unbind()
        divergence = torch.zeros((), device=ids_BT.device)
        x = middle = embedded
        for layer, block in enumerate(self.blocks):
            x = residual_scales[layer] * x + embedding_scales[layer] * embedded
            if self.kernels.gradient_checkpointing and torch.is_grad_enabled():
                x, of_layer = checkpoint(block, x, context, use_reentrant=False)
            else:
                x, of_layer = block(x, context)
            divergence = divergence + of_layer
            if layer == config.backout_layer():
                middle = x
        if config.backout:
            x = x - self.backout_scale.to(x.dtype) * middle
        sparse_layers = sum(config.is_sparse(layer) for layer in range(config.num_layers))
        return norm(reduce_streams(x, config.hyper_connections)), divergence / max(1, sparse_layers)

    def _embed(self, ids_BT: Tensor) -> Tensor:
        return norm(self.embedding(ids_BT).to(self.compute_dtype))

    def _smear(self, embedded_BTC: Tensor, cache: CacheView | None) -> Tensor:
        """Each token's embedding with a gated share of the one before it."""
        if not self.config.smear:
            return embedded_BTC
        before_BTC = with_history(cache, "smear", embedded_BTC, 1)[:, :-1]
        gate_BT1 = self.smear_gate(embedded_BTC[..., : self.smear_gate.in_features]).sigmoid()
        return embedded_BTC + self.smear_scale.to(embedded_BTC.dtype) * gate_BT1 * before_BTC

    def logits(self, hidden_BTC: Tensor) -> Tensor:
        """Capped float32 logits of the real vocabulary, shape BTV: padding rows never enter a softmax."""
        logits_BTV = self.lm_head(hidden_BTC)[..., : self.config.vocab_size].float()
        cap = self.config.logit_softcap
        if torch.is_grad_enabled():
            return cap * torch.tanh(logits_BTV / cap)
        return logits_BTV.div_(cap).tanh_().mul_(cap)  # the same, without memory for each step

    def forward(self, ids_BT: Tensor, cache: CacheView | None = None) -> Tensor:
        """Logits of the next token at every position, shape BTV."""
        return self.logits(self.hidden_states(ids_BT, cache))

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
        context = self._context(next_ids_BT, cache)
        return self.multi_token[head](hidden_BTC, self._embed(next_ids_BT), context)

    def loss(self, ids_BT: Tensor, targets_BT: Tensor, reduction: Literal["mean", "none"] = "mean") -> Tensor:
        """Cross-entropy of the next token in nats: a scalar, or BT, 0 where the target is `IGNORE_INDEX`."""
        loss = self._cross_entropy(self.hidden_states(ids_BT), targets_BT, reduction)
        return loss if reduction == "mean" else loss.view_as(targets_BT)

    def training_losses(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        multi_token_weight: Tensor | float = 0.0,
        documents_BT: Tensor | None = None,
        ngram_embeddings: dict[int, Tensor] | None = None,
    ) -> Losses:
        """The loss that training minimizes, and its parts.

        Args:
            ids_BT: tokens.
            targets_BT: the token that follows each; `IGNORE_INDEX` ones count nothing.
            multi_token_weight: of the mean loss of the multi-token heads (lambda); a tensor, so that a
                schedule may change it without compiling again.
            documents_BT: see `hidden_states`.
            ngram_embeddings: from `embed_ngrams` for these tokens, when it was called before.
        """
        ngram_embeddings = self.embed_ngrams(ids_BT) if ngram_embeddings is None else ngram_embeddings
        hidden_BTC, divergence = self._states(self._context(ids_BT, None, documents_BT, ngram_embeddings))
        next_token = self._cross_entropy(hidden_BTC, targets_BT, "mean")
        mtp_loss = torch.zeros((), device=ids_BT.device)
        head_targets = mtp_targets(targets_BT, len(self.multi_token))
        context = self._context(ids_BT, documents_BT=documents_BT)
        for head, (next_ids_BT, mtp_targets_BT) in zip(self.multi_token, head_targets, strict=True):
            hidden_BTC = head(hidden_BTC, self._embed(next_ids_BT), context)
            mtp_loss = mtp_loss + self._cross_entropy(hidden_BTC, mtp_targets_BT, "mean") / len(
                self.multi_token
            )
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
