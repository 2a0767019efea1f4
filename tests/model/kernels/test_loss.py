"""Every loss kernel that runs here against float64; what each refuses; what auto takes."""

import dataclasses
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.model.kernels import chunked_loss as chunked_module
from cpplm.model.kernels import loss as loss_module
from cpplm.model.kernels.loss import BACKENDS, LOSS, LossOptions, LossRequest, linear_cross_entropy
from cpplm.model.kernels.registry import OptionalImport
from cpplm.tokenizer.special_tokens import IGNORE_INDEX

HERE = ("native", "chunked", "auto")
REDUCTIONS = ("mean", "none")
CPU = LossRequest.training(torch.device("cpu"), torch.float32, softcap=15.0)
GPU = dataclasses.replace(CPU, device="cuda", dtype=torch.bfloat16, capability=(9, 0))


def reference(hidden, weight, targets, vocab_size, softcap, reduction):
    """Row by row, from log_softmax, for float64."""
    losses = []
    for row, target in zip(hidden, targets.tolist(), strict=True):
        logits = weight[:vocab_size] @ row
        logits = softcap * torch.tanh(logits / softcap) if softcap else logits
        losses.append(logits.sum() * 0 if target == IGNORE_INDEX else -logits.log_softmax(0)[target])
    counted = (targets != IGNORE_INDEX).sum().clamp(min=1)
    return torch.stack(losses) if reduction == "none" else torch.stack(losses).sum() / counted


def inputs(rows, vocab_size, *, padding=5, width=6, scale=1.0, ignored=0.2, dtype=torch.float64, seed=0):
    """Hidden states, weight, targets."""
    generator = torch.Generator().manual_seed(1000 * rows + vocab_size + seed)
    hidden = scale * torch.randn(rows, width, dtype=torch.float64, generator=generator)
    weight = scale * torch.randn(vocab_size + padding, width, dtype=torch.float64, generator=generator)
    targets = torch.randint(0, vocab_size, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < ignored] = IGNORE_INDEX
    master = torch.float64 if dtype == torch.float64 else torch.float32
    return hidden.to(dtype).requires_grad_(), weight.to(master).requires_grad_(), targets


def gradients(loss, *tensors):
    """Of a sum in which every row has another weight."""
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(loss.shape, dtype=torch.float64, generator=generator)
    return torch.autograd.grad((loss * weights).sum(), tensors)


@settings(max_examples=50)
@given(
    rows=st.integers(1, 12),
    vocab_size=st.integers(1, 20),
    padding=st.integers(0, 6),
    softcap=st.sampled_from([0.0, 1.0, 15.0, 60.0]),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    chunk=st.integers(1, 13),
    reduction=st.sampled_from(REDUCTIONS),
    backend=st.sampled_from(HERE),
)
def test_matches_the_reference(
    rows, vocab_size, padding, softcap, scale, ignored, chunk, reduction, backend
) -> None:
    hidden, weight, targets = inputs(rows, vocab_size, padding=padding, scale=scale, ignored=ignored)
    with patch.object(chunked_module, "_CHUNK_ROWS", {"cpu": chunk}):
        ours = linear_cross_entropy(
            hidden, weight, targets,
            vocab_size=vocab_size, softcap=softcap, reduction=reduction, backend=backend,
        )  # fmt: skip
        ours_gradients = gradients(ours, hidden, weight)
    truth = reference(hidden, weight, targets, vocab_size, softcap, reduction)
    assert ours.shape == (() if reduction == "mean" else (rows,))
    torch.testing.assert_close(ours, truth)
    torch.testing.assert_close(ours_gradients, gradients(truth, hidden, weight))


@pytest.mark.parametrize("softcap", [15.0, 0.0])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_as_exact_as_all_logits_at_once(
    dtype: torch.dtype, reduction: str, softcap: float
) -> None:
    """Both backends round the same products; the chunked one sums the weight's gradient in float32."""
    hidden, weight, targets = inputs(900, 200, width=32, scale=0.6, dtype=dtype)
    wide = [hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()]
    options = {"vocab_size": 200, "softcap": softcap, "reduction": reduction}
    truth = linear_cross_entropy(*wide, targets, **options, backend="native")
    exact = (truth, *gradients(truth, *wide))
    errors = {}
    for backend in ("native", "chunked"):
        loss = linear_cross_entropy(hidden, weight, targets, **options, backend=backend)
        found = (loss, *gradients(loss, hidden, weight))
        assert [one.dtype for one in found] == [torch.float32, dtype, torch.float32]
        errors[backend] = [((a - b).norm() / b.norm()).item() for a, b in zip(found, exact, strict=True)]
    bound = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    assert max(errors["chunked"]) < bound
    pairs = zip(errors["chunked"], errors["native"], strict=True)
    assert all(ours < 1.5 * theirs + 1e-6 for ours, theirs in pairs), errors


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("backend", ["native", "chunked"])
def test_without_a_cap_large_logits_do_not_overflow(backend: str, reduction: str) -> None:
    """Of some hundreds, whose exp is infinite in float32."""
    hidden, weight, targets = inputs(20, 30, scale=12.0, dtype=torch.float32)
    assert (hidden @ weight.T).max() > 300
    options = {"vocab_size": 30, "softcap": 0.0, "reduction": reduction}
    wide = [hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()]
    truth = reference(*wide, targets, **options)
    found = linear_cross_entropy(hidden, weight, targets, **options, backend=backend)
    torch.testing.assert_close(found.double(), truth, atol=1e-3, rtol=1e-5)
    for one, other in zip(gradients(found, hidden, weight), gradients(truth, *wide), strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-3, rtol=1e-4)


