"""C++ problems during training, beside it: a process measures a saved checkpoint while the steps go on.

The checkpoint is pinned by hard links in the run folder, so that the run may delete it meanwhile; they cost
no time, and no space until it does. Where it cannot be linked (a bucket, another disk) it is read where it
lies. Whatever goes wrong is said and logged, and the run goes on. Programs that the model writes are compiled
and run in the sandbox only; where none works the measurement refuses.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.run_log import LOG, read_run_log
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage, is_bucket
from cpplm.evaluate.eval_worker import CppEvalRequest
from cpplm.evaluate.settings import CppEvalSettings
from cpplm.generate.settings import ModelSource
from cpplm.train.checkpoint.format import committed_steps
from cpplm.train.checkpoint.format import step_folder as checkpoint_folder
from cpplm.train.trainer import Callback, StepMetrics, Trainer

FOLDER = "cpp_evaluation"  # in the run folder: pinned checkpoint, and what the process says
EVENT = "cpp_evaluation"
LOOK_SECONDS = 10.0  # between two looks for a new checkpoint, which may lie in a bucket


@dataclass
class RunningEvaluation:
    """One measurement under way."""

    step: int
    process: subprocess.Popen[str]
    messages: IO[str]
    since: float


class CppEvaluationCallback(Callback):
    """Measures newly saved checkpoints that are at least so many steps apart, one at a time.

    Each result is a record `cpp_evaluation` of the step that was measured. At the end of training one that is
    under way is waited for; a run that is asked to stop ends it.
    """

    def __init__(self, every: int, *, minutes: float = 30.0, settings: CppEvalSettings | None = None) -> None:
        """Set what is measured, and how much it may take.

        Args:
            every: least distance of two measured checkpoints, in steps.
            minutes: time after which a measurement is given up.
            settings: sampling and problems; the defaults of `cpplm evaluate cpp` when left out.
        """
        self._every, self._seconds = every, 60 * minutes
        self._settings = settings or CppEvalSettings()
        self._running: RunningEvaluation | None = None
        self._measured = 0
        self._looked = 0.0
        self._reported: set[str] = set()

    def on_start(self, trainer: Trainer) -> None:
        """Forget what a killed session left; go on behind the last step that was measured."""
        shutil.rmtree(trainer.settings.out / FOLDER, ignore_errors=True)
        records = read_run_log(trainer.settings.out / LOG)
        self._measured = max((r["step"] for r in records if r["event"] == EVENT), default=0)

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Take a result that has arrived, or start on a new checkpoint."""
        if self._running is not None:
            self._collect(trainer, self._running)
        elif (step := self._due(trainer)) is not None:
            self._start(trainer, step)

    def on_end(self, trainer: Trainer) -> None:
        """Wait for the measurement under way, or end it when the run was asked to stop."""
        if self._running is not None and not trainer.stopping:
            left = max(0.0, self._running.since + self._seconds - time.monotonic())
            log_info(
                f"waiting up to {left / 60:.0f} minutes for the C++ problems of step {self._running.step}; "
                "Ctrl-C does without"
            )
        while self._running is not None and not trainer.stopping:
            self._collect(trainer, self._running)
            time.sleep(0.05)
        if self._running is not None:
            self._finish(trainer, self._running)

    def _due(self, trainer: Trainer) -> int | None:
        """The newest checkpoint, when it is far enough behind the last one measured."""
        waited = time.monotonic() - self._looked
        if trainer.state.step < self._measured + self._every or waited < LOOK_SECONDS:
            return None
        self._looked = time.monotonic()
        try:
            steps = committed_steps(_checkpoints(trainer))
        except UserError as error:
            self._warn(f"no C++ problems: {error}")
            return None
        return steps[-1] if steps and steps[-1] >= self._measured + self._every else None

    def _start(self, trainer: Trainer, step: int) -> None:
        self._measured = step
        folder = trainer.settings.out / FOLDER
        try:
            folder.mkdir(exist_ok=True)
            source = ModelSource(_pin_checkpoint(trainer, step), step, "cpu")  # leaves the training its own
            messages = (folder / "messages.txt").open("w+", encoding="utf-8")
            process = subprocess.Popen(
                [sys.executable, "-m", "cpplm.evaluate.eval_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                start_new_session=True,  # Ctrl-C is for the training
            )
        except OSError as error:
            self._warn(f"the C++ problems of step {step} were not measured: {error}")
            return
        self._running = RunningEvaluation(step, process, messages, time.monotonic())
        request = to_dict(CppEvalRequest(source, self._settings))
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended already: `_collect` will say why
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()  # and stays open: the process ends when we do

    def _collect(self, trainer: Trainer, running: RunningEvaluation) -> None:
        """Log the result if it is there, or give up when the time is over."""
        if running.process.poll() is not None:
            answer = _answer(running)
        elif time.monotonic() > running.since + self._seconds:
            answer = {"failed": f"not done after {self._seconds / 60:g} minutes"}
        else:
            return
        self._finish(trainer, running)
        trainer.log.write(EVENT, step=running.step, **answer)
        if "failed" in answer:
            self._warn(f"the C++ problems of step {running.step} were not measured: {answer['failed']}")
        else:
            log_info(
                f"step {running.step}: {answer['compile_rate']:.1%} of the completions of "
                f"{answer['problems']} C++ problems compile, pass@1 {answer['pass@1']:.1%}"
            )

    def _finish(self, trainer: Trainer, running: RunningEvaluation) -> None:
        """End the process and what it started, and remove its files."""
        if running.process.poll() is None:
            os.killpg(running.process.pid, signal.SIGKILL)
        for stream in (running.process.stdin, running.process.stdout, running.messages):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that it did not read
                    stream.close()
        running.process.wait()
        self._running = None
        shutil.rmtree(trainer.settings.out / FOLDER, ignore_errors=True)

    def _warn(self, message: str) -> None:
        """Say a reason once; the log has every time."""
        reason = message.partition(": ")[2]
        if reason not in self._reported:
            log_info(f"warning: {message}")
        self._reported.add(reason)


def _checkpoints(trainer: Trainer) -> Storage:
    return Storage(trainer.settings.checkpoint_location, create=True)


def _pin_checkpoint(trainer: Trainer, step: int) -> str:
    """A folder that holds the checkpoint until it is removed, or where the checkpoint lies."""
    location = _checkpoints(trainer).location
    pin = trainer.settings.out / FOLDER
    name = checkpoint_folder(step)
    try:
        if not is_bucket(location):
            shutil.copytree(Path(location) / name, pin / name, copy_function=os.link)
            return str(pin)
    except (OSError, shutil.Error):
        shutil.rmtree(pin / name, ignore_errors=True)
    return location


def _answer(running: RunningEvaluation) -> dict[str, Any]:
    """The figures that the process printed, or the end of its complaint."""
    printed = running.process.stdout.readline() if running.process.stdout is not None else ""
    if running.process.returncode == 0 and printed:
        return json.loads(printed)
    running.messages.seek(0)
    lines = [line.strip() for line in running.messages.read().splitlines() if line.strip()]
    return {"failed": f"exit status {running.process.returncode}: {lines[-1] if lines else 'no message'}"}
