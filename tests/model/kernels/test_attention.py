"""Every attention kernel that runs here against a float64 reference; what each refuses; what auto takes."""

import dataclasses
import functools
import warnings
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from cpplm.core.errors import UserError
from cpplm.model.kernels import chunked_attention as chunked_module
from cpplm.model.kernels.attention import (
    ATTENTION,
    BACKENDS,
    CHUNKED_FROM,
    AttentionRequest,
    attention,
)
from cpplm.model.kernels.masks import Visibility, visible
from cpplm.model.kernels.registry import OptionalImport

WITH_GRADIENT = ("sdpa", "chunked", "auto")
HEADS = st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)])
CPU = AttentionRequest.training(torch.device("cpu"), torch.float32, head_dim=64, length=2048, window=1024)


def reference(query, key, value, window, documents=None):
    """Attention as its definition says, one query at a time."""
    (batch, heads, num_queries, width), (_, groups, num_keys, _) = query.shape, key.shape
    rows = []
    for b in range(batch):
        for head in range(heads):
            group = head // (heads // groups)
            for t in range(num_queries):
                i = num_keys - num_queries + t
                seen = [
                    j
                    for j in range(i + 1)
                    if (window is None or i - j <= window)
                    and (documents is None or documents[b, j] == documents[b, i])
                ]
                scores = (key[b, group, seen] * query[b, head, t]).sum(-1) / width**0.5
                rows.append(scores.softmax(-1) @ value[b, group, seen])
    return torch.stack(rows).view(query.shape)


def inputs(heads, queries, keys, *, width=8, batch=2, dtype=torch.float64, documents=False):
    """Query, key, value, and documents or None; the same for the same shape."""
    generator = torch.Generator().manual_seed(keys * 100 + queries)
    shapes = ((batch, heads[0], queries, width), *[(batch, heads[1], keys, width)] * 2)
    tensors = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    numbers = torch.randint(0, 3, (batch, keys), generator=generator)  # the same number may come back
    return *(tensor.to(dtype).requires_grad_() for tensor in tensors), numbers if documents else None


def gradients(mixed, *tensors):
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(mixed.shape, dtype=torch.float64, generator=generator)
    return torch.autograd.grad((mixed * weights).sum(), tensors)


@settings(max_examples=40)
@given(
    keys=st.integers(1, 20),
    queries=st.integers(1, 20),
    window=st.none() | st.integers(1, 25),
    heads=HEADS,
    documents=st.booleans(),
    backend=st.sampled_from(WITH_GRADIENT),
    rows=st.sampled_from([1, 3, 128]),
    together=st.booleans(),
)
def test_matches_the_reference(keys, queries, window, heads, documents, backend, rows, together) -> None:
    queries = min(queries, keys)
    *tensors, numbers = inputs(heads, queries, keys, documents=documents)
    small = {"_MAX_ROWS": rows, "_MIN_ROWS": rows, "_BLOCK_ELEMENTS": {"cpu": 2**19 if together else 1}}
    with patch.multiple(chunked_module, **small):
        ours = attention(*tensors, window=window, documents_BS=numbers, backend=backend)
        ours_gradients = gradients(ours, *tensors)
    truth = reference(*tensors, window, numbers)
    torch.testing.assert_close(ours, truth)
    torch.testing.assert_close(ours_gradients, gradients(truth, *tensors))


@pytest.mark.slow
@settings(max_examples=20)
@given(
    keys=st.integers(1, 20),
    queries=st.integers(1, 20),
    window=st.none() | st.integers(1, 25),
    heads=HEADS,
    documents=st.booleans(),
)
def test_flex_matches_the_reference_without_gradients(keys, queries, window, heads, documents) -> None:
    queries = min(queries, keys)
    *tensors, numbers = inputs(heads, queries, keys, documents=documents)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow when it is not compiled
        ours = attention(*tensors, window=window, documents_BS=numbers, backend="flex")
        torch.testing.assert_close(ours, reference(*tensors, window, numbers))


