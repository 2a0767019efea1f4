"""How a run ends: asked to stop, with an error, with numbers that are none."""

import dataclasses
import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.dataloader.loader import Batch
from cpplm.dataloader.prefetch import Prefetcher
from cpplm.model.transformer import Transformer
from cpplm.optim.muon import MuonAdamW
from cpplm.optim.schedules import LearningRates
from cpplm.train.checkpoint.format import open_run
from cpplm.train.distributed import TorchDistContext
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback, StepMetrics, Trainer
from cpplm.train.validation import ValidationResult, validate
from tests.train.records import records
from tests.train.test_pretrain import assert_same_weights, weights


class FailAtEnd(Callback):
    def on_end(self, trainer: Trainer) -> None:
        raise ConnectionAbortedError("a later callback failed")


def test_what_fails_after_the_last_step_does_not_lose_it(settings: TrainSettings) -> None:
    with pytest.raises(ConnectionAbortedError):
        pretrain(settings, [FailAtEnd()])
    assert open_run(settings.out).step == 8


@pytest.mark.parametrize("validation", [1, 2], ids=["before the first step", "after step 4"])
def test_a_stop_is_heard_during_validation(
    validation: int, settings: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was learned is saved; before the first step there is nothing to save."""
    measured = begun = 0

    def interrupted_validate(
        model: Transformer, batches: Iterable[Any], sizes: torch.Tensor, dist: TorchDistContext
    ) -> ValidationResult:
        nonlocal measured, begun
        begun += 1
        if begun < validation:
            return validate(model, batches, sizes, dist)
        for _ in batches:
            measured += 1
            if measured == 2:
                os.kill(os.getpid(), signal.SIGINT)
        return validate(model, [], sizes, dist)

    monkeypatch.setattr("cpplm.train.callbacks.validate", interrupted_validate)
    with pytest.raises(KeyboardInterrupt):
        pretrain(settings)  # 8 batches of validation before the first step
    assert measured == 2
    steps = 4 * (validation - 1)
    assert [int(path.name[5:]) for path in settings.out.glob("checkpoints/*")] == [steps] * bool(steps)
    assert len(records(settings.out, "validation")) == validation - 1
    monkeypatch.undo()
    assert pretrain(settings).step == 8


def test_a_stop_is_heard_amid_an_agreement(settings: TrainSettings) -> None:
    """The signal comes when this rank has said that it goes on, and waits for what the others say."""

    class Signalled(TorchDistContext):
        agreements = 0

        def sync_stop_and_clock(self, *, stopping: bool, seconds: float) -> tuple[bool, float]:
            self.agreements += 1
            if self.agreements == 5:  # before the third step; each has one before it and one after
                os.kill(os.getpid(), signal.SIGTERM)
            return super().sync_stop_and_clock(stopping=stopping, seconds=seconds)

    class Meet(Callback):
        def on_start(self, trainer: Trainer) -> None:
            trainer.dist = Signalled(0, 1, trainer.dist.device, None)

    with pytest.raises(KeyboardInterrupt):
        pretrain(settings, [Meet()])
    assert open_run(settings.out).step == 2


class Signals(Callback):
    """Sends signals to this process after a step, so many seconds apart."""

    def __init__(self, step: int, *numbers: signal.Signals, apart: float = 0.0) -> None:
        self.step, self.numbers, self.apart = step, numbers, apart

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        if trainer.state.step == self.step:
            for index, number in enumerate(self.numbers):
                time.sleep(self.apart if index else 0)
                os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "signals",
    [
        Signals(3, signal.SIGTERM, signal.SIGTERM, apart=1.1),
        Signals(3, signal.SIGINT, signal.SIGTERM),
        Signals(3, signal.SIGINT, signal.SIGINT),  # torchrun passes on what the terminal has sent to all
    ],
    ids=["SIGTERM twice", "both", "SIGINT twice at once"],
)
def test_who_stops_a_group_of_processes_may_say_so_twice(settings: TrainSettings, signals: Signals) -> None:
    with pytest.raises(KeyboardInterrupt):
        pretrain(dataclasses.replace(settings, eval_every=-1), [signals])
    assert open_run(settings.out).step == 3


def test_a_later_ctrl_c_stops_at_once(settings: TrainSettings) -> None:
    with pytest.raises(KeyboardInterrupt):
        pretrain(settings, [Signals(3, signal.SIGINT, signal.SIGINT, apart=1.1)])
    assert not list(settings.out.glob("checkpoints/*"))
    assert records(settings.out, "end")[-1]["reason"] == "stopped"


class NoMoreBatches(Callback):
    """After some batches no more come, and SIGTERM comes instead."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.ended = threading.Event()

    def on_start(self, trainer: Trainer) -> None:
        whole = trainer.batches

        def cut() -> Iterator[Batch]:
            yield from itertools.islice(whole, self.batches)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
            self.ended.wait()

        trainer.batches = Prefetcher(cut())

    def on_end(self, trainer: Trainer) -> None:
        self.ended.set()


def test_a_stop_is_heard_while_batches_do_not_come(settings: TrainSettings, tmp_path: Path) -> None:
    """Even amid a step of two batches; what is taken up again is the run that nobody stopped."""
    settings = dataclasses.replace(settings, num_iterations=3, eval_every=-1)
    whole = dataclasses.replace(settings, out=tmp_path / "whole")
    pretrain(whole)
    with pytest.raises(KeyboardInterrupt):
        pretrain(settings, [NoMoreBatches(5)])
    assert open_run(settings.out).step == 2
    pretrain(settings)
    assert_same_weights(settings.out, whole.out)


def test_a_validation_that_is_no_number_ends_the_run(
    settings: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = ValidationResult(bits_per_byte=math.nan, loss=math.nan, tokens=1, bytes=1)
    monkeypatch.setattr("cpplm.train.callbacks.validate", lambda *arguments: nothing)
    with pytest.raises(UserError, match="validation loss is nan at step 0"):
        pretrain(settings)
    (end,) = records(settings.out, "end", "step", "validation", "checkpoint")
    assert end["reason"] == "failed"


def test_a_bad_gradient_is_not_saved(settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    pretrain(dataclasses.replace(settings, num_iterations=2))
    before = weights(settings.out)
    step = MuonAdamW.step

    def diverge(optimizer: MuonAdamW) -> None:
        step(optimizer)
        optimizer.gradient_norm = torch.tensor(math.nan)

    monkeypatch.setattr(MuonAdamW, "step", diverge)
    with pytest.raises(UserError, match=r"gradient nan at step 3.*Lower the learning rates"):
        pretrain(settings)
    for name, tensor in weights(settings.out).items():
        assert torch.equal(tensor, before[name])


def test_weights_that_are_no_numbers_are_not_saved(settings: TrainSettings) -> None:
    """A step whose own loss was finite may have spoiled them."""
    pretrain(dataclasses.replace(settings, num_iterations=2))
    reckless = dataclasses.replace(settings, rates=LearningRates(embedding_lr=1e42), save_every=1)
    with pytest.raises(UserError, match="holds numbers that are not finite"):
        pretrain(reckless)
    assert open_run(settings.out).step == 2
