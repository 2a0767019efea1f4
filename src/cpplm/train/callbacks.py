"""What joins the training loop: the progress bar and log, validation, checkpoints."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from cpplm.core.hardware import peak_memory_bytes
from cpplm.core.progress import progress_bar, say
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.model.counting import count_flops
from cpplm.train.checkpoint import committed_steps, folder, save_checkpoint, to_bytes
from cpplm.train.trainer import Callback, StepMetrics, Trainer
from cpplm.train.validation import validate


class ProgressLog(Callback):
    """Each step into the run log and onto the bar: loss, tokens per second, time left."""

    def __init__(self, bar: tqdm[Any]) -> None:
        """`bar` counts to 100; whoever opened it closes it."""
        self._bar = bar
        self._smooth_loss = math.nan

    @staticmethod
    def open_bar(progress: float) -> tqdm[Any]:
        """A bar that starts where the run stands, as a context manager."""
        return progress_bar(
            100,
            "train",
            "%",
            initial=round(100 * progress, 2),
            bar_format="{desc} {percentage:5.1f}% |{bar:20}| {elapsed}<{remaining}{postfix}",
        )

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Log one step."""
        state = trainer.state
        first = math.isnan(self._smooth_loss)
        self._smooth_loss = metrics.loss if first else 0.9 * self._smooth_loss + 0.1 * metrics.loss
        rate = metrics.tokens / metrics.seconds
        trainer.log.write(
            "step",
            step=state.step,
            tokens=state.tokens,
            seconds=round(state.seconds, 3),
            progress=round(trainer.progress, 5),
            loss=round(metrics.loss, 5),
            **_present(multi_token_loss=metrics.multi_token_loss, indexer_loss=metrics.indexer_loss),
            gradient_norm=round(metrics.gradient_norm, 5),
            lr_multiplier=round(metrics.lr_multiplier, 5),
            step_seconds=round(metrics.seconds, 4),
            data_seconds=round(metrics.data_seconds, 4),
            tokens_per_second=round(rate, 1),
            flops_per_second=round(rate * count_flops(trainer.model.config)["total"]),
            peak_memory_bytes=peak_memory_bytes(trainer.model.device),
        )
        self._bar.set_postfix_str(
            f"step {state.step}, loss {self._smooth_loss:.3f}, {rate:,.0f} tokens/s", refresh=False
        )
        self._bar.update(100 * trainer.progress - self._bar.n)


class ValidationCallback(Callback):
    """Bits per byte at the start, every so many steps, and at the end."""

    def __init__(self, batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> None:
        """`batches` gives a fresh pass over the validation tokens."""
        self._batches = batches
        self._measured_at = -1

    def on_start(self, trainer: Trainer) -> None:
        """Measure the untrained model, to compare with."""
        if trainer.state.step == 0:
            self._measure(trainer)

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Measure when the interval has passed."""
        if trainer.state.step % trainer.settings.eval_every == 0:
            self._measure(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Measure the result, unless the run was asked to stop."""
        if not trainer.stopping and self._measured_at != trainer.state.step:
            self._measure(trainer)

    def _measure(self, trainer: Trainer) -> None:
        sizes = torch.from_numpy(trainer.tokenizer.token_bytes)
        wanted = itertools.takewhile(lambda _: not trainer.stopping, self._batches())
        result = validate(trainer.model, wanted, sizes)
        if trainer.stopping:
            return  # half a measurement is none
        self._measured_at = trainer.state.step
        trainer.log.write("validation", step=trainer.state.step, **asdict(result))
        say(
            f"step {trainer.state.step}: validation {result.bits_per_byte:.4f} bits per byte "
            f"(loss {result.loss:.4f} over {result.tokens:,} tokens)"
        )


class CheckpointCallback(Callback):
    """Saves by steps, by time, and at the end of the session."""

    def __init__(self, storage: Storage, provenance: dict[str, str]) -> None:
        """`provenance` names corpus and tokenizer by their hashes."""
        self._storage = storage
        self._provenance = provenance
        self._saved_time = time.monotonic()

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Save when an interval has passed."""
        settings = trainer.settings
        by_step = settings.save_every > 0 and trainer.state.step % settings.save_every == 0
        minutes = (time.monotonic() - self._saved_time) / 60
        if by_step or 0 < settings.save_minutes <= minutes:
            self._save(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Save what the session reached."""
        if trainer.state.step not in committed_steps(self._storage):
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        state = trainer.state
        files = {
            "model.safetensors": to_bytes(trainer.model.state_dict()),
            "optimizer.safetensors": to_bytes(trainer.optimizer.named_state()),
            "config.json": _json(to_dict(trainer.model.config)),
            "settings.json": _json(to_dict(trainer.settings)),
            "tokenizer.json": trainer.tokenizer.to_json(),
            "state.json": _json({**asdict(state), "loader": state.loader.to_json(), **self._provenance}),
        }
        save_checkpoint(self._storage, state.step, files, keep_last=trainer.settings.keep_last)
        self._saved_time = time.monotonic()
        trainer.log.write("checkpoint", step=state.step, path=self._storage.path(folder(state.step)))


def _present(**losses: float) -> dict[str, float]:
    """Those that the model has."""
    return {name: round(value, 5) for name, value in losses.items() if value}


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
