"""The attention kernel against a float64 reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.model.kernels.attention import attention


def reference(query, key, value, window):
    """Attention as its definition says, one query at a time."""
    (_, heads, num_queries, width), (_, groups, num_keys, _) = query.shape, key.shape
    out = torch.zeros_like(query)
    for head in range(heads):
        group = head // (heads // groups)
        for t in range(num_queries):
            i = num_keys - num_queries + t
            first = 0 if window is None else max(0, i - window)
            scores = (key[:, group, first : i + 1] * query[:, head, t : t + 1]).sum(-1) / width**0.5
            out[:, head, t] = (scores.softmax(-1).unsqueeze(-1) * value[:, group, first : i + 1]).sum(1)
    return out


@settings(max_examples=60, deadline=None)
@given(
    keys=st.integers(1, 20),
    queries=st.integers(1, 20),
    window=st.none() | st.integers(1, 25),
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
)
def test_matches_the_reference(keys, queries, window, heads) -> None:
    queries = min(queries, keys)
    generator = torch.Generator().manual_seed(keys * 100 + queries)
    query = torch.randn(2, heads[0], queries, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    key, value = (
        torch.randn(2, heads[1], keys, 8, dtype=torch.float64, generator=generator, requires_grad=True)
        for _ in range(2)
    )
    ours = attention(query, key, value, window=window)
    truth = reference(query, key, value, window)
    torch.testing.assert_close(ours, truth)
    weights = torch.randn(ours.shape, dtype=torch.float64, generator=generator)
    for a, b in zip(
        torch.autograd.grad((ours * weights).sum(), (query, key, value)),
        torch.autograd.grad((truth * weights).sum(), (query, key, value)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_stays_close(dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 33, 16, generator=generator) for _ in range(3))
    truth = reference(query.double(), key.double(), value.double(), 7)
    ours = attention(query.to(dtype), key.to(dtype), value.to(dtype), window=7)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(ours.double(), truth, atol=tolerance, rtol=tolerance)
