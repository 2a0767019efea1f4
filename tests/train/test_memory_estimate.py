"""Estimated memory against what torch's allocator on the CPU hands out in a real training step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from cpplm.model.config import ModelConfig
from cpplm.model.lora import add_lora
from cpplm.model.settings import KernelSettings, LoraSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import build_lora_optimizer, build_optimizer
from cpplm.train.memory_estimate import MemoryPlan, estimate_memory
from cpplm.train.settings import TrainSettings
from tests.model.features import CONFIGS


def plan(config: ModelConfig, rows: int, **changes: Any) -> MemoryPlan:
    kernels = KernelSettings(gradient_checkpointing=changes.pop("again", False))
    accumulation = changes.pop("accumulation", 1)
    settings = TrainSettings(
        ("corpus",), Path("tokenizer"), Path("out"), kernels=kernels, max_seq_len=config.max_seq_len,
        device_batch_size=rows, total_batch_size=rows * config.max_seq_len * accumulation, **changes,
    )  # fmt: skip
    return MemoryPlan(settings, config, torch.float32)


def measured_peak(made: MemoryPlan, accumulation: int) -> tuple[int, int, int]:
    """Bytes of weights, of optimizer state, and the most of anything else during the second step."""
    settings = made.settings
    model = Transformer(made.config, kernels=settings.kernels)
    model.init_weights()
    if settings.lora.lora_rank:
        add_lora(model, settings.lora, seed=0)
        optimizer = build_lora_optimizer(model, 0.001, settings.rates)
    else:
        optimizer = build_optimizer(model, settings.rates, batch_tokens=settings.total_batch_size)
    shape = (settings.device_batch_size, made.config.max_seq_len)
    ids = torch.randint(made.config.vocab_size, shape, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        for _ in range(accumulation):
            model.training_losses(ids, ids).total.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    events = [e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    assert abs(now) < most / 50  # what a step takes it gives back
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    return weights, sum(tensor.nbytes for tensor in optimizer.named_state().values()), most


@pytest.mark.parametrize(
    ("depth", "length", "rows", "accumulation", "again"),
    [
        (2, 256, 2, 1, False),
        (2, 256, 2, 1, True),
        (2, 256, 1, 2, False),
        pytest.param(4, 128, 4, 1, False, marks=pytest.mark.slow),
        pytest.param(4, 512, 1, 2, True, marks=pytest.mark.slow),
    ],
)
def test_the_peak_of_a_real_step(depth: int, length: int, rows: int, accumulation: int, again: bool) -> None:
    config = ModelConfig.from_depth(depth, vocab_size=2048, head_dim=64, max_seq_len=length)
    made = plan(config, rows, accumulation=accumulation, again=again)
    weights, state, most = measured_peak(made, accumulation)
    found = estimate_memory(made, 1, device_type="cpu")
    assert found.weights == weights
    assert found.optimizer_state == state
    assert found.peak - weights - state == pytest.approx(most, rel=0.15)


def test_an_adapter_has_no_gradients_and_no_moments_of_frozen_weights() -> None:
    config = ModelConfig.from_depth(2, vocab_size=2048, head_dim=64, max_seq_len=256)
    made = plan(config, 2, init_from="run", lora=LoraSettings(lora_rank=8))
    weights, state, most = measured_peak(made, 1)
    found, whole = (estimate_memory(each, 1, device_type="cpu") for each in (made, plan(config, 2)))
    assert (found.weights, found.optimizer_state) == (weights, state)
    assert found.peak - weights - state == pytest.approx(most, rel=0.15)
    assert found.gradients < whole.gradients / 20


@pytest.mark.parametrize("name", ["plain", "all"])
def test_every_feature_can_be_estimated(name: str) -> None:
    config = CONFIGS[name]
    single, doubled = (estimate_memory(plan(config, rows), 1) for rows in (2, 4))
    parameters = sum(parameter.nbytes for parameter in Transformer(config).parameters())
    assert single.weights >= parameters
    assert single.activations < doubled.activations <= 2 * single.activations
    less = estimate_memory(plan(config, 2, again=True), 1)
    assert less.activations < single.activations


def test_more_ranks_have_less_each() -> None:
    """Of all but n-gram tables, which every rank has whole."""
    config = ModelConfig.nanochat(8, vocab_size=2048, head_dim=64, max_seq_len=128)
    made = plan(config, 1, accumulation=4)
    one, four = (estimate_memory(made, ranks, device_type="cpu") for ranks in (1, 4))
    shards = estimate_memory(replace(made, settings=replace(made.settings, shard=True)), 4, device_type="cpu")
    assert four.weights == one.weights
    assert four.optimizer_state < one.optimizer_state / 4 * 1.1
    assert shards.weights < one.weights / 4 * 1.05
    assert shards.peak < four.peak < one.peak


def test_blocks_too_small_to_be_divided() -> None:
    config = ModelConfig.seed(1, vocab_size=2048, aspect_ratio=8, head_dim=8, max_seq_len=16)
    assert estimate_memory(plan(config, 1, shard=True), 64, device_type="cpu").gathered > 0
