"""The transformer.

Rotary positions, normalised queries and keys, untied embedding and output head, squared ReLU, RMSNorm without
weights (also right after the embedding), no biases, grouped-query attention, capped logits, sliding windows,
and per layer two learned scalars: one scales the residual stream, one mixes the embedding back in.

Shapes: B batch, T tokens, C model_dim, H query heads, G key-value heads, D head_dim, V vocabulary.

Weights are kept in float32; matrix products run in `compute_dtype`. Built under `torch.device("meta")`, the
model takes no memory until `to_empty` and `init_weights`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpplm.model.cache import KVCache
from cpplm.model.config import ModelConfig
from cpplm.model.kernels.attention import attention
from cpplm.tokenizer.special import IGNORED


class Linear(nn.Linear):
    """A bias-free matrix product in the dtype of its input."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return F.linear(x, self.weight.to(x.dtype))


def norm(x: Tensor) -> Tensor:
    """RMSNorm over the last dimension, without weights (Zhang and Sennrich 2019)."""
    return F.rms_norm(x, (x.size(-1),))


def rotary_angles(
    start: int, length: int, head_dim: int, base: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of shape (length, head_dim / 2) for positions from `start` on, float32."""
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    positions = torch.arange(start, start + length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, base**-exponents)
    return angles.cos(), angles.sin()


def rotate(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + D/2) by the position's angles (RoFormer, Su et al. 2021, section 3.2)."""
    first, second = x_BHTD.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)
    return turned.to(x_BHTD.dtype)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and query-key normalisation."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.window = config.windows()[layer]
        self.head_dim = config.head_dim
        self.query = Linear(config.model_dim, config.num_heads * config.head_dim)
        self.key = Linear(config.model_dim, config.num_kv_heads * config.head_dim)
        self.value = Linear(config.model_dim, config.num_kv_heads * config.head_dim)
        self.output = Linear(config.num_heads * config.head_dim, config.model_dim)

    def forward(self, x_BTC: Tensor, angles: tuple[Tensor, Tensor], cache: KVCache | None) -> Tensor:
        """BTC to BTC; with a cache, the tokens follow those it holds."""
        batch, length, _ = x_BTC.shape

        def heads(projection: Linear) -> Tensor:
            return projection(x_BTC).view(batch, length, -1, self.head_dim).transpose(1, 2)

        query_BHTD = norm(rotate(heads(self.query), *angles))
        key_BGTD = norm(rotate(heads(self.key), *angles))
        value_BGTD = heads(self.value)
        if cache is not None:
            key_BGTD, value_BGTD = cache.append(self.layer, key_BGTD, value_BGTD)
        mixed_BHTD = attention(query_BHTD, key_BGTD, value_BGTD, window=self.window)
        return self.output(mixed_BHTD.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    """Two matrices around a squared ReLU (Primer, So et al. 2021)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = Linear(config.model_dim, config.mlp_ratio * config.model_dim)
        self.down = Linear(config.mlp_ratio * config.model_dim, config.model_dim)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """BTC to BTC, each token alone."""
        return self.down(F.relu(self.up(x_BTC)).square())


class Block(nn.Module):
    """Attention, then MLP, each on the normalised residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention = Attention(config, layer)
        self.mlp = MLP(config)

    def forward(self, x_BTC: Tensor, angles: tuple[Tensor, Tensor], cache: KVCache | None) -> Tensor:
        """The residual stream, BTC, after this layer."""
        x_BTC = x_BTC + self.attention(norm(x_BTC), angles, cache)
        return x_BTC + self.mlp(norm(x_BTC))


class Transformer(nn.Module):
    """A causal language model over token ids."""

    def __init__(self, config: ModelConfig, *, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.embedding = nn.Embedding(config.padded_vocab_size, config.model_dim)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.lm_head = Linear(config.model_dim, config.padded_vocab_size)
        self.residual_scales = nn.Parameter(torch.empty(config.num_layers))
        self.embedding_scales = nn.Parameter(torch.empty(config.num_layers))

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> None:
        """Fill every weight in place, the same for the same seed on any device.

        The matrices that write to the residual stream start at zero, so each block starts as the identity;
        the head starts small, so an untrained model's loss is ln(vocab_size).
        """
        generator = torch.Generator().manual_seed(seed)
        bound = math.sqrt(3.0 / self.config.model_dim)  # uniform with standard deviation 1/sqrt(model_dim)
        for name, parameter in self.named_parameters():
            value = torch.zeros(parameter.shape)
            if name == "residual_scales":
                value.fill_(1.0)
            elif name == "embedding.weight":
                value.normal_(0.0, 1.0, generator=generator)
            elif name == "lm_head.weight":
                value.normal_(0.0, 0.001, generator=generator)
            elif name.endswith((".query.weight", ".key.weight", ".value.weight", ".up.weight")):
                value.uniform_(-bound, bound, generator=generator)
            parameter.copy_(value)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.weight.device

    def hidden_states(self, ids_BT: Tensor, cache: KVCache | None = None) -> Tensor:
        """Normalised output of the last block, shape BTC, for tokens that follow those in the cache."""
        config = self.config
        start, length = (0 if cache is None else cache.length), ids_BT.size(1)
        cos, sin = rotary_angles(start, length, config.head_dim, config.rope_base, ids_BT.device)
        embedded_BTC = norm(self.embedding(ids_BT).to(self.compute_dtype))
        x_BTC = embedded_BTC
        residual_scales = self.residual_scales.to(self.compute_dtype)
        embedding_scales = self.embedding_scales.to(self.compute_dtype)
        for layer, block in enumerate(self.blocks):
            x_BTC = residual_scales[layer] * x_BTC + embedding_scales[layer] * embedded_BTC
            x_BTC = block(x_BTC, (cos, sin), cache)
        if cache is not None:
            cache.advance(length)
        return norm(x_BTC)

    def logits(self, hidden_BTC: Tensor) -> Tensor:
        """Capped float32 logits of the real vocabulary, shape BTV: padding rows never enter a softmax."""
        logits_BTV = self.lm_head(hidden_BTC)[..., : self.config.vocab_size].float()
        cap = self.config.logit_softcap
        return cap * torch.tanh(logits_BTV / cap)

    def forward(self, ids_BT: Tensor, cache: KVCache | None = None) -> Tensor:
        """Logits of the next token at every position, shape BTV."""
        return self.logits(self.hidden_states(ids_BT, cache))

    def loss(self, ids_BT: Tensor, targets_BT: Tensor, reduction: Literal["mean", "none"] = "mean") -> Tensor:
        """Cross-entropy in nats: a scalar, or shape BT with 0 where the target is `IGNORED`."""
        logits_NV = self(ids_BT).flatten(0, 1)
        loss = F.cross_entropy(logits_NV, targets_BT.flatten(), ignore_index=IGNORED, reduction=reduction)
        return loss if reduction == "mean" else loss.view_as(targets_BT)
