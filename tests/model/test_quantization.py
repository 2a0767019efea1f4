"""FP8: what it refuses, and that its emulation trains a model as bfloat16 does."""

import dataclasses
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest
import torch
from torch import nn

from cpplm.core.errors import UserError
from cpplm.model import quantization
from cpplm.model.config import ModelConfig
from cpplm.model.quantization import convert_to_fp8, convert_to_nvfp4, missing_for_fp8, require_nvfp4
from cpplm.model.transformer import Transformer

CONFIG = ModelConfig(
    vocab_size=100, num_layers=2, model_dim=64, num_heads=4, num_kv_heads=2, head_dim=16, max_seq_len=32
)


def small_model(config: ModelConfig = CONFIG) -> Transformer:
    model = Transformer(config, compute_dtype=torch.bfloat16)
    model.init_weights(0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def losses_of(model: Transformer, steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ids = torch.randint(CONFIG.vocab_size, (4, 33), generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(steps):
        loss = model.loss(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_emulated_training_is_close_to_bfloat16(recipe: str) -> None:
    pytest.importorskip("torchao")
    model, plain = small_model(), small_model()
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    converted = convert_to_fp8(model, recipe, emulate=True)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    assert list(model.state_dict()) == list(plain.state_dict())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert all(name.startswith("blocks.") for name in converted)
    assert type(model.lm_head) is type(plain.lm_head)
    ours, theirs = losses_of(model, 10), losses_of(plain, 10)
    assert ours != theirs  # or nothing was rounded
    assert theirs[-1] < theirs[0] / 2
    assert ours == pytest.approx(theirs, rel=0.03)


def test_sides_that_are_no_multiples_of_16_stay() -> None:
    pytest.importorskip("torchao")
    config = dataclasses.replace(CONFIG, num_kv_heads=1, head_dim=24)
    converted = convert_to_fp8(small_model(config), "tensorwise", emulate=True)
    assert "blocks.0.attention.query" in converted  # 64 to 96
    assert "blocks.0.attention.key" not in converted  # 64 to 24
    with pytest.raises(UserError, match="multiples of 16"):
        convert_to_fp8(nn.Linear(16, 16), "tensorwise", emulate=True)


def test_a_missing_or_old_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"FP8 needs .*8\.9 or newer .* none here. Leave out --fp8"):
        convert_to_fp8(small_model(), "rowwise")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    assert not any("capability" in part for part in missing_for_fp8())
    with pytest.raises(UserError, match=r"NVFP4 needs .*10\.0 or newer.* this one has 8\.9"):
        require_nvfp4()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(quantization.importlib, "import_module", nowhere)
    monkeypatch.setattr(quantization.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UserError, match="torchao does not load: No module"):
        convert_to_fp8(small_model(), "rowwise", emulate=True)
    monkeypatch.setattr(quantization.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="FP8 needs the package torchao"):
        convert_to_fp8(small_model(), "rowwise", emulate=True)
    with pytest.raises(UserError, match=r"NVFP4 needs .*transformer_engine"):
        require_nvfp4()


class EngineLinear(nn.Linear):
    """As Transformer Engine's, multiplying in the dtype of autocast."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, params_dtype, device) -> None:
        super().__init__(in_features, out_features, bias=bias, dtype=params_dtype, device=device)

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)


def test_four_bit_layers_keep_weights_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wiring only: Transformer Engine itself does not run without a Blackwell GPU."""
    engine = SimpleNamespace(Linear=EngineLinear, autocast=MagicMock())
    monkeypatch.setattr(quantization, "require_nvfp4", lambda: lambda: "recipe")
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", engine)
    model, plain = small_model(), small_model()
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    converted = convert_to_nvfp4(model)
    assert "blocks.1.mlp.down" in converted
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    assert list(model.state_dict()) == list(plain.state_dict())
    assert losses_of(model, 3) == pytest.approx(losses_of(plain, 3), rel=1e-3)
    assert engine.autocast.call_args_list == [call(enabled=True, recipe="recipe")] * 3 * len(converted)
