"""A run that takes seconds."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.optim.schedules import LearningRates
from cpplm.train import memory_estimate
from cpplm.train.settings import TrainSettings
from tests.conftest import SMALL_TABLES


@pytest.fixture(scope="session", autouse=True)
def activations_are_traced_once() -> Iterator[None]:
    """Activations of equal memory plans, traced once in all tests: it takes as long as eight steps of a run.

    Each run estimates its memory before it begins, and most runs here are of the same model.
    """
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(memory_estimate.trace_activations)
        patch.setattr(memory_estimate, "trace_activations", once)
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