def test_the_target_of_a_sure_token_keeps_its_small_gradient() -> None:
    """p - 1 is taken before it is rounded to bfloat16, where 0.999 is 1."""
    hidden = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[8.0], [1.0]], requires_grad=True)
    target = torch.zeros(1, dtype=torch.int64)
    loss = linear_cross_entropy(hidden, weight, target, vocab_size=2, softcap=60.0, backend="chunked")
    wide = weight.detach().double().requires_grad_()
    truth = reference(hidden.detach().double(), wide, target, 2, 60.0, "mean")
    torch.testing.assert_close(
        *(torch.autograd.grad(one, w)[0][0].double() for one, w in ((loss, weight), (truth, wide))),
        rtol=1e-2,
        atol=0,
    )


def test_never_more_logits_than_a_chunk() -> None:
    hidden, weight, targets = inputs(1000, 30, dtype=torch.float32)
    shapes = []
    whole = chunked_module._softmax_gradient

    def watched(product, scale, softcap):
        shapes.append(tuple(product.shape))
        return whole(product, scale, softcap)

    with patch.object(chunked_module, "_softmax_gradient", watched):
        for reduction in REDUCTIONS:
            gradients(
                linear_cross_entropy(
                    hidden, weight, targets, vocab_size=30, softcap=15.0, reduction=reduction
                ),
                weight,
            )
    assert shapes == [(256, 30)] * 3 + [(232, 30)] + [(256, 30)] * 3 + [(232, 30)]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_gradient_is_computed_that_nobody_asks_for(reduction: str) -> None:
    hidden, weight, targets = inputs(9, 9)
    options = {"vocab_size": 9, "softcap": 15.0, "reduction": reduction, "backend": "chunked"}
    with patch.object(chunked_module, "_softmax_gradient", side_effect=AssertionError):
        with torch.no_grad():
            loss = linear_cross_entropy(hidden, weight, targets, **options)
        linear_cross_entropy(hidden.detach(), weight.detach(), targets, **options)
    torch.testing.assert_close(loss, reference(hidden, weight, targets, 9, 15.0, reduction).detach())


def test_a_frozen_weight_costs_nothing() -> None:
    hidden, weight, targets = inputs(300, 30)
    options = {"vocab_size": 30, "softcap": 15.0, "backend": "chunked"}
    (expected,) = gradients(linear_cross_entropy(hidden, weight, targets, **options), hidden)
    with patch.object(chunked_module, "accumulate", side_effect=AssertionError):
        loss = linear_cross_entropy(hidden, weight.detach(), targets, **options)
        (found,) = gradients(loss, hidden)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("softcap", [15.0, 0.0])
