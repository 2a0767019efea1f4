"""Rounded weights: levels, scales, gradients, files; what trains is what is packed is what runs."""

import dataclasses

import pytest
import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.model.quantized.codebooks import CODEBOOKS, Codebook
from cpplm.model.quantized.layers import QuantizedEmbedding, QuantizedLinear, quantizable, quantize_layers
from cpplm.model.quantized.packing import (
    dense_weights,
    pack_codes,
    packed_tensors,
    quantization_record,
    quantized_weights,
    restore_layers,
    unpack_codes,
)
from cpplm.model.quantized.recipe import PRESETS, InitMethod, Recipe, WeightFormat, role_of
from cpplm.model.quantized.rounding import (
    fake_quantize,
    grouped,
    init_scales,
    levels_table,
    low_rank,
    nearest_codes,
    nearest_levels,
)
from cpplm.model.transformer import Transformer
from tests.model.features import CONFIGS, MEMORY, packed_bytes, random_ids, random_model

FORMATS = pytest.mark.parametrize(
    "text",
    ["half2:g32", "half3:g32", "half4:g32", "int4:g32", "nf4:g64", "int8:g32", "half4:g32:r2", "half4:g1:r4"],
)
BOOKS = pytest.mark.parametrize("book", CODEBOOKS.values(), ids=CODEBOOKS)
# Wide enough for groups of 32, with a memory of n-grams.
WIDE = dataclasses.replace(
    CONFIGS["memory"], model_dim=64, head_dim=16, engram=dataclasses.replace(MEMORY, table_size=100)
)


def weight(rows: int = 48, columns: int = 64) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(rows, columns) * torch.rand(rows, 1)


def rounded(values: Tensor, book: Codebook, init: InitMethod) -> Tensor:
    scales = init_scales(values, WeightFormat(book.name), init)
    return fake_quantize(grouped(values, 32), scales.unsqueeze(-1), book).flatten(1)


@BOOKS
def test_nearest_level(book: Codebook) -> None:
    values, table = torch.linspace(-1.5, 1.5, 4001), levels_table(book)
    distances = (values.unsqueeze(1) - table).abs()
    torch.testing.assert_close((nearest_levels(values, book) - values).abs(), distances.min(1).values)
    assert torch.equal(table[nearest_codes(values, book).long()], nearest_levels(values, book))
    assert torch.equal(nearest_levels(table, book), table) and len(table) <= 2**book.bits


@BOOKS
def test_the_largest_weight_is_a_level_and_fitted_scales_are_never_worse(book: Codebook) -> None:
    values = weight()
    by_largest, fitted = rounded(values, book, "absmax"), rounded(values, book, "mse")
    at = grouped(values, 32).abs().argmax(-1, keepdim=True)
    torch.testing.assert_close(grouped(by_largest, 32).gather(-1, at), grouped(values, 32).gather(-1, at))
    before, after = (grouped((each - values).square(), 32).sum(-1) for each in (by_largest, fitted))
    assert (after <= before * (1 + 1e-5)).all()
    assert after.sum() < (0.9 if book.bits <= 4 else 1.0) * before.sum()


def test_important_inputs_are_rounded_better() -> None:
    values, importance = weight(), torch.ones(64)
    importance[::16] = 1000.0
    scales = init_scales(values, WeightFormat("half2"), "activation", importance)
    errors = fake_quantize(grouped(values, 32), scales.unsqueeze(-1), CODEBOOKS["half2"]).flatten(1) - values
    plain = rounded(values, CODEBOOKS["half2"], "mse") - values
    assert errors[:, ::16].square().sum() < 0.5 * plain[:, ::16].square().sum()


@BOOKS
def test_gradients_are_those_of_the_rounded_line(book: Codebook) -> None:
    """Of weights: 1 within the range, 0 outside. Of scales: as finite differences with fixed codes say."""
    values = (2 * weight(1, 64)).double().requires_grad_()
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(1, 64, dtype=torch.float64)
    (fake_quantize(values, scale, book) * upstream).sum().backward()
    ratio = values.detach() / 0.7
    inside = (ratio >= book.levels[0]) & (ratio <= book.levels[-1])
    torch.testing.assert_close(values.grad, upstream * inside)
    levels = nearest_levels(ratio.clamp(book.levels[0], book.levels[-1]), book)
    expected = (upstream * torch.where(inside, levels - ratio, levels)).sum()
    torch.testing.assert_close(scale.grad, expected)


