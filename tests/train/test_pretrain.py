"""Learning, exact resume, refusals."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.core.locking import exclusive_lock
from cpplm.core.storage import Storage
from cpplm.dataloader.settings import DataSettings
from cpplm.model.settings import ArchitectureSettings, KernelSettings
from cpplm.optim.schedules import LearningRates
from cpplm.train import trainer as trainer_module
from cpplm.train.backend import StepLosses
from cpplm.train.checkpoint.format import open_run
from cpplm.train.checkpoint.weights import load_tensors
from cpplm.train.distributed import TorchDistContext
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.torch_backend import TorchTrainModule
from cpplm.train.trainer import Callback, StepMetrics, Trainer
from tests.conftest import SMALL_TABLES, write_corpus
from tests.train.records import records


class StopAt(Callback):
    """Asks the run to stop after a step, as Ctrl-C does; or dies there, as kill -9 does."""

    def __init__(self, step: int, *, die: bool = False) -> None:
        self.step, self.die = step, die

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        if trainer.state.step == self.step:
            if self.die:
                raise ConnectionAbortedError("killed")
            trainer.stopping = True


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_tensors(open_run(run), "model.safetensors")


def assert_same_weights(a: Path, b: Path) -> None:
    for name, tensor in weights(a).items():
        assert torch.equal(tensor, weights(b)[name]), name


def test_it_learns(settings: TrainSettings) -> None:
    summary = pretrain(dataclasses.replace(settings, num_iterations=40, eval_every=20))
    bits = [record["bits_per_byte"] for record in records(settings.out, "validation")]
    assert summary.step == 40
    assert summary.tokens == 40 * 256
    assert bits[-1] < 0.75 * bits[0]
    assert summary.validation is not None
    assert summary.validation["bits_per_byte"] == bits[-1]
    assert [record["step"] for record in records(settings.out, "step")] == list(range(1, 41))


EVERYTHING = ArchitectureSettings(
    preset="nanochat", engram="memory", engram_table_size=100, mhc=True, mhc_num_branches=2,
    mtp=True, mtp_depth=2, dsa=True, dsa_start_layer=1, dsa_local_window=4, dsa_indexer_heads=2,
    dsa_indexer_dim=4, dsa_warmup_ratio=0.5,
)  # fmt: skip


ALL_DATA = DataSettings(document_mask=True, short_seq_len=16, short_seq_ratio=0.4, data_workers=1)


@pytest.mark.parametrize(
    ("die", "architecture", "data"),
    [(False, SMALL_TABLES, DataSettings()), (True, EVERYTHING, ALL_DATA)],
    ids=["plain, stopped", "everything, killed"],
)
def test_resume_is_bit_exact(
    settings: TrainSettings, tmp_path: Path, die: bool, architecture: ArchitectureSettings, data: DataSettings
) -> None:
    rates = dataclasses.replace(settings.rates, muon_beta2=0.9)
    settings = dataclasses.replace(
        settings, architecture=architecture, rates=rates, data=data, num_iterations=6, eval_tokens=100
    )
    whole = dataclasses.replace(settings, out=tmp_path / "whole")
    pretrain(whole)
    parts = dataclasses.replace(settings, save_every=2)
    with pytest.raises(ConnectionAbortedError if die else KeyboardInterrupt):
        pretrain(parts, [StopAt(3, die=die)])
    assert open_run(parts.out).step == (2 if die else 3)
    with pytest.raises(KeyboardInterrupt):
        pretrain(parts, [StopAt(5)])
    summary = pretrain(parts)
    assert_same_weights(whole.out, parts.out)
    steps = records(parts.out, "step")
    assert [r["step"] for r in steps] == list(range(1, 7))  # none lost, none twice
    assert [r["loss"] for r in steps] == [r["loss"] for r in records(whole.out, "step")]
    for part in ("multi_token_loss", "indexer_loss"):
        assert all((part in r) == (architecture is EVERYTHING) for r in steps)
    assert summary.trained_now


def test_a_run_goes_on_with_other_kernels(settings: TrainSettings) -> None:
    """Kernels change rounding only: they may differ between sessions."""
    short = dataclasses.replace(settings, num_iterations=1, eval_every=-1)
    pretrain(dataclasses.replace(short, kernels=KernelSettings(kernel="native")))
    other = KernelSettings(kernel="chunked", attention="chunked", gradient_checkpointing=True)
    assert pretrain(dataclasses.replace(short, num_iterations=2, kernels=other)).step == 2
    sessions = records(settings.out, "session")
    assert [session["kernels"]["loss"] for session in sessions] == ["native", "chunked"]


def test_accumulation_gives_the_same_run(settings: TrainSettings, tmp_path: Path) -> None:
    # Without the scalars: at the first step their gradient is rounding noise, whose sign AdamW follows.
    plain = dataclasses.replace(
        settings, num_iterations=3, precision="fp32", rates=LearningRates(scalar_lr=0.0), eval_every=-1
    )
    for rows in (8, 2):
        pretrain(dataclasses.replace(plain, out=tmp_path / str(rows), device_batch_size=rows))
    for name, tensor in weights(tmp_path / "8").items():
        torch.testing.assert_close(tensor, weights(tmp_path / "2")[name], atol=1e-3, rtol=1e-3)


def test_finished_run_is_left_alone(settings: TrainSettings) -> None:
    short = dataclasses.replace(settings, num_iterations=1, eval_every=-1)
    pretrain(short)
    before = (settings.out / "log.jsonl").read_bytes()
    summary = pretrain(short)
    assert not summary.trained_now
    assert (settings.out / "log.jsonl").read_bytes() == before
    longer = pretrain(dataclasses.replace(short, num_iterations=2))
    assert longer.trained_now
    assert longer.step == 2


def test_another_corpus_is_refused(settings: TrainSettings, tmp_path: Path) -> None:
    pretrain(dataclasses.replace(settings, num_iterations=1))
    other = write_corpus(tmp_path / "other", {"train": [12], "val": [3]})
    with pytest.raises(UserError, match="corpus was"):
        pretrain(dataclasses.replace(settings, data_dir=(str(other),)))


def test_time_horizon_stops_and_follows_the_clock(
    settings: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here each step takes an eighth of a second by the trainer's clock, whatever the machine does."""
    now, real = [1000.0], TorchTrainModule.step

    def step(train_module: TorchTrainModule, *arguments: Any) -> StepLosses:
        now[0] += 0.125
        return real(train_module, *arguments)

    monkeypatch.setattr(TorchTrainModule, "step", step)
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    summary = pretrain(dataclasses.replace(settings, num_iterations=-1, max_minutes=0.025, eval_every=-1))
    assert (summary.step, summary.seconds) == (12, 1.5)
    log = records(settings.out, "step")
    assert [r["progress"] for r in log] == pytest.approx([step / 12 for step in range(1, 13)], abs=1e-5)
    assert log[-1]["lr_multiplier"] < 0.8 * log[0]["lr_multiplier"]


