"""What the trackers wrote, read back by their own readers."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cpplm.core.errors import UserError
from cpplm.core.run_log import RunLog
from cpplm.train.settings import TrainSettings
from cpplm.train.tracking import NonFatalTracker, TensorBoardTracker, WandbTracker, make_trackers


def train_and_resume(folder: Path) -> None:
    """Steps 1 to 6 and a measurement of step 2; killed, and continued from step 4 with other figures."""
    for resume, steps, loss in ((None, range(1, 7), 1.0), (4, range(5, 9), 2.0)):
        trackers = make_trackers(TrainSettings(("corpus",), Path("tokenizer"), folder, tensorboard=True))
        with RunLog(folder / "log.jsonl", trackers=trackers, truncate_after_step=resume) as log:
            log.write("session", step=resume or 0)
            for step in steps:
                log.write("step", step=step, loss=loss * step)
                if step == 5:
                    log.write("late", step=2, rate=0.5)


EXPECTED = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 10.0, 6: 12.0, 7: 14.0, 8: 16.0}


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    train_and_resume(tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("step/loss")] == list(EXPECTED.items())
    assert {e.step for e in events.Scalars("late/rate")} == {2}


class Failing:
    """A tracker whose disk is full after the first figures."""

    def __init__(self) -> None:
        self.calls = 0

    def log(self, step: int, values: dict[str, float]) -> None:
        self.calls += 1
        if step > 1:
            raise OSError("No space left on device")

    def close(self) -> None:
        raise OSError("No space left on device")


def test_a_tracker_that_fails_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    failing = Failing()
    tracker = NonFatalTracker(failing)
    for step in range(1, 5):
        tracker.log(step, {"loss": 1.0})
    tracker.close()
    assert failing.calls == 2
    assert capsys.readouterr().err.count("warning: Failing failed") == 1


def test_wandb_draws_over_our_steps_and_continues_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would throw away what is logged under a smaller number than before."""
    sessions: list[dict[str, object]] = []
    rows: list[dict[str, float]] = []
    run = SimpleNamespace(define_metric=lambda *names, **how: rows.append(how), log=rows.append)
    fake = SimpleNamespace(init=lambda **how: sessions.append(how) or run)
    monkeypatch.setattr("cpplm.train.tracking.import_tracker", lambda *names: fake)
    for _ in range(2):
        tracker = WandbTracker("project", "name", tmp_path, {"depth": 4})
        tracker.log(6, {"loss": 1.0})
        tracker.log(2, {"late": 0.5})
    assert rows == 2 * [{"step_metric": "step"}, {"loss": 1.0, "step": 6}, {"late": 0.5, "step": 2}]
    assert sessions[0] == sessions[1]  # one run, by its id
    assert sessions[0]["resume"] == "allow"


def test_weights_and_biases_that_refuses_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**how: object) -> None:
        raise ConnectionRefusedError("No API key\nconfigured")

    fake = SimpleNamespace(init=init, errors=SimpleNamespace(Error=ConnectionRefusedError))
    monkeypatch.setattr("cpplm.train.tracking.import_tracker", lambda *names: fake)
    with pytest.raises(UserError, match=r"cannot be used: No API key configured.*wandb login"):
        WandbTracker("project", "name", tmp_path, {})


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, make in (
        ("wandb", lambda: WandbTracker("project", "name", tmp_path, {})),
        ("torch.utils.tensorboard", lambda: NonFatalTracker(TensorBoardTracker(tmp_path))),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UserError, match=r"cpplm\[tracking\]"):
            make()
