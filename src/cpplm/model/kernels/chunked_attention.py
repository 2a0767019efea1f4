"""Attention in pure PyTorch, a block of queries at a time, touching only the keys in their reach.

With a window the work grows with T * window instead of T * S. Scores exist for one block only, in the forward
and in the backward pass, which computes them once more (as FlashAttention does, Dao et al. 2022, arXiv
2205.14135, appendix B). Scores, softmax and sums over blocks are float32 or better, whatever comes in. Both
passes are custom operators: to torch.compile they are one node each, whatever the length.

Shapes: B batch, H query heads, G key-value heads, R query heads per key-value head, T queries, S keys, D head
width, Q queries of a block, K keys in its reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cpplm.model.kernels.masks import Visibility
from cpplm.model.kernels.registry import accum_dtype

# Scores of one block: what stays in a CPU's caches, what fills a GPU.
_BLOCK_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}
_MAX_ROWS = 128  # more would compute more scores that the window hides
_MIN_ROWS = 64  # fewer make slow matrix products


@dataclass(frozen=True)
class _QueryTile:
    """Some rows of the batch, some queries, and the keys that these reach."""

    rows: slice
    queries: slice
    keys: slice


def chunked_attention(query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, seen: Visibility) -> Tensor:
    """Compute `attention` on any device, in any dtype, of any shape."""
    window, documents = seen
    documents = query_BHTD.new_empty(0, dtype=torch.int64) if documents is None else documents
    return _forward(query_BHTD, key_BGSD, value_BGSD, documents, -1 if window is None else window)


def _blocks(query: Tensor, key: Tensor, documents: Tensor, window: int) -> Iterator[_QueryTile]:
    (batch, heads, num_queries, _), num_keys = query.shape, key.size(2)
    reach = num_keys if window < 0 else min(num_keys, window + _MAX_ROWS)
    budget = _BLOCK_ELEMENTS.get(query.device.type, _BLOCK_ELEMENTS["cpu"])
    size = max(_MIN_ROWS, min(_MAX_ROWS, budget // (heads * reach)))
    batch_rows = max(1, budget // (heads * reach * size))
    earlier = num_keys - num_queries
    for row in range(0, batch, batch_rows):
        for first in range(0, num_queries, size):
            end = min(first + size, num_queries)
            start = 0 if window < 0 else max(0, earlier + first - window)
            block = _QueryTile(
                slice(row, min(row + batch_rows, batch)), slice(first, end), slice(start, earlier + end)
            )
            # Elsewhere than on the CPU it would cost more to wait for the answer than to compute with it.
            if documents.numel() and documents.device.type == "cpu":
                block = _without_earlier_documents(block, documents)
            yield block


def _without_earlier_documents(block: _QueryTile, documents: Tensor) -> _QueryTile:
    """The block without the keys in front of all documents that its queries belong to."""
    num_queries = block.queries.stop - block.queries.start
    key_BK = documents[block.rows, block.keys].contiguous()
    seen_K = torch.isin(key_BK, key_BK[:, -num_queries:].contiguous()).any(0)
    return replace(block, keys=slice(block.keys.start + int(seen_K.int().argmax()), block.keys.stop))


def _grouped(heads_BHTD: Tensor, block: _QueryTile, groups: int, dtype: torch.dtype) -> Tensor:
    """The block's queries, or what belongs to them, as (B, G, R * Q, D)."""
    of_block = heads_BHTD[block.rows, :, block.queries].to(dtype)
    return of_block.reshape(of_block.size(0), groups, -1, of_block.size(-1))


