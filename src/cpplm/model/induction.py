"""Induction: the token that followed the longest earlier match of the context's end.

Code repeats itself, and a transformer learns only late to look where its last tokens stood before (induction
heads, Olsson et al. 2022, arXiv 2209.11895). Here that place is found by comparing ids, as in the n-gram
heads of Akyürek et al. 2024 (arXiv 2401.12973), and each embedding takes in that of the token
which followed there, through a matrix and a scale by how much matched. The matrix starts at zero, so the
model starts without.

Shapes: B batch, T new tokens, S tokens in reach (the new ones last), C model_dim, L lengths of matches.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpplm.model.config import INDUCTION_LENGTHS, ModelConfig
from cpplm.model.kv_cache.view import CacheView, KVCacheSpec
from cpplm.model.layers import Linear

_IDS = "induction ids"
_MOST_COMPARED = 8


class Induction(nn.Module):
    """Tells each token what followed an earlier match."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mix = Linear(config.model_dim, config.model_dim)
        self.scales = nn.Parameter(torch.empty(len(INDUCTION_LENGTHS)))

    @torch.no_grad()
    def init_constants(self) -> None:
        """All lengths count alike."""
        self.scales.fill_(1.0)

    def cache_specs(self) -> KVCacheSpec:
        """All ids, each with 1 added, since 0 stands before the start."""
        return KVCacheSpec(_IDS, (1,), None, torch.int64)

    def match(
        self, ids_BT: Tensor, cache: CacheView | None, documents_BT: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The token that followed the match, and which of the lengths matched, from 1; 0 for none.

        Both have the shape BT; where none matched, the token is any.

        Args:
            ids_BT: the tokens.
            cache: what was read before, in decoding.
            documents_BT: matches are of the document that each token names; not with a cache.
        """
        if cache is None:
            return match_next_token(ids_BT, documents_BT)
        ids_BS = cache.with_history(_IDS, ids_BT.unsqueeze(-1) + 1, cache.max_context).squeeze(-1)
        followers_BT, lengths_BT = match_next_token_incremental(ids_BS, ids_BT.size(1))
        return (followers_BT - 1).clamp(min=0), lengths_BT

    def forward(self, next_embed_BTC: Tensor, lengths_BT: Tensor) -> Tensor:
        """The part of the embeddings of the next tokens that is added to the embeddings, shape BTC."""
        # A sum, no lookup: on a GPU all tokens would add to the gradient of the same few elements in turn.
        numbers_L = torch.arange(1, len(self.scales) + 1, device=lengths_BT.device)
        chosen_BTL = (lengths_BT.unsqueeze(-1) == numbers_L).to(next_embed_BTC.dtype)
        scales_BT1 = (chosen_BTL * self.scales.to(next_embed_BTC.dtype)).sum(-1, keepdim=True)
        return scales_BT1 * self.mix(next_embed_BTC)


def match_next_token(ids_BT: Tensor, documents_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Match rows from their start, see `Induction.match`."""
    places_BT, lengths_BT = match_places(ids_BT, documents_BT)
    return ids_BT.gather(1, places_BT), lengths_BT


def match_places(ids_BT: Tensor, documents_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The place behind the longest earlier match of each token and those before it, and which length matched.

    Both have the shape BT and are 0 where none matched; lengths count from 1, as in `Induction.match`. Found
    by sorting, in O(T log T): a run of tokens has the rank of its last half and that of the half before;
    equal pairs are equal runs, so that each doubling takes one sort (prefix doubling, Karp, Miller and
    Rosenberg 1972). In a stable sort the latest equal run stands right in front.
    """
    length = ids_BT.size(1)
    places_T = torch.arange(length, device=ids_BT.device)
    ranks_BT = ids_BT
    if documents_BT is not None:
        ranks_BT = ids_BT + documents_BT * (ids_BT.max() + 1)
    places_BT, lengths_BT = torch.zeros_like(ids_BT), torch.zeros_like(ids_BT)
    for number, run in enumerate(INDUCTION_LENGTHS, 1):
        if run > 1:
            before_BT = F.pad(ranks_BT, (run // 2, 0))[:, :length]
            # What would begin before the row is equal to nothing.
            ranks_BT = torch.where(places_T >= run - 1, ranks_BT * length + before_BT, -1 - places_T)
        sorted_BT, order_BT = ranks_BT.sort(dim=1, stable=True)
        same_BT = F.pad(sorted_BT[:, 1:] == sorted_BT[:, :-1], (1, 0))
        following_BT = F.pad(order_BT[:, :-1] + 1, (1, 0))
        latest_BT = torch.zeros_like(order_BT).scatter(1, order_BT, torch.where(same_BT, following_BT, 0))
        ranks_BT = torch.zeros_like(order_BT).scatter(1, order_BT, (~same_BT).cumsum(1) - 1)
        places_BT = torch.where(latest_BT > 0, latest_BT, places_BT)
        lengths_BT = torch.where(latest_BT > 0, number, lengths_BT)
    return places_BT, lengths_BT


def match_next_token_incremental(ids_BS: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Match the last `count` tokens, see `Induction.match`.

    Rows are padded in front with ids that no token has. A few tokens are compared with all before them, which
    is faster than to sort those.
    """
    if count > _MOST_COMPARED:
        next_ids_BS, lengths_BS = match_next_token(ids_BS)
        return next_ids_BS[:, -count:], lengths_BS[:, -count:]
    length = ids_BS.size(1)
    first = length - count
    places_S = torch.arange(length, device=ids_BS.device)
    matched_BTS = places_S[first:, None] > places_S
    numbers_BTS = torch.zeros_like(ids_BS[:, None])
    for back in range(INDUCTION_LENGTHS[-1]):
        earlier_BS = F.pad(ids_BS, (back, 0), value=-1)[:, :length]
        matched_BTS = matched_BTS & (earlier_BS[:, first:, None] == earlier_BS[:, None])
        if back + 1 in INDUCTION_LENGTHS:
            numbers_BTS = numbers_BTS + matched_BTS
    # The longest, and of those the latest place.
    best_BT = (numbers_BTS * length + places_S).amax(-1)
    lengths_BT = best_BT // length
    return ids_BS.gather(1, torch.where(lengths_BT > 0, best_BT % length + 1, 0)), lengths_BT
