"""A run that takes seconds."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpplm.optim.schedules import LearningRates
from cpplm.train import torch_backend
from cpplm.train.memory_estimate import MemoryEstimate, MemoryPlan
from cpplm.train.settings import TrainSettings
from tests.conftest import SMALL_TABLES

# Settings in which runs differ and their memory does not; all others are told apart.
NO_MEMORY = {"data_dir", "eval_every", "eval_tokens", "init_from", "keep_last", "num_iterations", "out",
             "save_every", "stage", "tokenizer", "upload_dir"}  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def activations_are_traced_once() -> Iterator[None]:
    """Memory estimates of runs, one for all that need the same: it takes as long as eight small steps.

    Each run makes one before it begins. What is asked for without a run is estimated every time.
    """
    known: dict[str, MemoryEstimate] = {}
    estimate = torch_backend.estimate_memory

    def once(plan: MemoryPlan, *ranks: int, **device: Any) -> MemoryEstimate:
        fields = (each.name for each in dataclasses.fields(plan.settings) if each.name not in NO_MEMORY)
        settings = {name: getattr(plan.settings, name) for name in fields}
        key = repr((settings, plan.config, plan.compute_dtype, ranks, device))
        if key not in known:
            known[key] = estimate(plan, *ranks, **device)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_backend, "estimate_memory", once)
        yield


@pytest.fixture
def settings(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> TrainSettings:
    return small_settings(corpus, tokenizer_path, tmp_path / "run")


def small_settings(corpus: Path, tokenizer_path: Path, out: Path) -> TrainSettings:
    """A run that takes a second or two."""
    return TrainSettings(
        data_dir=(str(corpus),),
        tokenizer=tokenizer_path,
        out=out,
        depth=2,
        aspect_ratio=16,
        head_dim=16,
        max_seq_len=32,
        device_batch_size=4,
        total_batch_size=256,
        num_iterations=8,
        rates=LearningRates(matrix_lr=0.5, embedding_lr=5.0, unembedding_lr=0.2),
        eval_every=4,
        eval_tokens=500,
        no_compile=True,
        architecture=SMALL_TABLES,
    )