@pytest.mark.parametrize("backend", WITH_GRADIENT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_stays_close(dtype, backend) -> None:
    tensors = inputs((2, 2), 33, 33, width=16, batch=1, dtype=dtype)[:3]
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    ours, truth = attention(*tensors, window=7, backend=backend), reference(*wide, 7)
    assert ours.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(ours.double(), truth, atol=tolerance, rtol=tolerance)
    for one, other in zip(gradients(ours, *tensors), gradients(truth, *wide), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, atol=2 * tolerance, rtol=2 * tolerance)


def test_strides_of_the_query_do_not_matter() -> None:
    query, key, value, _ = inputs((4, 2), 12, 12, width=4)
    turned = query.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    plain = attention(query, key, value, window=3, backend="chunked")
    other = attention(turned, key, value, window=3, backend="chunked")
    torch.testing.assert_close(plain, other)
    torch.testing.assert_close(gradients(plain, query), gradients(other, turned))


@pytest.mark.parametrize(("window", "documents"), [(100, False), (None, True)])
def test_chunked_computes_few_scores(window: int | None, documents: bool) -> None:
    length = 2000
    query = torch.zeros(1, 2, length, 4)
    numbers = (torch.arange(length) // 100).unsqueeze(0) if documents else torch.empty(0, dtype=torch.int64)
    blocks = list(chunked_module._blocks(query, query, numbers, -1 if window is None else window))
    scores = [
        (block.queries.stop - block.queries.start) * (block.keys.stop - block.keys.start) for block in blocks
    ]
    seen = visible(length, length, window, query.device, numbers if documents else None)
    assert seen.sum() <= sum(scores) < length**2 / 6
    assert max(scores) * 2 <= chunked_module._BLOCK_ELEMENTS["cpu"]
    assert [block.queries.start for block in blocks[1:]] == [block.queries.stop for block in blocks[:-1]]


def test_the_operator_keeps_the_rules_of_torch() -> None:
    *tensors, numbers = inputs((2, 1), 5, 9, documents=True)
    torch.library.opcheck(torch.ops.cpplm.chunked_attention.default, (*tensors, numbers, 3))


@pytest.mark.parametrize("backend", ["sdpa", "chunked"])
@pytest.mark.parametrize("documents", [False, True])
def test_compiles_in_one_graph(backend: str, documents: bool) -> None:
    """Tracing and differentiating are what can fail; making machine code for it takes long."""
    torch._dynamo.reset()
    *tensors, numbers = inputs((4, 2), 30, 30, documents=documents)

    def call(query, key, value):
        return attention(query, key, value, window=6, documents_BS=numbers, backend=backend)

    compiled = torch.compile(call, fullgraph=True, dynamic=False, backend="aot_eager")(*tensors)
    plain = call(*tensors)
    torch.testing.assert_close(compiled, plain)
    torch.testing.assert_close(gradients(compiled, *tensors), gradients(plain, *tensors))


# ---- which one runs ----------------------------------------------------------------------------------------


def gpu(**changes) -> AttentionRequest:
    here = {"device": "cuda", "dtype": torch.bfloat16, "capability": (9, 0), "compiling": True}
    return dataclasses.replace(CPU, **here | changes)


def refusal(backend: str, request: AttentionRequest) -> str:
    return BACKENDS[backend].why_not(request)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "chunked"),
        ({"window": None}, "sdpa"),
        ({"window": None, "documents": True}, "chunked"),
        ({"queries": CHUNKED_FROM}, "chunked"),
        ({"queries": CHUNKED_FROM - 1}, "sdpa"),
        ({"queries": 1, "window": None}, "sdpa"),
        ({"queries": 1000, "window": None}, "chunked"),  # a long prompt behind a cache needs a mask
        ({"device": "mps"}, "chunked"),
    ],
)
def test_automatic_choice_without_a_gpu(change: dict, expected: str) -> None:
    assert ATTENTION.select(dataclasses.replace(CPU, **change)).name == expected


