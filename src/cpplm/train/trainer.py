"""The training loop. Everything that is not a step is a callback.

State that matters is explicit (`TrainState`, model, optimizer), so that a run continued from a checkpoint
takes the very steps that the uninterrupted run would have taken: bit for bit on the same machine, when the
length of the run is given in steps.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch import Tensor

from cpplm.batches.loader import Batch, LoaderState
from cpplm.core.errors import UserError
from cpplm.core.progress import say
from cpplm.core.runlog import RunLog
from cpplm.model.transformer import Losses, Transformer
from cpplm.optim.muon import MuonAdamW
from cpplm.optim.schedules import learning_rate_multiplier, muon_momentum, weight_decay_multiplier
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.settings import TrainSettings


@dataclass
class TrainState:
    """Where a run stands. `seconds` is the time spent in steps, over all sessions; nothing else counts."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loader: LoaderState = field(default_factory=LoaderState)


@dataclass(frozen=True)
class Horizon:
    """The length of a run, in optimizer steps or in seconds."""

    steps: int | None = None
    seconds: float | None = None

    def progress(self, state: TrainState) -> float:
        """From 0 at the start to 1 at the end."""
        if self.steps is not None:
            return min(1.0, state.step / self.steps)
        return min(1.0, state.seconds / (self.seconds or math.inf))


@dataclass(frozen=True)
class StepMetrics:
    """One optimizer step: losses in nats per token, times in seconds.

    `loss` is that of the next token; the others are 0 for a model that does not have them.
    """

    loss: float
    multi_token_loss: float
    indexer_loss: float
    gradient_norm: float
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
    """A model, its optimizer, its data and how far it has come.

    `loss_function` is `model.training_losses`, possibly compiled. `stopping` turns true when the run is asked
    to stop.
    """

    model: Transformer
    optimizer: MuonAdamW
    tokenizer: Tokenizer
    batches: Iterator[Batch]
    horizon: Horizon
    settings: TrainSettings
    state: TrainState
    log: RunLog
    callbacks: Sequence[Callback]
    loss_function: Callable[[Tensor, Tensor, Tensor], Losses]
    stopping: bool = False

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return self.horizon.progress(self.state)

    def run(self) -> None:
        """Train to the horizon.

        Raises:
            KeyboardInterrupt: asked to stop (Ctrl-C, SIGTERM); the callbacks' `on_end` has run.
            UserError: the loss is no longer a number.
        """
        with self._stop_at_step_end():
            for callback in self.callbacks:
                callback.on_start(self)
            while self.progress < 1 and not self.stopping:
                metrics = self.step()
                self.state.seconds += metrics.seconds
                for callback in self.callbacks:
                    callback.on_step(self, metrics)
            for callback in self.callbacks:
                callback.on_end(self)
        if self.stopping:
            raise KeyboardInterrupt

    def step(self) -> StepMetrics:
        """One optimizer step over `total_batch_size` tokens."""
        begin = time.perf_counter()
        progress, count = self.progress, self.settings.accumulation_steps
        multiplier, weight = self._schedule(progress)
        parts = torch.zeros(4, device=self.model.device)
        waited = 0.0
        for _ in range(count):
            asked = time.perf_counter()
            batch = next(self.batches)
            waited += time.perf_counter() - asked
            inputs_BT = batch.inputs.to(self.model.device, non_blocking=True)
            targets_BT = batch.targets.to(self.model.device, non_blocking=True)
            losses = self.loss_function(inputs_BT, targets_BT, weight)
            (losses.total / count).backward()
            parts += torch.stack([part.detach() for part in losses]) / count
            self.state.loader = batch.state
        total, next_token, multi_token, indexer = parts.tolist()
        self.optimizer.step()
        norm = float(self.optimizer.gradient_norm)
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise UserError(
                f"the loss is {total} and its gradient {norm} at step {self.state.step}",
                fix="Lower the learning rates; the last checkpoint is as it was.",
            )
        self.optimizer.zero_grad(set_to_none=True)
        self.state.step += 1
        self.state.tokens += self.settings.total_batch_size
        return StepMetrics(
            loss=next_token,
            multi_token_loss=multi_token,
            indexer_loss=indexer,
            gradient_norm=norm,
            lr_multiplier=multiplier,
            seconds=time.perf_counter() - begin,
            data_seconds=waited,
            tokens=self.settings.total_batch_size,
        )

    def _schedule(self, progress: float) -> tuple[float, Tensor]:
        """Set rates and modes for this step; returns the rate multiplier and the multi-token weight."""
        settings = self.settings
        self.optimizer.lr_multiplier = learning_rate_multiplier(
            progress,
            warmup_ratio=settings.warmup_ratio,
            warmdown_ratio=settings.warmdown_ratio,
            final_lr_frac=settings.final_lr_frac,
        )
        self.optimizer.muon_momentum = muon_momentum(self.state.step)
        self.optimizer.weight_decay_multiplier = weight_decay_multiplier(progress)
        self.model.dense_attention = settings.architecture.dense_attention(progress)
        weight = torch.tensor(settings.architecture.multi_token_weight(progress), device=self.model.device)
        return self.optimizer.lr_multiplier, weight

    @contextmanager
    def _stop_at_step_end(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the run at the next step's end, a second one at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            self.stopping = True
            say("stopping after this step and saving; once more to stop at once")

        previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
