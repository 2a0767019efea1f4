"""The training loop. Everything that is not a step is a callback.

State that matters is explicit (`TrainState`, `TrainModule.state`), so that a run continued from a checkpoint
takes the very steps that the uninterrupted run would have taken: bit for bit on the same machine, when the
length of the run is given in steps.

Several ranks run this loop side by side, each on its own rows. They decide alike, because what decides
(losses, time, the wish to stop) is first reduced over all of them.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TypeVar

from cpplm.core import shutdown
from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.run_log import RunLog
from cpplm.dataloader.loader import Batch, reshape_to_seq_len
from cpplm.dataloader.loader_state import LoaderState
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.backend import StepLosses, StepPlan, TrainModule
from cpplm.train.distributed import DistContext, TrainingInterrupted
from cpplm.train.settings import TrainSettings
from cpplm.train.training_length import TrainingBudget

T = TypeVar("T")


@dataclass
class TrainState:
    """The progress of a run. `seconds` is the time spent in steps, over all sessions; nothing else counts."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loader: LoaderState = field(default_factory=LoaderState)


@dataclass(frozen=True)
class StepMetrics:
    """One optimizer step; `data_seconds` of its `seconds` were spent waiting for batches."""

    losses: StepLosses
    lr_multiplier: float
    seconds: float
    data_seconds: float
    tokens: int


class Callback:
    """Something that joins the run at fixed points. The step is already counted in `on_step`."""

    def on_start(self, trainer: Trainer) -> None:
        """Before the first step of this session."""

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """After each step."""

    def on_end(self, trainer: Trainer) -> None:
        """After the last step of this session, also when it was asked to stop."""