def _weights(
    query_BGND: Tensor, key_BGKD: Tensor, documents: Tensor, window: int, block: _QueryTile
) -> Tensor:
    """Attention weights (B, G, R * Q, K). N is R * Q."""
    scores_BGNK = (query_BGND * query_BGND.size(-1) ** -0.5) @ key_BGKD.mT
    device, num_queries = scores_BGNK.device, block.queries.stop - block.queries.start
    last = torch.arange(block.keys.stop - num_queries, block.keys.stop, device=device)
    distance_QK = last.unsqueeze(1) - torch.arange(block.keys.start, block.keys.stop, device=device)
    hidden_QK = distance_QK < 0 if window < 0 else (distance_QK < 0) | (distance_QK > window)
    hidden = hidden_QK
    if documents.numel():
        key_BK = documents[block.rows, block.keys].contiguous()
        own_BQ = key_BK[:, -num_queries:]
        hidden = (hidden_QK | (own_BQ.unsqueeze(2) != key_BK.unsqueeze(1))).unsqueeze(1)
    repeats = query_BGND.size(2) // num_queries
    scores_BGNK.masked_fill_(torch.cat([hidden] * repeats, dim=-2), -torch.inf)
    return scores_BGNK.softmax(-1)


@torch.library.custom_op("cpplm::chunked_attention", mutates_args=())
def _forward(query: Tensor, key: Tensor, value: Tensor, documents: Tensor, window: int) -> Tensor:
    accum = accum_dtype(query.dtype)
    mixed, groups = torch.empty_like(query), key.size(1)
    accum_key, accum_value = key.to(accum), value.to(accum)
    for block in _blocks(query, key, documents, window):
        query_BGND = _grouped(query, block, groups, accum)
        weights_BGNK = _weights(query_BGND, accum_key[block.rows, :, block.keys], documents, window, block)
        of_block = weights_BGNK @ accum_value[block.rows, :, block.keys]
        into = mixed[block.rows, :, block.queries]
        into.copy_(of_block.reshape(into.shape))
    return mixed


@_forward.register_fake
def _(query, key, value, documents, window):  # type: ignore[no-untyped-def]
    del key, value, documents, window
    return torch.empty_like(query)


@torch.library.custom_op("cpplm::chunked_attention_backward", mutates_args=())
def _backward(
    grad_mixed: Tensor,
    mixed: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Tensor,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value: P = softmax(S), dS = P (dP - sum(dO O))."""
    accum, groups, scale = accum_dtype(query.dtype), key.size(1), query.size(-1) ** -0.5
    of_query = torch.empty_like(query)
    of_key, of_value = (torch.zeros(key.shape, dtype=accum, device=key.device) for _ in range(2))
    accum_key, accum_value = key.to(accum), value.to(accum)
    for block in _blocks(query, key, documents, window):
        keys_here = (block.rows, slice(None), block.keys)
        query_BGND, grad_BGND, mixed_BGND = (
            _grouped(tensor, block, groups, accum) for tensor in (query, grad_mixed, mixed)
        )
        weights_BGNK = _weights(query_BGND, accum_key[keys_here], documents, window, block)
        of_value[keys_here] += weights_BGNK.mT @ grad_BGND
        total_BGN1 = (grad_BGND * mixed_BGND).sum(-1, keepdim=True)
        of_scores = (grad_BGND @ accum_value[keys_here].mT).sub_(total_BGN1).mul_(weights_BGNK).mul_(scale)
        of_key[keys_here] += of_scores.mT @ query_BGND
        into = of_query[block.rows, :, block.queries]
        into.copy_((of_scores @ accum_key[keys_here]).reshape(into.shape))
    return of_query, of_key.to(key.dtype), of_value.to(value.dtype)


@_backward.register_fake
def _(grad_mixed, mixed, query, key, value, documents, window):  # type: ignore[no-untyped-def]
    del grad_mixed, mixed, documents, window
    like_key = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (key, value))
    return (torch.empty_like(query), *like_key)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.window = inputs
    ctx.save_for_backward(output, *tensors)


def _autograd_backward(ctx, grad_mixed):  # type: ignore[no-untyped-def]
    return (*_backward(grad_mixed, *ctx.saved_tensors, ctx.window), None, None)


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