def test_scales_of_a_rank_are_as_the_loop_over_ranks() -> None:
    """y = sum_k g_k a_k (Q (b_k x)), as the seed method computes it, and all weights at once."""
    layer = QuantizedLinear(weight(), WeightFormat("half4", 1, 8), init="absmax", freeze_codes=True)
    levels = levels_table(CODEBOOKS["half4"])[layer.codes.long()]
    x = torch.randn(5, 64)
    left, right, magnitude = layer.scale_left, layer.scale_right, layer.rank_magnitude
    with torch.no_grad():
        for part in (left, right, magnitude):
            part.copy_(part.half())
        terms = (magnitude[k] * left[:, k] * ((right[k] * x) @ levels.T) for k in range(8))
        torch.testing.assert_close(layer(x), sum(terms), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(left.norm(dim=0), torch.ones(8), atol=1e-3, rtol=0)
    torch.testing.assert_close(right.norm(dim=1), torch.ones(8), atol=1e-3, rtol=0)


def test_a_full_rank_is_the_matrix() -> None:
    scales = weight(6, 4).abs()
    left, right, magnitude = low_rank(scales, 4)
    torch.testing.assert_close((left * magnitude) @ right, scales)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_codes_survive_packing(bits: int) -> None:
    codes = torch.randint(0, 2**bits, (7, 37), dtype=torch.uint8)
    packed = pack_codes(codes, bits)
    assert len(packed) == -(-7 * 37 * bits // 8)
    assert torch.equal(unpack_codes(packed, bits, 7 * 37).view(7, 37), codes)


@FORMATS
@pytest.mark.parametrize("freeze_codes", [False, True])
def test_a_layer_is_what_its_file_says(text: str, freeze_codes: bool) -> None:
    weight_format = WeightFormat.parse(text)
    model = torch.nn.ModuleDict({"mlp": torch.nn.ModuleDict({"up": torch.nn.Linear(64, 48, bias=False)})})
    model.mlp.up.weight.data.copy_(weight())
    inner = torch.nn.ModuleDict({"blocks": model})
    quantize_layers(inner, Recipe.parse(f"mlp={text}"), freeze_codes=freeze_codes)
    layer = inner.blocks.mlp.up
    record = quantization_record(inner, f"mlp={text}", packed=True)
    packed = packed_tensors(inner)
    assert sum(tensor.nbytes for tensor in packed.values()) == packed_bytes(weight_format, 48, 64)
    for tensors in (packed, inner.state_dict()):
        dense = dense_weights(tensors, quantized_weights(tensors, record, where="here"))
        assert dense.keys() == {"blocks.mlp.up.weight"}
        assert torch.equal(dense["blocks.mlp.up.weight"], layer.weight.detach())


def test_a_model_with_rounded_weights() -> None:
    """Training, restored and dense ones give the same losses and gradients reach every trained tensor."""
    model, ids = random_model(WIDE), random_ids(2, 12, WIDE)
    recipe = Recipe.parse("int4")
    formats = quantize_layers(model, recipe)
    assert {role_of(name) for name in formats} == {"head", "embed", "attn", "mlp"}
    assert isinstance(model.blocks[0].engram.table, QuantizedEmbedding)
    loss = model.loss(ids, ids.roll(-1, 1))
    loss.backward()
    missing = [name for name, value in model.named_parameters() if value.grad is None]
    assert missing == []
    record, state = quantization_record(model, "int4", packed=False), model.state_dict()
    plain, restored = Transformer(WIDE), Transformer(WIDE)
    plain.load_state_dict(dense_weights(state, quantized_weights(state, record, where="here")))
    restore_layers(restored, state, record)
    for other in (plain, restored):
        assert torch.equal(other.loss(ids, ids.roll(-1, 1)), loss)


def test_narrow_rows_share_scales() -> None:
    """A table of 4 numbers a row has a scale for eight rows; what is looked up is what the table is."""
    table = QuantizedEmbedding(weight(30, 4), WeightFormat("half4"))
    assert table.scales.shape == (4,)
    ids = torch.tensor([[3, 29, 0]])
    assert torch.equal(table(ids), table.weight[ids])


def test_roles() -> None:
    roles = {
        "lm_head": "head", "embedding": "embed", "model.embed_tokens": "embed",
        "blocks.1.engram.table": "embed", "blocks.0.attention.query": "attn",
        "model.layers.3.self_attn.q_proj": "attn",
        "blocks.0.attention.value_embedding": "embed", "model.layers.0.mlp.gate_proj": "mlp",
        "blocks.2.mlp.down": "mlp", "blocks.0.engram.merge": "other",
        "blocks.0.attention.value_gate": "other",
    }  # fmt: skip
    assert {name: role_of(name) for name in roles} == roles


def test_presets_are_recipes() -> None:
    for name in PRESETS:
        assert Recipe.parse(str(Recipe.parse(name))) == Recipe.parse(name)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("mlp", "'mlp' in the recipe"),
        ("mlp=half9:g32", "no codebook is named 'half9'"),
        ("mlp=half4:x3", "'x3' in the recipe's"),
        ("mlp=half4:g0", "'g0' in the recipe's"),
        ("mlp=half4,mlp=half2", "names mlp twice"),
        ("all=half4,mlp=half2", "names mlp twice"),
        ("brain=half4", "'brain=half4' in the recipe"),
        ("mlp=half4:g48", "no layer of the model has that role"),
        ("mlp=half4:g32:r9", "rank 9 of the scales of blocks.0.mlp.up"),
    ],
)
def test_bad_recipes(recipe: str, message: str) -> None:
    with pytest.raises(UserError, match=message), torch.device("meta"):
        quantizable(Transformer(WIDE), Recipe.parse(recipe))


def test_damaged_tensors_are_named() -> None:
    model = random_model(WIDE)
    quantize_layers(model, Recipe.parse("mlp=half4"))
    tensors, record = packed_tensors(model), quantization_record(model, "mlp=half4", packed=True)
    tensors["blocks.1.mlp.up.packed"] = tensors["blocks.1.mlp.up.packed"][:-5]
    with pytest.raises(UserError, match=r"the tensors of blocks\.1\.mlp\.up do not fit"):
        quantized_weights(tensors, record, where="here")