@pytest.mark.parametrize("backend", ["native", "chunked"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_compiles_in_one_graph(backend: str, reduction: str, softcap: float) -> None:
    torch._dynamo.reset()
    hidden, weight, targets = inputs(20, 30, dtype=torch.float32)

    def call(hidden, weight, targets):
        return linear_cross_entropy(
            hidden, weight, targets, vocab_size=30, softcap=softcap, reduction=reduction, backend=backend
        )

    fused = {"_compiled_softmax_gradient": lambda: chunked_module._softmax_gradient}
    with patch.multiple(chunked_module, **fused):  # not machine code for it
        compiled = torch.compile(call, fullgraph=True, dynamic=False, backend="aot_eager")
        loss, plain = compiled(hidden, weight, targets), call(hidden, weight, targets)
        torch.testing.assert_close(loss, plain)
        torch.testing.assert_close(gradients(loss, hidden, weight), gradients(plain, hidden, weight))


def test_the_operators_keep_the_rules_of_torch() -> None:
    hidden, weight, targets = inputs(5, 7, dtype=torch.float32)
    operators = torch.ops.cpplm
    for wanted in (True, False):
        torch.library.opcheck(
            operators.chunked_mean_loss.default,
            (hidden.detach(), weight.detach(), targets, 7, 15.0, wanted, False),
        )
    torch.library.opcheck(
        operators.chunked_mean_loss.default, (hidden, weight, targets, 7, 15.0, True, False)
    )
    torch.library.opcheck(
        operators.chunked_mean_loss.default, (hidden, weight.detach(), targets, 7, 15.0, True, False, True)
    )
    torch.library.opcheck(operators.chunked_each_loss.default, (hidden, weight, targets, 7, 15.0, False))
    torch.library.opcheck(
        operators.chunked_each_loss_backward.default,
        (hidden.detach(), weight.detach(), targets, torch.ones(5), 7, 15.0, False),
    )


# ---- which one runs ----------------------------------------------------------------------------------------


def test_automatic_choice() -> None:
    assert LOSS.select(CPU).name == LOSS.select(GPU).name == "chunked"
    assert LOSS.select(dataclasses.replace(CPU, softcap=61.0)).name == "native"
    assert "exp would overflow" in BACKENDS["chunked"].why_not(dataclasses.replace(CPU, softcap=61.0))


def installed(backend: str):
    return dataclasses.replace(BACKENDS[backend], library=OptionalImport(print, ""))


def test_what_the_libraries_cannot_do() -> None:
    """Liger's issue 968: with reduction "none" each gradient is scaled by the first row's upstream one."""
    liger, cce = installed("liger"), installed("cce")
    for library in (liger, cce):
        assert library.why_not(GPU) == ""
        assert "torch.compile" in library.why_not(dataclasses.replace(GPU, compiling=True))
    assert "not float32" in cce.why_not(dataclasses.replace(GPU, dtype=torch.float32))
    trap = dataclasses.replace(GPU, reduction="none")
    assert "wrong gradients" in liger.why_not(trap)
    assert liger.why_not(dataclasses.replace(trap, gradient=False)) == ""


class DocumentedLiger:
    """LigerFusedLinearCrossEntropyLoss as its documentation says: the weight comes first."""

    def __init__(self, *, ignore_index, softcap, reduction, accum_dtype) -> None:
        assert accum_dtype == torch.float32
        self.options = (ignore_index, softcap, reduction)

    def __call__(self, lin_weight, _input, target):
        return documented(_input, lin_weight, target, *self.options)


def documented(e, c, targets, ignore_index, softcap, reduction, filter_eps=None):
    """cut_cross_entropy.linear_cross_entropy as its documentation says."""
    assert filter_eps is None
    assert e.dtype == c.dtype
    logits = (e @ c.T).float()
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    return F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction=reduction)


@pytest.mark.parametrize("softcap", [15.0, 0.0])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("backend", "function"), [("cce", documented), ("liger", DocumentedLiger)])
def test_libraries_are_called_as_their_documentation_says(backend, function, reduction, softcap) -> None:
    options = {"vocab_size": 9, "softcap": softcap, "reduction": reduction}
    for ignored in (0.3, 1.0):
        hidden, weight, targets = inputs(8, 9, ignored=ignored, dtype=torch.bfloat16)
        with patch.object(loss_module, backend.upper(), OptionalImport(function, "")):
            ours = BACKENDS[backend].run(hidden, weight, targets, LossOptions(**options))
        native = linear_cross_entropy(hidden, weight, targets, **options, backend="native")
        torch.testing.assert_close(ours, native)
        torch.testing.assert_close(gradients(ours, hidden, weight), gradients(native, hidden, weight))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("backend", ["native", "chunked", "cce", "liger"])
def test_on_a_gpu(backend: str, reduction: str) -> None:
    hidden, weight, targets = inputs(3000, 1000, width=64, padding=24, scale=0.3, dtype=torch.bfloat16)
    here = [tensor.detach().cuda().requires_grad_() for tensor in (hidden, weight)]
    options = {"vocab_size": 1000, "softcap": 15.0, "reduction": reduction}
    try:
        ours = linear_cross_entropy(*here, targets.cuda(), **options, backend=backend)
    except UserError as error:
        pytest.skip(str(error))
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    truth = linear_cross_entropy(*wide, targets, **options, backend="native")
    torch.testing.assert_close(ours.cpu().double(), truth, atol=2e-2, rtol=2e-2)
    for one, other in zip(gradients(ours.cpu(), *here), gradients(truth, *wide), strict=True):
        assert ((one.cpu().double() - other).norm() / other.norm()).item() < 2e-2
