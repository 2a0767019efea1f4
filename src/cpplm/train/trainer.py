"""The training loop. Everything that is not a step is a callback.

State that matters is explicit (`TrainState`, model, optimizer), so that a run continued from a checkpoint
takes the very steps that the uninterrupted run would have taken: bit for bit on the same machine, when the
length of the run is given in steps.

Several ranks run this loop side by side, each on its own rows. They decide alike, because what decides
(losses, time, the wish to stop) is first reduced over all of them.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch import Tensor

from cpplm.batches.loader import Batch, shorten
from cpplm.batches.state import LoaderState
from cpplm.core.errors import UserError
from cpplm.core.progress import say
from cpplm.core.runlog import RunLog
from cpplm.model.transformer import Transformer
from cpplm.optim.muon import MuonAdamW
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.compiling import LossFunction
from cpplm.train.horizon import Horizon
from cpplm.train.settings import TrainSettings
from cpplm.train.sharding import synchronise_gradients
from cpplm.train.world import World


@dataclass
class TrainState:
    """Where a run stands. `seconds` is the time spent in steps, over all sessions; nothing else counts."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loader: LoaderState = field(default_factory=LoaderState)


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

    `loss_function` is `model.training_losses`, possibly compiled. `stopping` turns true when this rank is
    asked to stop.
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
    loss_function: LossFunction
    world: World
    stopping: bool = False

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return self.horizon.progress(step=self.state.step, seconds=self.state.seconds)

    def run(self) -> None:
        """Train to the horizon.

        Raises:
            KeyboardInterrupt: asked to stop before the end (Ctrl-C, SIGTERM); `on_end` has run.
            UserError: the loss or its gradient is no number any more.
        """
        with self._stop_at_step_end():
            for callback in self.callbacks:
                callback.on_start(self)
            while self.progress < 1 and not self._asked_to_stop():
                metrics = self.step()
                _, self.state.seconds = self.world.agree(
                    stopping=False, seconds=self.state.seconds + metrics.seconds
                )
                for callback in self.callbacks:
                    callback.on_step(self, metrics)
            self.stopping = self.stopping and self.progress < 1  # at its end, a run ends as always
            for callback in self.callbacks:
                callback.on_end(self)
        if self.stopping:
            raise KeyboardInterrupt

    def step(self) -> StepMetrics:
        """One optimizer step over `total_batch_size` tokens.

        Raises:
            UserError: the loss or its gradient is no number.
        """
        begin = time.perf_counter()
        multiplier, weight = self._schedule()
        parts, waited = self._forward_backward(weight)
        total, next_token, multi_token, indexer = self.world.mean(parts).tolist()
        self.optimizer.step()
        norm = float(self.optimizer.gradient_norm)
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise UserError(
                f"the loss is {total} and its gradient {norm} at step {self.state.step + 1}",
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

    def _forward_backward(self, multi_token_weight: Tensor) -> tuple[Tensor, float]:
        """Gradients of this rank's share of the batch.

        Returns:
            The mean losses (total, next token, multi token, indexer) and the seconds spent waiting for data.
        """
        count, device = self.settings.forward_passes(self.world.size), self.model.device
        length = self.settings.data.row_length(self.progress, self.settings.max_seq_len)
        parts, waited = torch.zeros(4, device=device), 0.0
        for number in range(1, count + 1):
            asked = time.perf_counter()
            batch = shorten(next(self.batches), length)
            waited += time.perf_counter() - asked
            inputs_BT = batch.inputs.to(device, non_blocking=True)
            targets_BT = batch.targets.to(device, non_blocking=True)
            documents = batch.documents
            documents_BT = None if documents is None else documents.to(device, non_blocking=True)
            synchronise_gradients(self.model, number == count)
            losses = self.loss_function(inputs_BT, targets_BT, multi_token_weight, documents_BT)
            (losses.total / count).backward()
            parts += torch.stack([part.detach() for part in losses]) / count
            self.state.loader = batch.state
        return parts, waited

    def _schedule(self) -> tuple[float, Tensor]:
        """Set rates and modes for this step; returns the rate multiplier and the multi-token weight."""
        progress, step = self.progress, self.state.step
        schedule, architecture = self.settings.schedule, self.settings.architecture
        self.optimizer.lr_multiplier = schedule.learning_rate(progress, step)
        self.optimizer.muon_momentum = schedule.momentum(progress, step)
        self.optimizer.weight_decay_multiplier = schedule.weight_decay(progress)
        self.model.dense_attention = architecture.dense_attention(progress)
        weight = torch.tensor(architecture.multi_token_weight(progress), device=self.model.device)
        return self.optimizer.lr_multiplier, weight

    def _asked_to_stop(self) -> bool:
        """Whether any rank was asked to; the same answer on all of them."""
        self.stopping, _ = self.world.agree(stopping=self.stopping, seconds=0.0)
        return self.stopping

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
