"""Every parameter learns by the rule meant for it; rates follow batch, width and depth."""

import pytest

from cpplm.core.errors import UserError
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.optim.buckets import ParamGroup
from cpplm.optim.groups import build_optimizer
from cpplm.optim.schedules import LearningRates
from tests.model.features import CONFIGS


def groups(depth: int, batch_tokens: int) -> dict[str, ParamGroup]:
    return groups_of(ModelConfig.seed(depth, vocab_size=64), batch_tokens)


def groups_of(config: ModelConfig, batch_tokens: int = 2**19) -> dict[str, ParamGroup]:
    optimizer = build_optimizer(Transformer(config), LearningRates(muon_beta2=0.9), batch_tokens=batch_tokens)
    return {name: entry["group"] for entry in optimizer.param_groups for name in entry["group"].names}


def test_rules_and_reference_rates() -> None:
    by_name = groups(12, 2**19)
    for name, group in by_name.items():
        assert group.muon == (name.startswith("blocks.") and name.endswith(".weight"))
    assert by_name["blocks.0.mlp.up.weight"].learning_rate == pytest.approx(0.02)
    assert by_name["blocks.0.mlp.up.weight"].weight_decay == pytest.approx(0.2)
    assert by_name["blocks.0.mlp.up.weight"].beta2 == 0.9
    assert by_name["embedding.weight"].learning_rate == pytest.approx(0.3)
    assert by_name["residual_scales"].learning_rate == pytest.approx(0.005)


@pytest.mark.parametrize("config", [CONFIGS["all"], CONFIGS["local"]], ids=["all", "local"])
def test_tables_gates_and_scalars_do_not_learn_by_muon(config: ModelConfig) -> None:
    by_name = groups_of(config)
    parameters = dict(Transformer(config).named_parameters())
    assert by_name.keys() == parameters.keys()
    lookups = ("embedding.weight", "table.weight", "lm_head.weight")
    for name, group in by_name.items():
        off = name.endswith(lookups) or parameters[name].dim() < 2
        off |= any(part in name for part in (".connections.", ".taps", "smear_gate"))
        assert group.muon == (not off), name


def test_everything_learns_by_adamw_where_that_has_a_rate() -> None:
    model, rates = Transformer(CONFIGS["all"]), LearningRates(adamw_lr=1e-3, weight_decay=0.1)
    optimizer = build_optimizer(model, rates, batch_tokens=2**10)
    found = [entry["group"] for entry in optimizer.param_groups]
    assert {name for group in found for name in group.names} == dict(model.named_parameters()).keys()
    assert not any(group.muon for group in found)
    assert {group.learning_rate for group in found} == {1e-3}
    assert {group.weight_decay for group in found} == {0.1, 0.0}


def test_scaling() -> None:
    small, reference = groups(6, 2**17), groups(12, 2**19)
    assert small["blocks.0.mlp.up.weight"].learning_rate == pytest.approx(0.02 / 2)
    assert small["blocks.0.mlp.up.weight"].weight_decay == pytest.approx(0.2 * 4)
    assert small["lm_head.weight"].learning_rate == pytest.approx(
        reference["lm_head.weight"].learning_rate / 2 * 2**0.5
    )


def test_weight_decay_may_follow_the_length_of_the_run() -> None:
    model, rates = Transformer(ModelConfig.seed(6, vocab_size=64)), LearningRates(weight_decay_by="horizon")
    optimizer = build_optimizer(model, rates, batch_tokens=2**17, budget=4.0)
    decays = [entry["group"].weight_decay for entry in optimizer.param_groups if entry["group"].muon]
    assert decays == pytest.approx([0.2 / 2 / 4] * len(decays))
    with pytest.raises(UserError, match="tokens can be counted"):
        build_optimizer(model, rates, batch_tokens=2**17)


@pytest.mark.parametrize("change", [{"matrix_lr": -1.0}, {"adam_beta1": 1.0}, {"weight_decay": float("nan")}])
def test_bad_rates(change: dict) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        LearningRates(**change)
