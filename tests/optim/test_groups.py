"""Every parameter learns by the rule meant for it; rates follow batch, width and depth."""

import pytest

from cpplm.core.errors import UserError
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import Rates, build_optimizer
from cpplm.optim.muon import Group


def groups(depth: int, batch_tokens: int) -> dict[str, Group]:
    model = Transformer(ModelConfig.from_depth(depth, vocab_size=64))
    optimizer = build_optimizer(model, Rates(), batch_tokens=batch_tokens)
    return {name: entry["group"] for entry in optimizer.param_groups for name in entry["group"].names}


def test_rules_and_reference_rates() -> None:
    by_name = groups(12, 2**19)
    for name, group in by_name.items():
        assert group.muon == (name.startswith("blocks.") and name.endswith(".weight"))
    assert by_name["blocks.0.mlp.up.weight"].learning_rate == pytest.approx(0.02)
    assert by_name["blocks.0.mlp.up.weight"].weight_decay == pytest.approx(0.2)
    assert by_name["embedding.weight"].learning_rate == pytest.approx(0.3)
    assert by_name["residual_scales"].learning_rate == pytest.approx(0.005)


def test_scaling() -> None:
    small, reference = groups(6, 2**17), groups(12, 2**19)
    assert small["blocks.0.mlp.up.weight"].learning_rate == pytest.approx(0.02 / 2)
    assert small["blocks.0.mlp.up.weight"].weight_decay == pytest.approx(0.2 * 4)
    assert small["lm_head.weight"].learning_rate == pytest.approx(
        reference["lm_head.weight"].learning_rate / 2 * 2**0.5
    )


@pytest.mark.parametrize("change", [{"matrix_lr": -1.0}, {"adam_beta1": 1.0}, {"weight_decay": float("nan")}])
def test_bad_rates(change: dict) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        Rates(**change)
