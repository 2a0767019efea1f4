"""Attention and the other kernels of a cpplm model, here in plain PyTorch, with the same results.

Shapes: B batch, H query heads, G key-value heads, T queries, S keys, D head width, J indexer heads, E
width of one, Q queries of one block, R query heads per key-value head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cpplm.model.kernels.masks import SparseSpec, index_scores, select_keys, visible

BLOCK_ELEMENTS = 2**22  # scores of sparse attention held at once


def supports(x: Tensor) -> bool:
    """Whether `rms_norm` is quicker than torch's: not here."""
    del x
    return False


def rms_norm(x: Tensor) -> Tensor:
    """RMSNorm over the last dimension, without weights."""
    return F.rms_norm(x, (x.size(-1),))


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """The doubly stochastic matrix near exp(logits): columns and rows are normalized in turn."""
    matrix = (logits - logits.amax(dim=(-2, -1), keepdim=True)).exp()
    for _ in range(iterations):
        matrix = matrix / matrix.sum(-2, keepdim=True)
        matrix = matrix / matrix.sum(-1, keepdim=True)
    return matrix


def attention(
    query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, *, window: int | None = None,
    documents_BS: Tensor | None = None, backend: str = "sdpa",
) -> Tensor:  # fmt: skip
    """Causal attention of the last T of S tokens, BHTD, by `scaled_dot_product_attention`."""
    del backend
    queries, keys = query_BHTD.size(2), key_BGSD.size(2)
    hides_none = documents_BS is None and (window is None or keys <= window + 1)
    if hides_none and queries in (1, keys):
        return _sdpa(query_BHTD, key_BGSD, value_BGSD, None)
    mask = visible(queries, keys, window, query_BHTD.device, documents_BS)
    return _sdpa(query_BHTD, key_BGSD, value_BGSD, mask)


def sparse_attention(
    query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, index_query_BJTE: Tensor, index_key_BSE: Tensor,
    index_weight_BTJ: Tensor, spec: SparseSpec, documents_BS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of the last T tokens to the keys of highest index score, BHTD.

    The second result is the indexer's divergence, which it is trained with elsewhere: zeros, BT.
    """
    batch, heads, queries, _ = query_BHTD.shape
    keys = key_BGSD.size(2)
    no_divergence = query_BHTD.new_zeros(batch, queries, dtype=torch.float32)
    if spec.top_k >= keys:
        return attention(query_BHTD, key_BGSD, value_BGSD, documents_BS=documents_BS), no_divergence
    size = max(1, BLOCK_ELEMENTS // (batch * (heads + index_query_BJTE.size(1)) * keys))
    mixed = []
    for first in range(0, queries, size):  # memory grows with the length and not with its square
        rows = slice(first, min(first + size, queries))
        end = keys - queries + rows.stop
        positions_S = torch.arange(end, device=query_BHTD.device)
        distance_QS = positions_S[end - (rows.stop - first) :, None] - positions_S
        documents = None if documents_BS is None else documents_BS[:, :end]
        seen = visible(rows.stop - first, end, None, query_BHTD.device, documents)
        _, scores_BQS = index_scores(
            index_query_BJTE[:, :, rows], index_key_BSE[:, :end], index_weight_BTJ[:, rows]
        )
        chosen_BQS = select_keys(scores_BQS, seen.view(-1, *seen.shape[-2:]), distance_QS, spec)
        mask = chosen_BQS.expand(batch, -1, -1).unsqueeze(1)
        mixed.append(_sdpa(query_BHTD[:, :, rows], key_BGSD[:, :, :end], value_BGSD[:, :, :end], mask))
    return torch.cat(mixed, dim=2), no_divergence


def _sdpa(query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, mask: Tensor | None) -> Tensor:
    """Without a mask each query sees all keys up to its own."""
    shared = query_BHTD.size(1) != key_BGSD.size(1)
    if shared and query_BHTD.size(2) == 1:
        # Heads that share keys become queries of one head, so that each key is read once.
        query_BGRD = query_BHTD.reshape(query_BHTD.size(0), key_BGSD.size(1), -1, query_BHTD.size(3))
        mixed = F.scaled_dot_product_attention(query_BGRD, key_BGSD, value_BGSD, attn_mask=mask)
        return mixed.reshape(query_BHTD.shape)
    causal = mask is None and query_BHTD.size(2) > 1
    return F.scaled_dot_product_attention(
        query_BHTD, key_BGSD, value_BGSD, attn_mask=mask, is_causal=causal, enable_gqa=shared
    )
