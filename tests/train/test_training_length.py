"""Lengths of runs and automatic batch sizes."""

from dataclasses import replace

import pytest

from cpplm.core.errors import UserError
from cpplm.model.flops import count_flops, count_scaling_parameters
from cpplm.model.settings import ArchitectureSettings
from cpplm.train.settings import TrainSettings, model_config
from cpplm.train.training_length import TrainingBudget, relative_tokens, training_budget, with_batch_size


@pytest.fixture
def settings(settings: TrainSettings) -> TrainSettings:
    return replace(settings, num_iterations=-1)


def test_horizons(settings: TrainSettings) -> None:
    config = model_config(settings, 512)

    def budget(**change: float) -> TrainingBudget:
        return training_budget(replace(settings, **change), config)

    total = count_scaling_parameters(config)
    assert budget(target_param_data_ratio=3.0).steps == round(3 * total / 256)
    assert budget(target_flops=1e9).steps == round(1e9 / count_flops(config)["total"] / 256)
    assert budget(max_minutes=2.0) == TrainingBudget(seconds=120.0)
    assert budget(num_iterations=7) == TrainingBudget(steps=7)
    assert TrainingBudget(seconds=120.0).progress(step=7, seconds=30.0) == 0.25
    assert TrainingBudget(steps=4).progress(step=1, seconds=30.0) == 0.25


def batch_of(settings: TrainSettings, ranks: int = 1) -> int:
    return with_batch_size(settings, model_config(settings, 32_768), ranks).total_batch_size


def test_an_automatic_batch_grows_with_the_model(settings: TrainSettings) -> None:
    automatic = replace(settings, total_batch_size=-1, aspect_ratio=64, head_dim=64)
    assert batch_of(replace(automatic, depth=12)) == 2**19
    assert batch_of(replace(automatic, depth=26)) == 2**20
    sizes = [batch_of(replace(automatic, depth=depth)) for depth in range(2, 27, 4)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 2**19


def test_an_automatic_batch_is_whole_passes_of_all_ranks(settings: TrainSettings) -> None:
    automatic = replace(settings, total_batch_size=-1, device_batch_size=3)
    assert batch_of(automatic, ranks=5) % (3 * 32 * 5) == 0
    assert with_batch_size(automatic, model_config(automatic, 512), 5).forward_passes(5) >= 1


def test_a_given_batch_must_suit_the_ranks(settings: TrainSettings) -> None:
    assert with_batch_size(settings, model_config(settings, 512), 2) == settings
    with pytest.raises(UserError, match="3 ranks = 384 tokens"):
        batch_of(settings, ranks=3)


def test_tokens_relative_to_the_reference(settings: TrainSettings) -> None:
    """Without further settings every depth has as many tokens per parameter."""
    rates = replace(settings.rates, weight_decay_by="horizon")
    deep = replace(settings, depth=12, rates=rates)
    config = model_config(deep, 512)
    assert relative_tokens(deep, config, training_budget(deep, config)) == pytest.approx(1.0, rel=0.01)
    assert relative_tokens(deep, config, TrainingBudget(seconds=60.0)) is None
    assert relative_tokens(replace(deep, rates=settings.rates), config, TrainingBudget(steps=8)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": ArchitectureSettings(engram_layers=(3, 15))},
        {"architecture": ArchitectureSettings(dsa=True, dsa_start_layer=14)},
        {"num_kv_heads": 5},
    ],
    ids=["engram", "dsa", "key heads"],
)
def test_a_deep_model_may_name_what_the_reference_lacks(settings: TrainSettings, change: dict) -> None:
    rates = replace(settings.rates, weight_decay_by="horizon")
    deep = replace(settings, depth=20, max_seq_len=512, total_batch_size=2048, rates=rates, **change)
    config = model_config(deep, 512)
    assert relative_tokens(deep, config, TrainingBudget(steps=8)) > 0
    assert batch_of(replace(deep, total_batch_size=-1)) > 0
