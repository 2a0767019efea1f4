"""Traces of real steps: planned, asked for while the run goes on, cut short by the end; memory by parts."""

import dataclasses
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.dataloader.loader import Batch
from cpplm.model.flops import count_parameters
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.memory_log import MEMORY_PARTS, MemoryLogSettings
from cpplm.train.pretrain import pretrain
from cpplm.train.profiling import ProfileCallback
from cpplm.train.report.html import write_page
from cpplm.train.settings import TrainSettings, model_config
from cpplm.train.torch_profiler import MOST_OPERATIONS
from cpplm.train.trainer import Callback, StepMetrics, Trainer
from tests.train.records import records
from tests.train.test_pretrain import weights


class AskAt(Callback):
    """What `touch RUN/profile` does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        if trainer.state.step == self.step:
            (trainer.settings.out / "profile").touch()


def optimizer_steps(trace: Path) -> int:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sum(event.get("name", "").startswith("Optimizer.step") for event in events)


@pytest.fixture
def small(settings: TrainSettings) -> TrainSettings:
    return dataclasses.replace(settings, depth=1, total_batch_size=128, eval_every=-1)


@pytest.mark.slow
def test_planned_and_on_request(small: TrainSettings, tmp_path: Path) -> None:
    plain = dataclasses.replace(small, out=tmp_path / "plain")
    pretrain(plain)
    pretrain(small, [AskAt(4), ProfileCallback(small.out, 1)])
    for name, tensor in weights(plain.out).items():
        assert tensor.equal(weights(small.out)[name])  # looking on changes nothing
    first, asked = records(small.out, "profile")
    assert (first["step"], first["last_step"]) == (1, 3)
    assert (asked["step"], asked["last_step"]) == (5, 7)
    assert not (small.out / "profile").exists()
    for record in (first, asked):
        assert optimizer_steps(small.out / record["trace"]) == 3
        shares = [operation["share"] for operation in record["operations"]]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1.001
        assert len(shares) == MOST_OPERATIONS
        names = {operation["name"] for operation in record["operations"]}
        assert any("mm" in name for name in names), names
    assert sorted(path.name for path in (small.out / "profiles").iterdir()) == [
        "step_000001.json.gz",
        "step_000005.json.gz",
    ]
    html = write_page(small.out).read_text()
    assert "Profile of steps 5 to 7" in html


def test_a_trace_is_written_also_when_the_run_ends_first(small: TrainSettings) -> None:
    pretrain(small, [ProfileCallback(small.out, 8)])
    (record,) = records(small.out, "profile")
    assert (record["step"], record["last_step"]) == (8, 8)
    assert optimizer_steps(small.out / record["trace"]) == 1


def test_a_trace_that_cannot_be_written_does_not_end_the_run(
    small: TrainSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    small.out.mkdir()
    (small.out / "profiles").write_text("a file where the folder should be")
    assert pretrain(small, [ProfileCallback(small.out, 2)]).step == 8
    assert records(small.out, "profile") == []
    assert capsys.readouterr().err.count("warning: no profile of step 2") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="the figures are those of a CPU")
def test_parts_of_the_memory_of_a_real_run(settings: TrainSettings) -> None:
    watched = MemoryLogSettings(memory_every=3)
    pretrain(dataclasses.replace(settings, eval_every=4, memory=watched, num_iterations=6))
    measured = records(settings.out, "memory")
    assert [(record["step"], record["when"]) for record in measured] == [
        (0, "init"), (1, "warmup"), (3, "train"), (4, "train"), (6, "train"), (6, "train"),
    ]  # fmt: skip
    of_step = {"data", "forward", "backward", "optimizer"}
    assert [set(record["phases"]) for record in measured] == [
        set(), of_step, of_step, {"eval"}, of_step, {"save", "eval"},
    ]  # fmt: skip
    config = model_config(settings, Tokenizer.load(settings.tokenizer).vocab_size)
    parameters = 4 * count_parameters(config)["total"]
    for record in measured[1:]:
        assert record["gradients_bytes"] == parameters
        assert parameters <= record["weights_bytes"] < 1.1 * parameters  # with tables that do not learn
        assert 0.9 * parameters < record["optimizer_bytes"] < 2.1 * parameters
        assert sum(record[part] for part in MEMORY_PARTS) == record["peak_bytes"] >= record["held_bytes"] > 0
        assert record["logits_bytes"] == 4 * 4 * 32 * config.vocab_size
        for phase in record["phases"].values():
            assert 1.01 * record["peak_bytes"] > phase["peak_bytes"] >= phase["held_bytes"] > 0
    html = write_page(settings.out).read_text()
    assert "optimizer state" in html and "<td>backward</td><td>first step</td>" in html


class Takes(Callback):
    """Holds many bytes for a moment while it waits for data."""

    def on_start(self, trainer: Trainer) -> None:
        rest = trainer.batches

        def batches() -> Iterator[Batch]:
            for batch in rest:
                torch.ones(2**24).sum()
                yield batch

        trainer.batches = batches()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the figures are those of a CPU")
def test_what_a_phase_takes_stands_in_that_phase(settings: TrainSettings) -> None:
    watched = MemoryLogSettings(memory_every=2, memory_level="metrics")
    pretrain(dataclasses.replace(settings, eval_every=-1, memory=watched, num_iterations=2), [Takes()])
    phases = records(settings.out, "memory")[2]["phases"]
    taken = {name: found["peak_bytes"] - found["held_bytes"] for name, found in phases.items()}
    assert taken["data"] > 2**25 > 2 * max(taken[name] for name in ("forward", "backward", "optimizer"))
    assert records(settings.out, "memory")[2]["compiled_graphs"] >= 0


def test_bad_memory_settings(settings: TrainSettings) -> None:
    with pytest.raises(UserError, match="does nothing with --memory_every -1"):
        MemoryLogSettings(-1, "basic")
    with pytest.raises(UserError, match="--memory_every 0"):
        MemoryLogSettings(0)
    with pytest.raises(UserError, match="--memory_level hlo does nothing without --backend jax"):
        pretrain(dataclasses.replace(settings, memory=MemoryLogSettings(memory_level="hlo")))
    assert not settings.out.exists()
