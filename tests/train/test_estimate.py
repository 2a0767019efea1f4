"""The dry run's figures, against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cpplm.core.device_specs import PEAK_TERAFLOPS
from cpplm.core.errors import UserError
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_flops
from cpplm.model.transformer import Transformer
from cpplm.train.devices import MEMORY_GB, data_sheet_devices
from cpplm.train.estimate import estimate
from cpplm.train.memory_estimate import MemoryPlan
from cpplm.train.settings import DryRunSettings, TrainSettings
from cpplm.train.training_length import TrainingBudget

CONFIG = ModelConfig.from_depth(4, vocab_size=32_768)
SETTINGS = TrainSettings(
    ("corpus",), Path("tokenizer"), Path("out"),
    max_seq_len=CONFIG.max_seq_len, device_batch_size=16, total_batch_size=2**22,
)  # fmt: skip
PLAN = MemoryPlan(SETTINGS, CONFIG, torch.bfloat16)
STEPS = TrainingBudget(steps=100)
H100S = data_sheet_devices("H100", 64)


def test_exact_figures() -> None:
    found = estimate(PLAN, H100S, 0.5, STEPS)
    with torch.device("meta"):
        assert found.parameters == sum(p.numel() for p in Transformer(CONFIG).parameters())
    assert found.accumulation == 2  # 2^22 tokens = 64 processes x 16 rows x 2048 x 2
    assert found.tokens == 100 * 2**22
    assert found.flops_per_step == 2**22 * count_flops(CONFIG)["total"]


def test_time_follows_from_the_assumed_rate() -> None:
    found = estimate(PLAN, H100S, 0.5, STEPS)
    seconds = 100 * found.flops_per_step / (0.5 * 989e12 * 64)
    assert found.hours == pytest.approx(seconds / 3600)
    assert found.tokens_per_second == pytest.approx(found.tokens / seconds)
    assert estimate(PLAN, H100S, 0.5, TrainingBudget(seconds=seconds)) == found
    slower = estimate(PLAN, data_sheet_devices("A100", 64), 0.5, STEPS)
    assert slower.hours == pytest.approx(found.hours * 989 / 312)


def test_whether_it_fits() -> None:
    peak = estimate(PLAN, H100S, 0.5, STEPS).memory.peak / 1e9
    assert not estimate(PLAN, data_sheet_devices("H100", 64, peak), 0.5, STEPS).fits  # not all can be used
    assert estimate(PLAN, data_sheet_devices("H100", 64, 1.1 * peak), 0.5, STEPS).fits
    assert "does not fit" in estimate(PLAN, data_sheet_devices("H100", 64, 1.0), 0.5, STEPS).text()


def test_the_text_says_what_is_exact() -> None:
    found = estimate(replace(PLAN, settings=replace(SETTINGS, shard=True)), H100S, 0.5, STEPS)
    text = found.text()
    for part in ("weights", "gathered blocks", "gradients", "optimizer state", "activations", "loss", "peak"):
        assert part in text
    assert f"{found.parameters:,} parameters, 64 x H100" in text
    assert f"{found.memory.peak / 1e9:.2f} GB per process (estimate, not the sum)" in text
    assert "(exact)" in text
    assert "assumed" in text
    assert "gathered" not in estimate(PLAN, H100S, 0.5, STEPS).text()


def test_one_rank_has_nothing_to_divide() -> None:
    sharded = replace(PLAN, settings=replace(SETTINGS, shard=True))
    with pytest.raises(UserError, match="--shard"):
        estimate(sharded, data_sheet_devices("H100", 1), 0.5, STEPS)


def test_every_known_device_has_a_memory() -> None:
    assert MEMORY_GB.keys() == PEAK_TERAFLOPS.keys()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"world_size": 8}, "--world_size does nothing without --dry_run"),
        ({"dry_run": True, "world_size": 0, "gpu": "H100"}, "--world_size 0"),
        ({"dry_run": True, "world_size": 2}, "--world_size is of devices that --gpu names"),
        ({"dry_run": True, "gpu": "Z9"}, "--gpu 'Z9' is not known"),
        ({"dry_run": True, "mfu": 1.5}, "--mfu 1.5"),
        ({"dry_run": True, "gpu_memory_gb": 0.0, "gpu": "H100"}, "--gpu_memory_gb 0.0"),
    ],
)
def test_bad_settings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DryRunSettings(**values)
