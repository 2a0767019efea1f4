"""C++ problems beside the training: real runs, real processes, and every way in which they end."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cpplm.evaluate.callback
from cpplm.core.errors import UserError
from cpplm.core.run_log import read_run_log
from cpplm.core.settings import to_dict
from cpplm.evaluate.callback import CppEvaluationCallback, RunningEvaluation
from cpplm.evaluate.eval_worker import CppEvalRequest, measure
from cpplm.evaluate.problems import load_problems
from cpplm.evaluate.settings import CppEvalSettings
from cpplm.generate.settings import ModelSource
from cpplm.sandbox.sandbox import Sandbox
from cpplm.train.pretrain import pretrain
from cpplm.train.report.html import write_page
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Trainer
from tests.evaluate.scripted import write_problems
from tests.train.test_pretrain import StopAt


@pytest.fixture
def settings(small_run: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainSettings:
    """Each checkpoint is deleted two steps later."""
    monkeypatch.setattr(cpplm.evaluate.callback, "LOOK_SECONDS", 0.0)
    return dataclasses.replace(small_run, out=tmp_path / "run", save_every=2, keep_last=1)


@pytest.fixture
def problems(tmp_path: Path) -> CppEvalSettings:
    path = write_problems(tmp_path / "problems.jsonl", load_problems("small")[:2])
    return CppEvalSettings(problems=str(path), max_new_tokens=4)


class Watched(CppEvaluationCallback):
    """Keeps what it started, to look at when it is over."""

    started: list[RunningEvaluation]

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        self.started = []

    def _start(self, trainer: Trainer, step: int) -> None:
        super()._start(trainer, step)
        if self._running is not None:
            self.started.append(self._running)


def evaluations(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_run_log(run / "log.jsonl") if record["event"] == "cpp_evaluation"]


@pytest.mark.slow
def test_a_deleted_checkpoint_is_measured_while_the_training_goes_on(
    settings: TrainSettings, problems: CppEvalSettings, tmp_path: Path
) -> None:
    plain = dataclasses.replace(settings, out=tmp_path / "plain")
    pretrain(plain)
    watched = Watched(4, settings=problems)
    pretrain(settings, [watched])
    records = read_run_log(settings.out / "log.jsonl")
    (found,) = evaluations(settings.out)
    assert found["step"] == 4
    assert records[-2] == found  # the training did not wait for it, only its end did
    assert records[-1]["event"] == "end"
    assert [path.name for path in (settings.out / "checkpoints").iterdir()] == ["step_000008"]
    assert found["problems"] == sum(found["outcomes"].values()) == 2
    assert found["sandbox"] == Sandbox.probe().name
    assert not (settings.out / "cpp_evaluation").exists()
    assert watched.started[0].process.returncode == 0

    def losses(run: TrainSettings) -> list[float]:
        return [r["loss"] for r in read_run_log(run.out / "log.jsonl") if r["event"] == "step"]

    assert losses(settings) == losses(plain)
    assert "C++ problems during training" in write_page(settings.out).read_text()

    again = Watched(4, settings=problems)  # continued: step 4 is known, and the end needs no measurement
    longer = dataclasses.replace(settings, num_iterations=9)
    pretrain(longer, [again])
    assert [record["step"] for record in evaluations(settings.out)] == [4, 8]


@pytest.mark.slow
def test_it_is_given_up_when_its_time_is_over(settings: TrainSettings, problems: CppEvalSettings) -> None:
    watched = Watched(4, settings=problems, minutes=0.5 / 60)
    assert pretrain(settings, [watched]).step == 8
    first = evaluations(settings.out)[0]
    assert first["failed"] == "not done after 0.00833333 minutes"
    assert all(running.process.returncode == -9 for running in watched.started)


def test_a_stopped_run_does_not_wait(settings: TrainSettings, problems: CppEvalSettings) -> None:
    watched = Watched(4, settings=problems)
    with pytest.raises(KeyboardInterrupt):
        pretrain(settings, [watched, StopAt(6)])
    assert [running.process.returncode for running in watched.started] == [-9]
    assert evaluations(settings.out) == []
    assert not (settings.out / "cpp_evaluation").exists()


def test_what_goes_wrong_is_logged_each_time_and_said_once(
    settings: TrainSettings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert pretrain(settings, [CppEvaluationCallback(2)]).step == 8
    found = evaluations(settings.out)
    assert len(found) >= 2
    assert {record["failed"] for record in found} == {"exit status 1: no message"}
    assert capsys.readouterr().err.count("warning: the C++ problems of step") == 1
    assert "exit status 1: no message" in write_page(settings.out).read_text()


def test_without_a_sandbox_it_refuses_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_sandbox(*, unsafe: bool) -> Sandbox:
        assert not unsafe
        raise UserError("no sandbox works here")

    monkeypatch.setattr(Sandbox, "probe", no_sandbox)
    with pytest.raises(UserError, match="no sandbox works here"):
        measure(CppEvalRequest(ModelSource("no such run"), CppEvalSettings()))


@pytest.mark.parametrize("parent_lives", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_process_says_what_is_wrong_and_ends_with_its_parent(tmp_path: Path, parent_lives: bool) -> None:
    request = to_dict(CppEvalRequest(ModelSource(str(tmp_path)), CppEvalSettings()))
    command, pipe = [sys.executable, "-m", "cpplm.evaluate.eval_worker"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        if not parent_lives:
            process.stdin.close()
        printed = process.stdout.read()
        assert process.wait(20) == (0 if parent_lives else 1)
    assert ("no checkpoint in" in printed) == parent_lives
