"""Sparse attention against its definition in float64, and its indexer's training."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.hardware import peak_memory_bytes
from cpplm.model.kernels import sparse
from cpplm.model.kernels.masks import SparseSpec
from cpplm.model.kernels.sparse import sparse_attention
from tests.model.features import CONFIGS, random_ids, random_model

NAMES = ("query", "key", "value", "index_query", "index_key", "index_weight")


def inputs(queries: int, keys: int, *, batch: int = 2, heads: int = 4, groups: int = 2, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)

    return (
        random(batch, heads, queries, 8), random(batch, groups, keys, 8), random(batch, groups, keys, 8),
        random(batch, 3, queries, 6), random(batch, keys, 6), random(batch, queries, 3),
    )  # fmt: skip


def reference(query, key, value, index_query, index_key, index_weight, spec, documents=None):
    """One query at a time, as the report defines it (equations 1 to 4); ties are all taken."""
    (batch, heads, num_queries, width), (_, groups, num_keys, _) = query.shape, key.shape
    mixed, divergence = torch.zeros_like(query), torch.zeros(batch, num_queries, dtype=torch.float64)
    for b in range(batch):
        for t in range(num_queries):
            i = num_keys - num_queries + t
            seen = [s for s in range(i + 1) if documents is None or documents[b, s] == documents[b, i]]
            scores = torch.stack(
                [(index_weight[b, t] * (index_query[b, :, t] @ index_key[b, s]).relu()).sum() for s in seen]
            )
            ranked = [
                math.inf if i - s <= spec.local_window else float(x.detach())
                for s, x in zip(seen, scores, strict=True)
            ]
            least = -math.inf if spec.dense else sorted(ranked, reverse=True)[: spec.top_k][-1]
            taken = [n for n, rank in enumerate(ranked) if rank >= least]
            rows = [seen[n] for n in taken]
            target = torch.zeros(len(rows), dtype=torch.float64)
            for head in range(heads):
                group = head // (heads // groups)
                weights = (key[b, group, rows] @ query[b, head, t] / width**0.5).softmax(-1)
                mixed[b, head, t] = weights @ value[b, group, rows]
                target = target + weights.detach() / heads
            divergence[b, t] = (target * (target.log() - scores[taken].log_softmax(-1))).sum()
    return mixed, divergence


@settings(max_examples=15, deadline=None)
@given(
    keys=st.integers(1, 14),
    queries=st.integers(1, 14),
    top_k=st.integers(2, 16),
    window=st.integers(0, 3),
    dense=st.booleans(),
    documents=st.booleans(),
    groups=st.sampled_from([1, 2, 4]),
    block=st.sampled_from([1, 200, 2**24]),
)
def test_matches_the_reference(keys, queries, top_k, window, dense, documents, groups, block) -> None:
    queries = min(queries, keys)
    tensors = inputs(queries, keys, groups=groups, seed=keys * 20 + queries)
    spec = SparseSpec(top_k, window, dense)
    own = torch.arange(keys).div(4, rounding_mode="floor").expand(2, -1) if documents else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sparse.BLOCK_ELEMENTS, "cpu", block)
        ours = sparse_attention(*tensors, spec, own)
        truth = reference(*tensors, spec, own)
        # The divergence comes out of float32 scores of the indexer.
        torch.testing.assert_close(ours[0], truth[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours[1].double(), truth[1], atol=1e-5, rtol=1e-4)
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(x.shape, dtype=torch.float64, generator=generator) for x in truth]
        got = torch.autograd.grad(sum((x * w).sum() for x, w in zip(ours, weights, strict=True)), tensors)
        want = torch.autograd.grad(sum((x * w).sum() for x, w in zip(truth, weights, strict=True)), tensors)
    for name, a, b in zip(NAMES, got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("documents", [False, True])
def test_one_query_without_gradients(documents: bool) -> None:
    """Decoding gathers the chosen keys: another path."""
    tensors, spec = inputs(1, 60), SparseSpec(8, 2, dense=False)
    own = torch.arange(60).div(25, rounding_mode="floor").expand(2, -1) if documents else None
    with torch.no_grad():
        mixed, _ = sparse_attention(*tensors, spec, own)
        torch.testing.assert_close(mixed, reference(*tensors, spec, own)[0], atol=1e-6, rtol=1e-6)


def test_the_indexer_and_the_language_model_learn_nothing_from_each_other() -> None:
    """The divergence has gradients in the indexers alone, the loss in all but them."""
    model, ids = random_model(CONFIGS["sparse"]), random_ids(2, 16)
    _, divergence = model.states(model.forward_context(ids))
    for of_indexer, total in ((False, model.loss(ids, ids.roll(-1, dims=1))), (True, divergence)):
        model.zero_grad()
        total.backward()
        for name, parameter in model.named_parameters():
            if (".indexer." in name) != of_indexer:
                assert parameter.grad is None or not parameter.grad.any(), name
        assert any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.slow
def test_a_long_sequence() -> None:
    """A few queries against the definition; memory is a small part of what the scores of all would need."""
    length = 16_384
    tensors = inputs(length, length, batch=1, heads=2, groups=1)
    query, key, value, *index = (tensor.detach().float().requires_grad_() for tensor in tensors)
    spec = SparseSpec(256, 32, dense=False)
    before = peak_memory_bytes(torch.device("cpu"))
    mixed, _ = sparse_attention(query, key, value, *index, spec)
    mixed.square().sum().backward()
    assert torch.isfinite(key.grad).all()
    assert peak_memory_bytes(torch.device("cpu")) - before < 4 * length**2 / 2
    for position in (300, length // 2, length - 1):
        rows, upto = slice(position, position + 1), slice(position + 1)
        truth, _ = reference(
            query[:, :, rows].double(), key[:, :, upto].double(), value[:, :, upto].double(),
            index[0][:, :, rows].double(), index[1][:, upto].double(), index[2][:, rows].double(), spec,
        )  # fmt: skip
        torch.testing.assert_close(mixed[:, :, rows].double(), truth, atol=1e-4, rtol=1e-4)
        with torch.no_grad():
            decoded, _ = sparse_attention(
                query[:, :, rows], key[:, :, upto], value[:, :, upto],
                index[0][:, :, rows], index[1][:, upto], index[2][:, rows], spec,
            )  # fmt: skip
        torch.testing.assert_close(decoded, mixed[:, :, rows], atol=1e-5, rtol=1e-5)