@dataclass
class Trainer:
    """A model with its optimizer, its data and how far it has come.

    `stopping` turns true when this rank is asked to stop, or learns that another one was.
    """

    train_module: TrainModule
    tokenizer: Tokenizer
    batches: Iterator[Batch]
    budget: TrainingBudget
    settings: TrainSettings
    state: TrainState
    log: RunLog
    callbacks: Sequence[Callback]
    dist: DistContext
    stopping: bool = False
    _waited: float = 0.0
    _num_tokens: int = 0
    _may_give_up: bool = False
    _has_stepped: bool = False
    _announced: threading.Lock = field(default_factory=threading.Lock)

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return self.budget.progress(step=self.state.step, seconds=self.state.seconds)

    def run(self) -> None:
        """Train to the horizon.

        Raises:
            TrainingInterrupted: before the end (Ctrl-C, SIGTERM); `on_end` has run.
            KeyboardInterrupt: at once: before a step was made, or asked to twice.
            UserError: the loss or its gradient is no number any more.
        """
        if self.dist.process_count > 1:
            self._defer_stops()
        with self._stop_at_step_end():
            for callback in self.callbacks:
                callback.on_start(self)
            while self.progress < 1 and not self.should_stop():
                before = self.state.loader
                try:
                    metrics = self.step()
                except _StopBeforeStep:
                    self.state.loader = before
                    break
                _, self.state.seconds = self.dist.sync_stop_and_clock(
                    stopping=False, seconds=self.state.seconds + metrics.seconds
                )
                if not self._has_stepped:
                    self._has_stepped = True
                    self._defer_stops()
                for callback in self.callbacks:
                    callback.on_step(self, metrics)
            self.stopping = self.progress < 1  # asked to during its last step, a run ends as always
            for callback in self.callbacks:
                callback.on_end(self)
        if self.stopping:
            raise TrainingInterrupted(f"after step {self.state.step}; the same command continues from there")

    def _defer_stops(self) -> None:
        """From now on there is something to save, or there are other ranks to agree with."""
        shutdown.current_watcher().defer(
            self._announce, "at once; the same command continues from the last checkpoint, if there is one"
        )

    def _announce(self) -> None:
        """Once, by whoever hears the signal first: this thread, or the one that watches signals."""
        if self._announced.acquire(blocking=False):
            log_info("stopping, and saving what was learned; Ctrl-C once more to stop at once")

    def step(self) -> StepMetrics:
        """One optimizer step over `total_batch_size` tokens.

        Raises:
            UserError: the loss or its gradient is no number.
        """
        begin = time.perf_counter()
        plan = self._plan()
        count = self.settings.forward_passes(self.dist.data_parallel_size)
        losses = self.train_module.step(self._take(count), count, plan)
        if not (math.isfinite(losses.total) and math.isfinite(losses.gradient_norm)):
            raise UserError(
                f"the loss is {losses.total} and its gradient {losses.gradient_norm} "
                f"at step {self.state.step + 1}",
                fix="Lower the learning rates; the last checkpoint is as it was.",
            )
        tokens = self._num_tokens * self.dist.world_size
        self.state.step += 1
        self.state.tokens += tokens
        return StepMetrics(
            losses=losses,
            lr_multiplier=plan.learning_rate,
            seconds=time.perf_counter() - begin,
            data_seconds=self._waited,
            tokens=tokens,
        )

    def _take(self, count: int) -> Iterator[Batch]:
        """The next `count` batches of this rank, in rows of the present length; notes the time they take."""
        length = self.settings.data.row_length(self.progress, self.settings.max_seq_len)
        self._waited, self._num_tokens = 0.0, 0
        for _ in range(count):
            asked = time.perf_counter()
            with self.train_module.phases.record("data"):
                batch = reshape_to_seq_len(self._next_batch(), length)
            self._waited += time.perf_counter() - asked
            self._num_tokens += batch.inputs.numel()
            self.state.loader = batch.state
            yield batch

    def _next_batch(self) -> Batch:
        """The next batch of this rank.

        Raises:
            _StopBeforeStep: asked to stop before it came, which may be hours later where data are streamed.
        """
        # Of several ranks the others would wait for this one in the middle of the step.
        self._may_give_up = self.dist.process_count == 1
        try:
            if self._may_give_up and self.stopping:
                raise _StopBeforeStep
            return next(self.batches)
        finally:
            self._may_give_up = False

    def _plan(self) -> StepPlan:
        """The values of the schedules for the next step."""
        progress, step = self.progress, self.state.step
        schedule, architecture = self.settings.schedule, self.settings.architecture
        config = self.train_module.config
        return StepPlan(
            learning_rate=schedule.learning_rate(progress, step),
            weight_decay=schedule.weight_decay(progress),
            momentum=schedule.momentum(progress, step),
            multi_token_weight=architecture.multi_token_weight(progress) if config.mtp else 0.0,
            dense_attention=architecture.dense_attention(progress),
            progress=progress,
        )

    def should_stop(self) -> bool:
        """True if any rank was asked to stop; the same answer on all of them, and all must ask.

        A rank that is asked while it waits for the others' answers says so the next time.
        """
        agreed, _ = self.dist.sync_stop_and_clock(stopping=self.stopping, seconds=0.0)
        if agreed:
            self.stopping = True
        return agreed

    def iterate_until_stop(self, batches: Iterable[T]) -> Iterator[T]:
        """Those of batches that are the same on all ranks, until one of them is asked to stop.

        The ranks ask each other before every round in which each of them computes one.
        """
        for number, batch in enumerate(batches):
            if number % self.dist.world_size == 0 and self.should_stop():
                return
            yield batch

    @contextmanager
    def _stop_at_step_end(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the run after the present pass of the model, another at once.

        A step of several ranks is finished first, as all of them must take the same steps. One process that
        has made no step ends at once. Further SIGTERMs do nothing, and neither does what comes within a
        second: whoever stops a whole group of processes (torchrun, timeout, systemd) often reaches each of
        them twice.
        """
        asked: float | None = None

        def ask(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            if not self._has_stepped and self.dist.process_count == 1:
                raise KeyboardInterrupt
            if asked is not None and time.monotonic() - asked < 1:
                return
            if asked is not None and self.stopping:
                if number == signal.SIGINT:
                    raise KeyboardInterrupt
                return
            asked = time.monotonic()
            self.stopping = True
            self._announce()
            if self._may_give_up:
                raise _StopBeforeStep

        previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class _StopBeforeStep(Exception):  # noqa: N818  (no error: a signal)
    """A step that is not made: the run was to stop before its batches came. Nothing has changed."""
