"""Freezing of scales that no longer move: rounded to float16, as files hold them, and trained no further.

At each checkpoint the scales of rounded layers, of a rank their magnitudes, are compared with those of the
checkpoint before. Changes are relative to the largest scale of a layer: magnitudes differ by a factor of 30
among layers, so that no absolute threshold fits all.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from cpplm.compress.settings import AutoSnapSettings
from cpplm.core.progress import log_info
from cpplm.core.run_log import LOG, read_run_log
from cpplm.model.quantized.layers import moving_scales
from cpplm.train.torch_backend import TorchTrainModule
from cpplm.train.trainer import Callback, StepMetrics, Trainer

_EVENT = "auto_snap"


class AutoSnap(Callback):
    """Compares scales at each checkpoint, and freezes them when they have settled; once in a run."""

    def __init__(self, settings: AutoSnapSettings) -> None:
        """Nothing is compared yet."""
        self._settings = settings
        self._before: dict[str, Tensor] = {}
        self._stable = self._comparisons = 0

    @override
    def on_start(self, trainer: Trainer) -> None:
        """Go on where a run stands: the checkpoint has the scales of the last comparison, the log the rest.
        What was frozen just after the checkpoint was saved is frozen again."""
        step = trainer.state.step
        if step and step % trainer.settings.save_every == 0 and step >= self._settings.auto_snap_start_step:
            self._before = self._scales(trainer)
        for record in read_run_log(trainer.settings.out / LOG):
            if record["event"] == _EVENT:
                self._stable, self._comparisons = record["stable"], record["comparisons"]
                if record["frozen"] and self._before:
                    _module(trainer).freeze_scales(self._settings.auto_snap_target)
                    self._before = {}

    @override
    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        settings, step = self._settings, trainer.state.step
        if step % trainer.settings.save_every or step < settings.auto_snap_start_step:
            return
        now = self._scales(trainer)
        if self._before and now:
            self._compare(trainer, now)
        self._before = now

    def _compare(self, trainer: Trainer, now: dict[str, Tensor]) -> None:
        settings = self._settings
        changes = {
            name: float((now[name] - before).abs().max() / before.abs().max().clamp(min=1e-12))
            for name, before in self._before.items()
        }
        self._comparisons += 1
        settled = max(changes.values()) < settings.auto_snap_threshold
        self._stable = self._stable + 1 if settled else 0
        enough = self._comparisons >= settings.auto_snap_min_saves
        freezes = enough and self._stable >= settings.auto_snap_patience
        distance = max(float((value.half().float() - value).abs().max()) for value in now.values())
        trainer.log.write(
            _EVENT,
            step=trainer.state.step,
            max_change=max(changes.values()),
            mean_change=sum(changes.values()) / len(changes),
            float16_distance=distance,
            stable=self._stable,
            comparisons=self._comparisons,
            frozen=len(now) if freezes and not settings.auto_snap_dry_run else 0,
        )
        if freezes and not settings.auto_snap_dry_run:
            _module(trainer).freeze_scales(settings.auto_snap_target)
            log_info(f"step {trainer.state.step}: the scales of {len(now)} layers have settled, and stay")

    def _scales(self, trainer: Trainer) -> dict[str, Tensor]:
        """Copies of those that are still trained, by the names of their parameters."""
        found = moving_scales(_module(trainer).model, self._settings.auto_snap_target)
        with torch.no_grad():
            return {name: scales.detach().cpu().clone() for name, scales in found.items()}


def _module(trainer: Trainer) -> TorchTrainModule:
    module = trainer.train_module
    assert isinstance(module, TorchTrainModule)  # noqa: S101  (for mypy)
    return module
