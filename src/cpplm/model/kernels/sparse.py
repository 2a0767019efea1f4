"""Attention to the keys that an indexer chooses, and the indexer's own loss (DSA, arXiv 2512.02556, section
2).

`masks.py` says which keys are chosen. The indexer learns from the divergence of its softmax from the
attention weights summed over heads, equations 3 and 4; no gradient of the language model's loss reaches it,
and none of its own loss reaches anything else.

Everything is computed for one block of queries at a time, in the forward and in the backward pass, so memory
grows with the length of the sequence and not with its square. Both passes are custom operators: to
torch.compile they are one node each, whatever the length.

Shapes: B batch, T queries, S keys, H query heads, G key-value heads, R query heads per key-value head, D
head_dim, J indexer heads, E indexer_dim, Q queries of one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cpplm.model.kernels.masks import SparseSpec, index_scores, select_keys
from cpplm.model.kernels.registry import accum_dtype

# Scores of one block, all heads and the indexer's together: what stays in a CPU's caches, what fills a GPU.
BLOCK_ELEMENTS = {"cpu": 2**21, "cuda": 2**26}
LOWEST = -1e30  # instead of -inf, which makes NaN of what is multiplied by 0


@dataclass
class _ScoreTile:
    """Scores of some queries; what is needed of them by both passes."""

    rows: slice
    num_keys: int
    positive_BQJS: Tensor
    index_BQS: Tensor
    chosen_BQS: Tensor
    weights_BGRQS: Tensor


def sparse_attention(
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    index_query_BJTE: Tensor,
    index_key_BSE: Tensor,
    index_weight_BTJ: Tensor,
    spec: SparseSpec,
    documents_BS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of the last T positions to the chosen among S keys.

    Returns:
        The mixed values, shape BHTD, and the indexer's divergence in nats, shape BT, float32.
    """
    if query_BHTD.size(2) == 1 and not torch.is_grad_enabled():
        _, index_B1S = index_scores(index_query_BJTE, index_key_BSE, index_weight_BTJ)
        visible_B1S = torch.ones_like(index_B1S, dtype=torch.bool)
        if documents_BS is not None:
            visible_B1S = (documents_BS == documents_BS[:, -1:]).unsqueeze(1)
        mixed = _decode(query_BHTD, key_BGSD, value_BGSD, index_B1S, visible_B1S, spec)
        return mixed, mixed.new_zeros(mixed.size(0), 1, dtype=torch.float32)
    documents_BS = query_BHTD.new_empty(0, dtype=torch.int64) if documents_BS is None else documents_BS
    return _forward(
        query_BHTD, key_BGSD, value_BGSD, index_query_BJTE, index_key_BSE, index_weight_BTJ, documents_BS,
        spec.top_k, spec.local_window, spec.dense,
    )  # fmt: skip


def _decode(
    query_BH1D: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, index_B1S: Tensor, visible_B1S: Tensor, spec:
    SparseSpec,
) -> Tensor:  # fmt: skip
    """One new token: only the chosen keys and values are read. The same spec, and the same result."""
    num_keys = key_BGSD.size(2)
    distance_1S = torch.arange(num_keys - 1, -1, -1, device=key_BGSD.device).unsqueeze(0)
    chosen_BS = select_keys(index_B1S, visible_B1S, distance_1S, spec).squeeze(1)
    count = int(chosen_BS.sum(-1).max())
    indices_BK = chosen_BS.to(torch.uint8).topk(count, sorted=False).indices
    rows_B1K1 = indices_BK[:, None, :, None]
    key_BGKD = key_BGSD.take_along_dim(rows_B1K1, dim=2)
    value_BGKD = value_BGSD.take_along_dim(rows_B1K1, dim=2)
    mask_B11K = chosen_BS.gather(1, indices_BK)[:, None, None]
    return torch.nn.functional.scaled_dot_product_attention(
        query_BH1D,
        key_BGKD,
        value_BGKD,
        attn_mask=mask_B11K,
        enable_gqa=query_BH1D.size(1) != key_BGSD.size(1),
    )


