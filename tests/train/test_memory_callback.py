"""What holds the memory of a real run."""

import dataclasses

import pytest
import torch

from cpplm.core.run_log import read_run_log
from cpplm.model.flops import count_parameters
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.pretrain import model_config, pretrain
from cpplm.train.profiling import MEMORY_PARTS
from cpplm.train.report.html import write_page
from cpplm.train.settings import TrainSettings


@pytest.mark.skipif(torch.cuda.is_available(), reason="the figures are those of a CPU")
def test_parts_of_a_real_run(settings: TrainSettings) -> None:
    pretrain(dataclasses.replace(settings, eval_every=-1, memory_every=3))
    records = [r for r in read_run_log(settings.out / "log.jsonl") if r["event"] == "memory"]
    assert [record["step"] for record in records] == [1, 3, 6]
    config = model_config(settings, Tokenizer.load(settings.tokenizer).vocab_size)
    parameters = 4 * count_parameters(config)["total"]
    for record in records:
        assert record["gradients_bytes"] == parameters
        assert parameters <= record["weights_bytes"] < 1.1 * parameters  # with tables that do not learn
        assert 0.9 * parameters < record["optimizer_bytes"] < 2.1 * parameters
        assert sum(record[part] for part in MEMORY_PARTS) == record["peak_bytes"] >= record["held_bytes"] > 0
    assert "optimizer state" in write_page(settings.out).read_text()
