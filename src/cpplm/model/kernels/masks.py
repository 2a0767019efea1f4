"""Masks of attention: which keys a query sees, and which of these an indexer selects.

The index score of query t for key s is sum_j w_tj ReLU(q_tj . k_s), equation 1 of DSA (arXiv 2512.02556).
A query attends to its local window and to the visible keys of highest score, `top_k` together; keys that tie
with the last one are all taken, so that the choice does not depend on how the work is cut up.

Shapes: B batch, T or Q queries, S keys, J indexer heads, E width of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Visibility(NamedTuple):
    """What causality leaves is visible as far as a window reaches, and in a query's own document."""

    window: int | None
    """Earlier tokens visible besides the token itself; None for all."""
    documents_BS: Tensor | None
    """The document of each key; None for one document."""


@dataclass(frozen=True)
class SparseSpec:
    """Size of a query's selection. `dense` takes all visible keys, as in the indexer's warm-up."""

    top_k: int
    local_window: int
    dense: bool


def visible(
    num_queries: int,
    num_keys: int,
    window: int | None,
    device: torch.device,
    documents_BS: Tensor | None = None,
) -> Tensor:
    """True where a query may look: shape TS, or B1TS with documents."""
    query_T1 = torch.arange(num_keys - num_queries, num_keys, device=device).unsqueeze(1)
    distance_TS = query_T1 - torch.arange(num_keys, device=device)
    mask_TS = distance_TS >= 0
    if window is not None:
        mask_TS = mask_TS & (distance_TS <= window)
    if documents_BS is None:
        return mask_TS
    own_BT = documents_BS[:, num_keys - num_queries :]
    return (mask_TS & (own_BT.unsqueeze(2) == documents_BS.unsqueeze(1))).unsqueeze(1)


def index_scores(
    index_query_BJQE: Tensor, index_key_BSE: Tensor, weight_BQJ: Tensor
) -> tuple[Tensor, Tensor]:
    """ReLU(q . k) of each head, shape BQJS, and the scores BQS; both float32."""
    batch, heads, queries, _ = index_query_BJQE.shape
    rows = index_query_BJQE.transpose(1, 2).reshape(batch, queries * heads, -1)
    positive_BQJS = (rows @ index_key_BSE.mT).float().relu_().view(batch, queries, heads, -1)
    return positive_BQJS, (weight_BQJ.float().unsqueeze(2) @ positive_BQJS).squeeze(2)


def select_keys(index_BQS: Tensor, visible_BQS: Tensor, distance_QS: Tensor, spec: SparseSpec) -> Tensor:
    """True for the keys that each query attends to, shape BQS."""
    if spec.dense or spec.top_k >= index_BQS.size(-1):
        return visible_BQS
    near_QS = (distance_QS >= 0) & (distance_QS <= spec.local_window)
    ranked_BQS = index_BQS.masked_fill(near_QS, torch.inf).masked_fill(~visible_BQS, -torch.inf)
    lowest_BQ1 = ranked_BQS.topk(spec.top_k, sorted=False).values.amin(-1, keepdim=True)
    return visible_BQS & (ranked_BQS >= lowest_BQ1)
