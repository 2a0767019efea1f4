"""Samples during training and of the examples, also where the context is short."""

import dataclasses
from pathlib import Path

from cpplm.core.run_log import read_run_log
from cpplm.generate.engine import Engine
from cpplm.generate.samples import EXAMPLE_PROMPTS, SampleCallback, example_completions
from cpplm.generate.settings import SamplingSettings
from cpplm.model.config import ModelConfig
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from tests.model.test_transformer import random_model

SHORT = SamplingSettings(max_new_tokens=5)


def engine_with_context(tokenizer: Tokenizer, max_seq_len: int) -> Engine:
    config = ModelConfig(tokenizer.vocab_size, 1, 16, 1, 1, 16, max_seq_len=max_seq_len)
    return Engine(random_model(config), tokenizer)


def test_every_example_is_completed(tokenizer: Tokenizer) -> None:
    samples = example_completions(engine_with_context(tokenizer, 256), SHORT)
    assert [sample["prompt"] for sample in samples] == list(EXAMPLE_PROMPTS)
    assert all(sample["finish_reason"] in ("end", "length") for sample in samples)


def test_samples_join_the_run_and_change_nothing(small_run: TrainSettings, tmp_path: Path) -> None:
    short = {"max_seq_len": 16, "total_batch_size": 32, "num_iterations": 4}
    plain = dataclasses.replace(small_run, out=tmp_path / "plain", **short)
    pretrain(plain)
    sampled = dataclasses.replace(plain, out=tmp_path / "sampled")
    pretrain(sampled, [SampleCallback(2, SHORT)])
    records = read_run_log(sampled.out / "log.jsonl")
    assert [r["step"] for r in records if r["event"] == "samples"] == [2, 4]

    def losses(run: TrainSettings) -> list[float]:
        return [r["loss"] for r in read_run_log(run.out / "log.jsonl") if r["event"] == "step"]

    assert losses(sampled) == losses(plain)