def test_automatic_choice_on_a_gpu() -> None:
    """As decided from documentation: with libraries and without, masked and not."""
    assert ATTENTION.select(gpu()).name == "flex"
    assert ATTENTION.select(gpu(compiling=False)).name == "sdpa"
    assert ATTENTION.select(gpu(window=None)).name == "sdpa"
    installed = {
        name: dataclasses.replace(BACKENDS[name], library=OptionalImport(print, ""))
        for name in ("flash2", "flash3")
    }
    with patch.dict(BACKENDS, installed):
        assert ATTENTION.select(gpu()).name == "flash3"
        assert ATTENTION.select(gpu(window=None)).name == "flash3"
        assert ATTENTION.select(gpu(documents=True)).name == "flex"
        assert ATTENTION.select(gpu(capability=(8, 0))).name == "flash2"
        assert ATTENTION.select(gpu(dtype=torch.float32)).name == "flex"
        assert "Hopper" in refusal("flash3", gpu(capability=(10, 0)))
        assert "documents" in refusal("flash2", gpu(documents=True))
        assert "multiple of 8" in refusal("flash2", gpu(head_dim=20))
        assert "8.0 or newer, this GPU has 7.5" in refusal("flash2", gpu(capability=(7, 5)))
        assert "bfloat16 or float16, not float32" in refusal("flash2", gpu(dtype=torch.float32))


def test_flex_refuses_what_it_cannot() -> None:
    assert "backward" in refusal("flex", CPU)
    assert not refusal("flex", dataclasses.replace(CPU, gradient=False))
    assert "mps" in refusal("flex", dataclasses.replace(CPU, device="mps"))
    half = dataclasses.replace(CPU, gradient=False, compiling=True, dtype=torch.float64)
    assert "float64" in refusal("flex", half)


def test_one_query_of_grouped_heads_in_any_layout() -> None:
    """Kernels of CUDA give time before heads."""
    query, key, value, numbers = inputs((6, 2), 1, 12, documents=True)
    expected = attention(query, key, value, documents_BS=numbers, backend="sdpa")

    def time_before_heads(*tensors, **options):
        mixed_BHTD = scaled_dot_product_attention(*tensors, **options)
        return mixed_BHTD.transpose(1, 2).contiguous().transpose(1, 2)

    with patch("torch.nn.functional.scaled_dot_product_attention", time_before_heads):
        assert torch.equal(attention(query, key, value, documents_BS=numbers, backend="sdpa"), expected)


@pytest.mark.parametrize("backend", ["flash2", "flash3"])
@pytest.mark.parametrize(("queries", "window"), [(12, 5), (12, None), (3, 5), (1, 4)])
def test_flash_is_called_as_its_documentation_says(backend: str, queries: int, window: int | None) -> None:
    """Its own words: time before heads, (left, right) window inclusive, counted from the last key."""
    query, key, value, _ = inputs((4, 2), queries, 12)

    def flash_attn_func(q, k, v, *, causal, window_size):
        left, right = window_size
        assert causal
        assert right == 0
        mask = visible(q.size(1), k.size(1), None if left == -1 else left, q.device)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        k, v = (x.repeat_interleave(q.size(1) // k.size(1), 1) for x in (k, v))
        scores = (q @ k.mT / q.size(-1) ** 0.5).masked_fill(~mask, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2)
        return (mixed, None) if backend == "flash3" else mixed

    run = BACKENDS[backend].run
    assert isinstance(run, functools.partial)
    ours = run.func(OptionalImport(flash_attn_func, ""), query, key, value, Visibility(window, None))
    torch.testing.assert_close(ours, reference(query, key, value, window))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["sdpa", "chunked", "flex", "flash2", "flash3"])
@pytest.mark.parametrize(("window", "documents"), [(None, False), (100, False), (100, True)])
def test_on_a_gpu(backend: str, window: int | None, documents: bool) -> None:
    *tensors, numbers = inputs((4, 2), 300, 300, width=64, dtype=torch.bfloat16, documents=documents)
    here = [tensor.detach().cuda().requires_grad_() for tensor in tensors]
    numbers = None if numbers is None else numbers.cuda()
    try:
        ours = attention(*here, window=window, documents_BS=numbers, backend=backend)
    except UserError as error:
        pytest.skip(str(error))
    wide = [tensor.detach().cuda().double().requires_grad_() for tensor in tensors]
    truth = attention(*wide, window=window, documents_BS=numbers, backend="chunked")
    torch.testing.assert_close(ours.double(), truth, atol=3e-2, rtol=3e-2)
    weights = torch.randn_like(truth)
    for one, other in zip(
        torch.autograd.grad((ours * weights).sum(), here),
        torch.autograd.grad((truth * weights).sum(), wide),
        strict=True,
    ):
        torch.testing.assert_close(one.double(), other, atol=6e-2, rtol=6e-2)
