"""The decoder: token ids to logits of the next token.

Rotary positions, untied embedding and output head, squared ReLU or SwiGLU, RMSNorm without weights, no
biases, grouped-query attention, sliding windows. Unless the configuration says otherwise, queries, keys and
embeddings are normalized, logits are capped, and each layer has two learned scalars: one scales the residual
stream, one mixes the embedding back in. The configuration may add value embeddings, smear, backout,
induction, n-gram memory (`engram`), several residual streams (`hyper_connections`), and sparse attention.
`Transformer` adds what training needs. Exports for `transformers` carry a copy of this file and of those that
it imports (`cpplm.export`).

Shapes: B batch, T tokens, C model_dim, V vocabulary. `x` is the residual stream BTC, or streams BTNC.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cpplm.model.attention import ForwardContext
from cpplm.model.block import TransformerBlock
from cpplm.model.config import SMEAR_GATE_INPUTS, ModelConfig
from cpplm.model.engram import EngramMemory, NgramBranch
from cpplm.model.hyper_connections import HyperConnection, expand_streams, reduce_streams
from cpplm.model.induction import Induction
from cpplm.model.kv_cache.view import CacheView, KVCacheSpec, with_history
from cpplm.model.layers import Linear, norm, rotary_angles, within_document

BACKOUT_INIT = 0.2
# Matrices that start random; those that write to the residual stream, and what is not named, start at zero.
RANDOM_WEIGHTS = (
    ".query.weight", ".key.weight", ".value.weight", ".head_weights.weight", ".gate.weight", ".up.weight",
    ".reduce.weight", ".merge.weight", ".value_embedding.weight",
)  # fmt: skip


class Decoder(nn.Module):
    """A causal language model over token ids."""

    def __init__(self, config: ModelConfig, *, compute_dtype: torch.dtype = torch.float32) -> None:
        """Uninitialized: `init_weights` or a checkpoint fills it."""
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.embedding = nn.Embedding(config.padded_vocab_size, config.model_dim)
        self.blocks = nn.ModuleList(TransformerBlock(config, layer) for layer in range(config.num_layers))
        self.lm_head = Linear(config.model_dim, config.padded_vocab_size)
        if config.layer_scales:
            self.residual_scales = nn.Parameter(torch.empty(config.num_layers))
            self.embedding_scales = nn.Parameter(torch.empty(config.num_layers))
        if config.smear:
            self.smear_gate = Linear(min(SMEAR_GATE_INPUTS, config.model_dim), 1)
            self.smear_scale = nn.Parameter(torch.empty(()))
        if config.backout:
            self.backout_scale = nn.Parameter(torch.empty(()))
        self.induction = Induction(config) if config.induction else None

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
        if config.layer_scales:
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

    def cache_specs(self) -> list[KVCacheSpec]:
        """Tensors that all layers cache per token in decoding."""
        specs: list[KVCacheSpec] = []
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)  # noqa: S101  (so that its type is known)
            specs += block.cache_specs()
        if self.config.smear:
            specs.append(KVCacheSpec("smear", (self.config.model_dim,), 1))
        if self.induction is not None:
            specs.append(self.induction.cache_specs())
        return specs

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embedding.weight.device

    def hidden_states(
        self,
        ids_BT: Tensor,
        cache: CacheView | None = None,
        documents_BT: Tensor | None = None,
        num_outputs: int | None = None,
    ) -> Tensor:
        """Normalized output of the last block, shape BTC, for tokens that follow those in the cache.

        Args:
            ids_BT: the tokens.
            cache: what came before them; they count as read when the cache advances.
            documents_BT: attention stays inside the document that each token names; without a cache.
            num_outputs: T of the output: the last tokens of rows without padding; None for all.
        """
        ngram_embeddings = self.embed_ngrams(ids_BT, cache, documents_BT)
        context = self.forward_context(ids_BT, cache, documents_BT, ngram_embeddings, num_outputs=num_outputs)
        return self.states(context)[0]

    def embed_ngrams(
        self, ids_BT: Tensor, cache: CacheView | None = None, documents_BT: Tensor | None = None
    ) -> dict[int, Tensor]:
        """Embeddings of the n-grams that end at these tokens, by layer with an n-gram memory."""
        return {
            layer: block.engram.embed_ngrams(ids_BT, cache, documents_BT)
            for layer, block in enumerate(self.blocks)
            if isinstance(block.engram, EngramMemory)
        }

    def forward_context(
        self,
        ids_BT: Tensor,
        cache: CacheView | None = None,
        documents_BT: Tensor | None = None,
        ngram_embeddings: dict[int, Tensor] | None = None,
        **options: Any,
    ) -> ForwardContext:
        """The inputs that all layers share; `options` are further fields of it."""
        if cache is None:
            positions = torch.arange(ids_BT.size(1), device=ids_BT.device, dtype=torch.float32)
        else:
            positions = cache.positions_BT
        angles = rotary_angles(positions, self.config.head_dim, self.config.rope_base)
        return ForwardContext(
            ids_BT, positions, angles, cache, documents_BT,
            ngram_embeddings=ngram_embeddings or {}, **options,
        )  # fmt: skip

    def states(self, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """Normalized states BTC, and the mean divergence of the indexers."""
        config, ids_BT, cache = self.config, context.ids_BT, context.cache
        embedded_BTC = self._smear(self._embed(ids_BT), context)
        if self.induction is not None:
            next_ids_BT, lengths_BT = self.induction.match(ids_BT, cache, context.documents_BS)
            embedded_BTC = embedded_BTC + self.induction(self._embed(next_ids_BT), lengths_BT)
        embedded = expand_streams(embedded_BTC, config.hyper_connections)
        if config.layer_scales:
            residual_scales = self.residual_scales.to(self.compute_dtype).unbind()
            embedding_scales = self.embedding_scales.to(self.compute_dtype).unbind()
        divergence = torch.zeros((), device=ids_BT.device)
        x = middle = embedded
        for layer, block in enumerate(self.blocks):
            if config.layer_scales:
                x = residual_scales[layer] * x + embedding_scales[layer] * embedded
            if context.gradient_checkpointing and torch.is_grad_enabled():
                x, of_layer = checkpoint(block, x, context, use_reentrant=False)
            else:
                x, of_layer = block(x, context)
            divergence = divergence + of_layer
            if layer == config.backout_layer():
                middle = x
        if context.num_outputs is not None:
            x, middle = x[:, -context.num_outputs :], middle[:, -context.num_outputs :]
        if config.backout:
            x = x - self.backout_scale.to(x.dtype) * middle
        sparse_layers = sum(config.is_sparse(layer) for layer in range(config.num_layers))
        return norm(reduce_streams(x, config.hyper_connections)), divergence / max(1, sparse_layers)

    def _embed(self, ids_BT: Tensor) -> Tensor:
        embedded_BTC = self.embedding(ids_BT).to(self.compute_dtype)
        return norm(embedded_BTC) if self.config.embedding_norm else embedded_BTC

    def _smear(self, embedded_BTC: Tensor, context: ForwardContext) -> Tensor:
        """Each token's embedding with a gated share of the one before it."""
        if not self.config.smear:
            return embedded_BTC
        before_BTC = with_history(context.cache, "smear", embedded_BTC, 1)[:, :-1]
        before_BTC = within_document(before_BTC, context.documents_BS, 1)
        gate_BT1 = self.smear_gate(embedded_BTC[..., : self.smear_gate.in_features]).sigmoid()
        return embedded_BTC + self.smear_scale.to(embedded_BTC.dtype) * gate_BT1 * before_BTC

    def logits(self, hidden_BTC: Tensor) -> Tensor:
        """The float32 logits of the real vocabulary, shape BTV: padding rows never enter a softmax."""
        logits_BTV = self.lm_head(hidden_BTC)[..., : self.config.vocab_size].float()
        cap = self.config.logit_softcap
        if cap == 0:
            return logits_BTV
        if torch.is_grad_enabled():
            return cap * torch.tanh(logits_BTV / cap)
        return logits_BTV.div_(cap).tanh_().mul_(cap)  # the same, without memory for each step

    def forward(self, ids_BT: Tensor, cache: CacheView | None = None) -> Tensor:
        """Logits of the next token at every position, shape BTV."""
        return self.logits(self.hidden_states(ids_BT, cache))