def _blocks(
    query: Tensor, key: Tensor, index_query: Tensor, index_key: Tensor, index_weight: Tensor, documents:
    Tensor, spec: SparseSpec,
) -> Iterator[_ScoreTile]:  # fmt: skip
    """The scores, block by block of queries; keys behind the block's last query are left out."""
    batch, heads, num_queries, width = query.shape
    groups, num_keys = key.size(1), key.size(2)
    budget = BLOCK_ELEMENTS.get(query.device.type, BLOCK_ELEMENTS["cpu"])
    size = max(1, budget // (batch * (heads + index_query.size(1)) * num_keys))
    earlier = num_keys - num_queries
    for first in range(0, num_queries, size):
        rows = slice(first, min(first + size, num_queries))
        end = earlier + rows.stop
        positions_Q1 = torch.arange(earlier + first, end, device=query.device).unsqueeze(1)
        distance_QS = positions_Q1 - torch.arange(end, device=query.device)
        visible_BQS = (distance_QS >= 0).expand(batch, -1, -1)
        if documents.numel():
            own_BQ1 = documents[:, earlier + rows.start : end].unsqueeze(-1)
            visible_BQS = visible_BQS & (own_BQ1 == documents[:, None, :end])
        positive_BQJS, index_BQS = index_scores(
            index_query[:, :, rows], index_key[:, :end], index_weight[:, rows]
        )
        chosen_BQS = select_keys(index_BQS, visible_BQS, distance_QS, spec)
        query_BGRQD = query[:, :, rows].unflatten(1, (groups, heads // groups))
        scores_BGRQS = (query_BGRQD @ key[:, :, None, :end].mT).float() * width**-0.5
        scores_BGRQS.masked_fill_(~chosen_BQS[:, None, None], LOWEST)
        yield _ScoreTile(rows, end, positive_BQJS, index_BQS, chosen_BQS, scores_BGRQS.softmax(-1))


def _index_softmax(block: _ScoreTile) -> tuple[Tensor, Tensor]:
    """The indexer's log probabilities of the chosen keys, and the attention that they should be, both BQS."""
    log_BQS = block.index_BQS.masked_fill(~block.chosen_BQS, LOWEST).log_softmax(-1)
    return log_BQS, block.weights_BGRQS.mean((1, 2))


@torch.library.custom_op("cpplm::sparse_attention", mutates_args=())
def _forward(
    query: Tensor, key: Tensor, value: Tensor, index_query: Tensor, index_key: Tensor, index_weight: Tensor,
    documents: Tensor, top_k: int, local_window: int, dense: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    spec = SparseSpec(top_k, local_window, dense)
    mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
    divergence_BT = query.new_empty(query.size(0), query.size(2), dtype=torch.float32)
    for block in _blocks(query, key, index_query, index_key, index_weight, documents, spec):
        weights = block.weights_BGRQS.to(value.dtype)
        mixed[:, :, block.rows] = (weights @ value[:, :, None, : block.num_keys]).flatten(1, 2)
        log_BQS, target_BQS = _index_softmax(block)
        logarithm_BQS = target_BQS.clamp_min(1e-30).log()
        divergence_BT[:, block.rows] = (target_BQS * (logarithm_BQS - log_BQS)).sum(-1)
    return mixed, divergence_BT


@_forward.register_fake
def _(query, key, value, index_query, index_key, index_weight, documents, top_k, local_window, dense):  # type: ignore[no-untyped-def]
    del key, value, index_query, index_key, index_weight, documents, top_k, local_window, dense
    mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
    return mixed, query.new_empty(query.size(0), query.size(2), dtype=torch.float32)


@torch.library.custom_op("cpplm::sparse_attention_backward", mutates_args=())
def _backward(
    grad_mixed: Tensor, grad_divergence: Tensor, mixed: Tensor, query: Tensor, key: Tensor, value: Tensor,
    index_query: Tensor, index_key: Tensor, index_weight: Tensor, documents: Tensor, top_k: int, local_window:
    int, dense: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key, value, index query, index key, index weight; scores are computed once more."""
    spec = SparseSpec(top_k, local_window, dense)
    groups, scale = key.size(1), query.size(-1) ** -0.5
    of_query, of_index_query, of_index_weight = map(_zeros, (query, index_query, index_weight))
    of_key, of_value, of_index_key = map(_zeros, (key, value, index_key))
    for block in _blocks(query, key, index_query, index_key, index_weight, documents, spec):
        rows, end = block.rows, block.num_keys
        # Attention: P = softmax(S), dS = P (dP - sum(dO O)) as in FlashAttention (arXiv 2205.14135, appendix
        # B).
        grad_BGRQD = grad_mixed[:, :, rows].unflatten(1, (groups, -1))
        weights_BGRQS = block.weights_BGRQS
        of_value[:, :, :end] += (weights_BGRQS.to(value.dtype).mT @ grad_BGRQD).sum(2)
        total_BHQ1 = (grad_mixed[:, :, rows].float() * mixed[:, :, rows].float()).sum(-1, keepdim=True)
        of_scores = (grad_BGRQD @ value[:, :, None, :end].mT).float()
        of_scores = weights_BGRQS * (of_scores - total_BHQ1.unflatten(1, (groups, -1))) * scale
        of_scores = of_scores.to(query.dtype)
        of_query[:, :, rows] = (of_scores @ key[:, :, None, :end]).flatten(1, 2)
        of_key[:, :, :end] += (of_scores.mT @ query[:, :, rows].unflatten(1, (groups, -1))).sum(2)
        # Indexer: the gradient of the divergence in the index scores is softmax(I) - P over the chosen keys.
        log_BQS, target_BQS = _index_softmax(block)
        of_index_BQS = (log_BQS.exp() - target_BQS) * grad_divergence[:, rows].unsqueeze(-1)
        positive_BQJS = block.positive_BQJS
        of_index_weight[:, rows] = (positive_BQJS @ of_index_BQS.unsqueeze(-1)).squeeze(-1)
        of_products = of_index_BQS.unsqueeze(2) * index_weight[:, rows].float().unsqueeze(-1)
        of_products = of_products.mul_(positive_BQJS > 0).to(index_query.dtype).flatten(1, 2)
        of_rows = (of_products @ index_key[:, :end]).unflatten(1, positive_BQJS.shape[1:3])
        of_index_query[:, :, rows] = of_rows.transpose(1, 2)
        of_index_key[:, :end] += of_products.mT @ index_query[:, :, rows].transpose(1, 2).flatten(1, 2)
    gradients = (of_query, of_key, of_value, of_index_query, of_index_key, of_index_weight)
    inputs = (query, key, value, index_query, index_key, index_weight)
    return tuple(gradient.to(like.dtype) for gradient, like in zip(gradients, inputs, strict=True))  # type: ignore[return-value]


def _zeros(like: Tensor) -> Tensor:
    """Zeros to which blocks are added: float32 or better."""
    return torch.zeros(like.shape, dtype=accum_dtype(like.dtype), device=like.device)


@_backward.register_fake
def _(grad_mixed, grad_divergence, mixed, query, key, value, index_query, index_key, index_weight, *rest):  # type: ignore[no-untyped-def]
    del grad_mixed, grad_divergence, mixed, rest
    inputs = (query, key, value, index_query, index_key, index_weight)
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.top_k, ctx.local_window, ctx.dense = inputs
    ctx.save_for_backward(output[0], *tensors)


def _autograd_backward(ctx, grad_mixed, grad_divergence):  # type: ignore[no-untyped-def]
    mixed, *tensors = ctx.saved_tensors
    gradients = _backward(
        grad_mixed, grad_divergence, mixed, *tensors, ctx.top_k, ctx.local_window, ctx.dense
    )
    return (*gradients, None, None, None, None)


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
