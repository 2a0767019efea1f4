"""Samples during training join the run and change nothing."""

import dataclasses
from pathlib import Path

from cpplm.core.run_log import read_run_log
from cpplm.generate.samples import SampleCallback
from cpplm.generate.settings import SamplingSettings
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings

SHORT = SamplingSettings(max_new_tokens=5)


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
