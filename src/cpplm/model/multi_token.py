"""Heads that predict tokens further ahead (MTP, DeepSeek-V3, arXiv 2412.19437, section 2.2).

Head k joins the state at position i with the embedding of token i+k, passes both through a transformer block,
and predicts token i+k+1 with the model's own output head. The heads keep the causal chain, so at inference
they draft what the model then checks.

Shapes: B batch, T tokens, C model_dim.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from cpplm.model.attention import ForwardContext
from cpplm.model.block import TransformerBlock
from cpplm.model.config import ModelConfig
from cpplm.model.kv_cache.view import KVCacheSpec
from cpplm.model.layers import Linear, norm
from cpplm.tokenizer.special_tokens import IGNORE_INDEX


class MultiTokenHead(nn.Module):
    """One step further ahead."""

    def __init__(self, config: ModelConfig, head: int) -> None:
        super().__init__()
        self.merge = Linear(2 * config.model_dim, config.model_dim)
        self.block = TransformerBlock(config.multi_token_block(), 0, f"head {head} ")

    def cache_specs(self) -> list[KVCacheSpec]:
        """Tensors that the head caches per token in decoding."""
        return self.block.cache_specs()

    def forward(self, hidden_BTC: Tensor, next_embedded_BTC: Tensor, context: ForwardContext) -> Tensor:
        """Normalized states, shape BTC, that predict one token further than `hidden_BTC`.

        Args:
            hidden_BTC: normalized states of the model, or of the head before this one.
            next_embedded_BTC: normalized embeddings of the tokens that `hidden_BTC` predicts.
            context: of the positions of `hidden_BTC`.
        """
        merged_BTC = self.merge(torch.cat((hidden_BTC, next_embedded_BTC), dim=-1))
        states_BTC, _ = self.block(merged_BTC, context)
        return norm(states_BTC)


def count_targets(targets_BT: Tensor, depth: int) -> Tensor:
    """Targets that count, for the next token and for each of `depth` heads: shape (1 + depth,), float64."""
    targets = [targets_BT, *(further_BT for _, further_BT in mtp_targets(targets_BT, depth))]
    return torch.stack([(each != IGNORE_INDEX).sum() for each in targets]).double()


def mtp_targets(targets_BT: Tensor, depth: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each head its input ids and its targets, both BT.

    A head has a target where all tokens up to it are known: none is ignored, none lies behind the row's end.
    """
    known_BT = targets_BT
    for _ in range(depth):
        shifted_BT = torch.full_like(known_BT, IGNORE_INDEX)
        shifted_BT[:, :-1] = known_BT[:, 1:]
        target_BT = torch.where(known_BT == IGNORE_INDEX, IGNORE_INDEX, shifted_BT)
        yield known_BT.clamp(min=0), target_BT
        known_BT = target_BT
