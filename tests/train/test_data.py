"""From settings to batches: what is refused, and what reaches the loader."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.dataloader.fim import FimSettings
from cpplm.dataloader.loader import Batch
from cpplm.dataloader.loader_state import LoaderState
from cpplm.dataloader.settings import DataSettings
from cpplm.tokenizer.special_tokens import FIM_MIDDLE
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.data import (
    check_data,
    corpus_fingerprint,
    open_readers,
    train_loader,
    verify_in_background,
    warn_of_mismatches,
)
from cpplm.train.distributed import SINGLE_PROCESS
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.training_length import TrainingBudget
from tests.conftest import write_corpus


@pytest.fixture
def settings(settings: TrainSettings) -> TrainSettings:
    return dataclasses.replace(settings, depth=1, max_seq_len=64)


def first_rows(settings: TrainSettings, budget: TrainingBudget, batches: int = 8) -> torch.Tensor:
    tokenizer = Tokenizer.load(settings.tokenizer)
    readers = open_readers(settings)
    check_data(settings, readers, tokenizer, budget)
    loader = train_loader(settings, readers, tokenizer, budget, SINGLE_PROCESS, LoaderState())
    try:
        return torch.cat([next(loader).inputs for _ in range(batches)])
    finally:
        loader.close()


STEPS = TrainingBudget(steps=100)


def test_fill_in_the_middle_reaches_the_rows(settings: TrainSettings) -> None:
    assert not (first_rows(settings, STEPS) == FIM_MIDDLE).any()
    fim = dataclasses.replace(settings, fim=FimSettings(fim_rate=1.0, syntax_fim_rate=0.0))
    assert (first_rows(fim, STEPS) == FIM_MIDDLE).any()


def test_holes_by_syntax_need_a_corpus_with_spans(settings: TrainSettings) -> None:
    fim = dataclasses.replace(settings, fim=FimSettings(fim_rate=0.5))
    with pytest.raises(UserError, match="has no spans"):
        first_rows(fim, STEPS)


def test_several_data_sets(settings: TrainSettings, tmp_path: Path) -> None:
    other = write_corpus(tmp_path / "other", {"train": [20]})
    both = dataclasses.replace(settings, data_dir=(*settings.data_dir, str(other)))
    assert len(open_readers(both)) == 2
    assert corpus_fingerprint(open_readers(both)) != corpus_fingerprint(open_readers(settings))
    only_first = dataclasses.replace(both, data=DataSettings(data_weights=(1.0, 0.0)))
    assert torch.equal(first_rows(only_first, STEPS), first_rows(settings, STEPS))
    assert not torch.equal(first_rows(both, STEPS), first_rows(settings, STEPS))


def test_late_weights_hold_for_the_end_of_the_run(settings: TrainSettings, tmp_path: Path) -> None:
    other = write_corpus(tmp_path / "other", {"train": [20]})
    data = DataSettings(data_weights=(1.0, 0.0), late_data_weights=(0.0, 1.0), late_data_ratio=0.5)
    late = dataclasses.replace(settings, data_dir=(*settings.data_dir, str(other)), data=data)
    rows, plain = first_rows(late, TrainingBudget(steps=4), 8), first_rows(settings, STEPS, 8)
    assert torch.equal(rows[:8], plain[:8])  # two of four steps of four rows
    assert not torch.equal(rows[8:], plain[8:])
    with pytest.raises(UserError, match="steps can be counted"):
        first_rows(late, TrainingBudget(seconds=60.0))
    for name in ("data_weights", "late_data_weights"):
        one_too_many = dataclasses.replace(settings, data=DataSettings(**{name: (1.0, 2.0)}))
        with pytest.raises(UserError, match="2 values for 1 data sets"):
            first_rows(one_too_many, STEPS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenizer_threads": 0}, "tokenizer_threads 0"),
        ({"data_workers": -1}, "data_workers -1"),
        ({"late_data_ratio": 0.2}, "without --late_data_weights"),
        ({"short_seq_ratio": 0.2}, "without --short_seq_len"),
        ({"short_seq_len": 16, "short_seq_ratio": 1.5}, "a share"),
        ({"short_seq_len": 0}, "short_seq_len 0"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DataSettings(**values)


def test_short_rows_must_divide_the_context(settings: TrainSettings) -> None:
    with pytest.raises(UserError, match="does not divide"):
        dataclasses.replace(settings, data=DataSettings(short_seq_len=48))
    data = DataSettings(short_seq_len=16, short_seq_ratio=0.25)
    assert [data.row_length(progress, 64) for progress in (0.0, 0.24, 0.25, 1.0)] == [16, 16, 64, 64]
    assert data.row_lengths(64) == (16, 64)


def test_training_says_the_warnings_once_and_passes_all_batches_on(
    corpus: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    prose = "The quick brown fox jumps over the lazy dog\nand then it sleeps in the sun for a while.\n" * 20
    reader = ShardReader(corpus)
    reader.manifest["identity"] = {"tokenizer_hash": "f" * 64}
    ids = torch.tensor([tokenizer.encode(prose), tokenizer.encode(prose)])
    batches = [Batch(ids, ids, LoaderState(rows)) for rows in range(3)]
    assert list(warn_of_mismatches(iter(batches), [reader], tokenizer)) == batches
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 3
    assert [any(part in line for line in warnings) for part in ("keywords", "f" * 12, "look like C++")] == [
        True
    ] * 3


def test_a_damaged_shard_is_found_before_the_first_step(settings: TrainSettings, tmp_path: Path) -> None:
    """Also one of the same size that the first steps do not read."""
    corpus = write_corpus(tmp_path / "corpus", {"train": [20, 20], "val": [8]})
    shard = corpus / "val_00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    damaged = dataclasses.replace(settings, data_dir=(str(corpus),), num_iterations=1, no_compile=True)
    with pytest.raises(UserError, match=r"val_00000\.parquet is damaged: its hash"):
        pretrain(damaged)
    assert not list(settings.out.glob("checkpoints/*"))
    streaming = dataclasses.replace(damaged, data=DataSettings(streaming_data=True))
    with verify_in_background(open_readers(streaming), SINGLE_PROCESS) as verification:
        assert isinstance(verification.exception(), UserError)
