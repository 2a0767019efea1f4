"""Our contender of `time_to_bpb.py`: `cpplm train` as it runs, followed by a curve.

On the clock is what `cpplm train` counts as training: its steps, with the wait for their batches. Building,
compiling, measuring and checkpoints are not.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from measuring import progress

from bpb.data import Data
from bpb.scoring import Curve, HeldOut, Score
from cpplm.model.config import ModelConfig
from cpplm.tokenizer.special_tokens import BOS
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.pretrain import model_config, pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.torch_backend import torch_model
from cpplm.train.trainer import Callback, StepMetrics, Trainer


class _Measurement(Callback):
    """Follows a run of ours with a curve; at its end, our documents of the held-out projects."""

    def __init__(self, data: Data, eval_bytes: int, seconds: float, points: int) -> None:
        self._data, self._eval_bytes = data, eval_bytes
        self._seconds, self._points = seconds, points
        self.own_documents = math.nan

    def on_start(self, trainer: Trainer) -> None:
        """Before the first step."""
        texts = held_out_texts(trainer, self._data.texts("held_out"))
        self.curve = Curve(self._seconds, self._points, lambda: score_of(trainer, texts))

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """After a step, which the clock has counted."""
        self.curve.reached(trainer.state.seconds)

    def on_end(self, trainer: Trainer) -> None:
        """The same for our own documents."""
        texts = self._data.held_out_documents(self._eval_bytes)
        self.own_documents = score_of(trainer, held_out_texts(trainer, texts)).whole


def held_out_texts(trainer: Trainer, texts: list[str]) -> HeldOut:
    """Texts in the tokens of a run, to be scored in its context."""
    settings, tokenizer = trainer.settings, trainer.tokenizer
    return HeldOut.of(
        texts,
        tokenizer.encode_batch(texts),
        token_bytes=tokenizer.token_bytes,
        start_id=BOS,
        seq_len=settings.max_seq_len,
        rows=settings.device_batch_size,
    )


def score_of(trainer: Trainer, texts: HeldOut) -> Score:
    """The score of a run's model as it is now."""
    model = torch_model(trainer.train_module)
    found = texts.score(lambda x, y: model.loss(x, y, reduction="none"), model.device)
    progress(f"    {trainer.state.seconds:6.1f} s: {found.code:.4f} bits per byte")
    return found


def train_ours(settings: TrainSettings, work: Path, eval_bytes: int, points: int) -> dict[str, Any]:
    """`cpplm train` with these settings, which give its length in minutes."""
    measurement = _Measurement(Data(work), eval_bytes, 60 * settings.max_minutes, points)
    begin = time.perf_counter()
    summary = pretrain(settings, [measurement])
    return {
        **measurement.curve.figures(),
        "own_documents_bits_per_byte": measurement.own_documents,
        "steps": summary.step,
        "tokens": summary.tokens,
        "seconds": summary.seconds,
        "wall_seconds": time.perf_counter() - begin,
        "parameters": summary.parameters,
    }


def our_config(settings: TrainSettings) -> ModelConfig:
    """The model that `cpplm train` makes of the settings."""
    return model_config(settings, Tokenizer.load(settings.tokenizer).vocab_size)
