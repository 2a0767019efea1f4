"""Products with weights of few bits: those of the rounded weights with tokens rounded to 8 bits."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpplm.model.kernels import cpp_extension
from cpplm.model.kernels.quantized_linear import CompactLinear, can_compact
from cpplm.model.kernels.small_batch_linear import CompactWeight, fused_mlp, gemv, rms_norm
from cpplm.model.quantized.layers import QuantizedLinear
from cpplm.model.quantized.packing import QuantizedWeight, quantization_record, quantized_weights
from cpplm.model.quantized.recipe import WeightFormat
from tests.model.kernels.test_small_batch_linear import assert_rounded, on_three_threads

FORMATS = ("half2:g32", "half4:g32", "int4:g64", "nf4:g64", "int8:g32", "half4:g32:r2")


@pytest.fixture(params=["native", pytest.param("x86-64-v3", marks=pytest.mark.slow)])
def _processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This one, and one without instructions for products of 8 bits."""
    if request.param != "native":
        flags = (*cpp_extension._FLAGS, f"-march={request.param}", "-O1")
        monkeypatch.setattr(cpp_extension, "_FLAGS", flags)
        cpp_extension._library.cache_clear()
        cpp_extension.load_function.cache_clear()
    yield
    cpp_extension._library.cache_clear()
    cpp_extension.load_function.cache_clear()


def stored(layer: QuantizedLinear) -> QuantizedWeight:
    model = torch.nn.ModuleDict({"layer": layer})
    record = quantization_record(model, "", packed=False)
    return quantized_weights(model.state_dict(), record, where="here")["layer"]


def compacted(text: str, rows: int, columns: int, count: int = 1) -> tuple[CompactWeight, Tensor]:
    """A weight as the kernels take it, `count` times below one another, and its numbers as they are there."""
    torch.manual_seed(rows)
    layer = QuantizedLinear(torch.randn(rows, columns) * torch.rand(rows, 1) / 8, WeightFormat.parse(text))
    quantized = stored(layer)
    numbers = layer.weight.detach()
    if text.startswith("nf4"):  # levels have 8 bits
        levels = (127 * numbers.unflatten(1, (-1, 64)) / layer.group_scales().detach().unsqueeze(-1)).round()
        numbers = (levels / 127 * layer.group_scales().detach().unsqueeze(-1)).flatten(1)
    return CompactLinear([quantized] * count).compact, numbers.repeat(count, 1)


def in_8_bits(x: Tensor) -> Tensor:
    """Rounded to 127 levels of the largest of 32 neighbours, halves away from zero, float64."""
    groups = x.float().unflatten(-1, (-1, 32))
    largest = groups.abs().amax(-1, keepdim=True)
    levels = (groups * (127 / largest)).abs().add(0.5).floor() * groups.sign()
    return (levels.double() * largest / 127).flatten(-2)


@pytest.mark.usefixtures("_processor")
@pytest.mark.parametrize("text", FORMATS)
def test_linear(text: str) -> None:
    weight, numbers = compacted(text, 50, 192, count=2)
    torch.testing.assert_close(weight.decode(), numbers.bfloat16(), atol=1e-6, rtol=2**-7)
    for tokens in (1, 3, 13, 70):
        x, residual = torch.randn(2, tokens, 192).bfloat16(), torch.randn(2, tokens, 100).bfloat16()
        expected = F.linear(in_8_bits(x), numbers.double()).bfloat16()
        assert_rounded(gemv(x, weight), expected)
        assert torch.equal(gemv(x, weight, residual=residual), residual + gemv(x, weight))
        assert torch.equal(on_three_threads(lambda x=x: gemv(x, weight)), gemv(x, weight))
        alone = torch.stack([gemv(token, weight) for token in x.view(-1, 192)])
        assert torch.equal(gemv(x, weight).view(-1, 100), alone)  # whoever else is in the batch
        assert torch.equal(gemv(x, weight, normalized=True), gemv(rms_norm(x), weight))


@pytest.mark.parametrize("text", ["half2:g32", "int4:g32"])
def test_mlp(text: str) -> None:
    (up, _), (gate, _) = (compacted(text, rows, 64) for rows in (96, 96))
    down, _ = compacted(text, 64, 96)
    for tokens in (1, 9):
        x = torch.randn(1, tokens, 64).bfloat16()
        hidden = F.relu(gemv(x, up, normalized=True)).square()
        assert_rounded(fused_mlp(x, up, down), gemv(hidden, down, residual=x))
        hidden = F.silu(gemv(x, gate, normalized=True).float()).bfloat16() * gemv(x, up, normalized=True)
        torch.testing.assert_close(
            fused_mlp(x, up, down, gate), gemv(hidden, down, residual=x), atol=0.02, rtol=0.02
        )


def test_small_large_and_no_numbers() -> None:
    weight, numbers = compacted("int4:g32", 40, 64)
    for scale in (0.0, 1e-30, 1e20):
        x = (torch.randn(64) * scale).bfloat16()
        found = gemv(x, weight).double() / max(scale, 1e-38)
        torch.testing.assert_close(
            found, F.linear(x.double(), numbers.double()) / max(scale, 1e-38), atol=0.1, rtol=0.02
        )
    for strange in (float("nan"), float("inf")):
        x = torch.ones(2, 64).bfloat16()
        x[1, 50] = strange
        assert gemv(x, weight)[1].isnan().all() and gemv(x, weight)[0].isfinite().all()


@pytest.mark.parametrize("text", ["half3:g32", "half4:g1:r4", "half4:g16"])
def test_what_has_no_kernel(text: str) -> None:
    layer = QuantizedLinear(torch.randn(48, 64), WeightFormat.parse(text))
    quantized = stored(layer)
    assert not can_compact([quantized], torch.device("cpu"), torch.bfloat16)


def test_none_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = QuantizedLinear(torch.randn(48, 64), WeightFormat.parse("int4:g32"))
    quantized = stored(layer)
    assert can_compact([quantized], torch.device("cpu"), torch.bfloat16)
    assert not can_compact([quantized], torch.device("cpu"), torch.float32)
    monkeypatch.setattr("cpplm.model.kernels.quantized_linear.load_function", lambda *_: None)
    assert not can_compact([quantized], torch.device("cpu"), torch.bfloat16)