def test_disk_full_names_the_file(settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    pretrain(dataclasses.replace(settings, num_iterations=2))

    def full(self: Storage, name: str, data: bytes) -> None:
        raise UserError(f"cannot write {self.path(name)}: No space left on device")

    monkeypatch.setattr(Storage, "write", full)
    with pytest.raises(UserError, match="No space left"):
        pretrain(settings)
    monkeypatch.undo()
    assert open_run(settings.out).step == 2  # the checkpoint before is intact


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_batch_size": 100}, "Use 128"),
        ({"num_iterations": 3, "max_minutes": 1.0}, "both set the length"),
        ({"num_iterations": -1, "target_param_data_ratio": -1}, "how long to train"),
        ({"depth": 0}, "--depth 0"),
        ({"eval_every": 0}, "--eval_every 0"),
        ({"max_minutes": 0.0}, "--max_minutes 0"),
        ({"seed": -1}, "--seed -1"),
        ({"run_name": "x"}, "Add --wandb_project"),
    ],
)
def test_contradictions(settings: TrainSettings, change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(settings, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"window_pattern": "XY"},
        {"head_dim": 15},
        {"num_kv_heads": 3, "aspect_ratio": 32},
        {"data": DataSettings(data_weights=(1.0, 2.0))},
        {"kernels": KernelSettings(attention="flash3")},
        {"kernels": KernelSettings(fp8=True)},
    ],
)
def test_what_is_refused_leaves_no_folder(settings: TrainSettings, change: dict) -> None:
    if "kernels" in change and torch.cuda.is_available():
        pytest.skip("a GPU may have them")
    with pytest.raises(UserError):
        pretrain(dataclasses.replace(settings, **change))
    assert not settings.out.exists()


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("eval_every", 5, "eval_every 5, not 4"),
        ("found", {"hash": {"tokenizer": "ab"}}, "found.hash.tokenizer ab, not"),
        ("found", {"hash": {"corpus": "ab"}}, "found.hash.corpus ab, not"),
        ("found", {"cpplm": "0.0"}, "found.cpplm 0.0, not"),
        ("data", {"data_workers": 7}, ""),
        ("tokenizer", "elsewhere.json", ""),
    ],
)
def test_processes_have_to_be_alike(
    settings: TrainSettings, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, refused: str
) -> None:
    """What a second one says is what this one does, but for one thing."""

    def said(dist: TorchDistContext, own: Any) -> list[Any]:
        if not isinstance(own, dict) or name not in own:
            return [own]
        other = {**own, name: value}
        if isinstance(value, dict):
            (key, part), within = next(iter(value.items())), own[name]
            other[name] = {**within, key: {**within[key], **part} if isinstance(part, dict) else part}
        return [own, other]

    monkeypatch.setattr(TorchDistContext, "gather_objects", said)
    if refused:
        with pytest.raises(UserError, match=refused):
            pretrain(settings)
    else:
        assert pretrain(dataclasses.replace(settings, num_iterations=1, eval_every=-1)).step == 1


def test_no_validation_documents(settings: TrainSettings, tmp_path: Path) -> None:
    corpus = str(write_corpus(tmp_path / "c", {"train": [5]}))
    with pytest.raises(UserError, match="--eval_every -1"):
        pretrain(dataclasses.replace(settings, data_dir=(corpus,)))
    assert not settings.out.exists()
    assert pretrain(dataclasses.replace(settings, data_dir=(corpus,), eval_every=-1)).validation is None


def test_checkpoints_elsewhere_are_found_by_the_run(settings: TrainSettings, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    pretrain(dataclasses.replace(settings, num_iterations=1, eval_every=-1, checkpoint_dir=elsewhere))
    assert open_run(settings.out).step == open_run(elsewhere).step == 1


def test_two_runs_in_one_folder(settings: TrainSettings) -> None:
    settings.out.mkdir()
    with exclusive_lock(settings.out), pytest.raises(UserError, match="another cpplm process"):
        pretrain(settings)
