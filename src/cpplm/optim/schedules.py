"""Learning rates, and their schedules: functions of progress from 0 (start) to 1 (end) and of the step.

`groups.py` says which parameter learns at which rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cpplm.core.errors import UserError


@dataclass(frozen=True)
class LearningRates:
    """Learning rates, at the reference batch of 2^19 tokens, and AdamW's decays."""

    matrix_lr: float = 0.02
    """Muon's learning rate for the matrices."""
    embedding_lr: float = 0.3
    """AdamW's learning rate for the token embedding."""
    unembedding_lr: float = 0.004
    """AdamW's learning rate for the output head."""
    scalar_lr: float = 0.5
    """AdamW's learning rate for the per-layer scalars."""
    muon_beta2: float = 0.9
    """Muon's decay of the second moment, which evens out rows (NorMuon); 0 turns it off."""
    weight_decay: float = 0.2
    """Cautious weight decay of the matrices; the value is for depth 12 and scaled by --weight_decay_by."""
    weight_decay_by: Literal["depth", "horizon"] = "depth"
    """Scaling of --weight_decay: depth = by 1 / depth^2; horizon = by sqrt(batch size) / training tokens,
    which keeps its time scale in epochs (arXiv 2405.13698)."""
    adam_beta1: float = 0.8
    """AdamW's decay of the first moment."""
    adam_beta2: float = 0.95
    """AdamW's decay of the second moment."""
    adamw_lr: float = 0.0
    """Learn everything by AdamW at this rate instead, whatever the batch (0 = off)."""

    def __post_init__(self) -> None:
        names = ("matrix_lr", "embedding_lr", "unembedding_lr", "scalar_lr", "weight_decay", "adamw_lr")
        for name in names:
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(
                    f"--{name} {getattr(self, name)} is not a rate", fix="Use a number from 0 up."
                )
        for name in ("adam_beta1", "adam_beta2", "muon_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a number from 0 up to, but below, 1."
                )


@dataclass(frozen=True)
class Schedule:
    """Learning rate, momentum and weight decay over a run; shares are of the whole run."""

    warmup_ratio: float = 0.0
    """Share of the run in which the learning rate rises."""
    warmup_steps: int = 0
    """The same in optimizer steps."""
    warmdown_ratio: float = 0.4
    """Share of the run, at its end, in which the learning rate falls."""
    final_lr_frac: float = 0.0
    """Learning rate at the end over its peak."""
    muon_momentum: float = 0.95
    """Muon's momentum; it rises to this while gradients still turn quickly."""
    muon_start_momentum: float = 0.85
    """Muon's momentum at the first step."""
    muon_momentum_steps: int = 300
    """Steps in which it rises."""
    muon_final_momentum: float = 0.95
    """Muon's momentum at the end, reached while the learning rate falls."""
    weight_decay_shape: Literal["linear", "cosine"] = "linear"
    """Shape of the weight decay's way to zero over the run."""

    def __post_init__(self) -> None:
        for name in ("warmup_ratio", "warmdown_ratio", "final_lr_frac"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(
                    f"--{name} {getattr(self, name)} is not a share", fix="Use a number from 0 to 1."
                )
        for name in ("muon_momentum", "muon_start_momentum", "muon_final_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a number from 0 up to, but below, 1."
                )
        for name in ("warmup_steps", "muon_momentum_steps"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name} {getattr(self, name)}", fix="Use a number from 0 up.")
        if self.warmup_ratio and self.warmup_steps:
            raise UserError("--warmup_ratio and --warmup_steps both set the warm-up", fix="Give one of them.")
        if self.warmup_ratio + self.warmdown_ratio > 1:
            raise UserError(
                f"--warmup_ratio {self.warmup_ratio} and --warmdown_ratio {self.warmdown_ratio} overlap",
                fix="Their sum may be at most 1.",
            )

    def learning_rate(self, progress: float, step: int) -> float:
        """Share of the peak: linear warm-up, constant, linear warm-down to `final_lr_frac`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if progress < self.warmup_ratio:
            return progress / self.warmup_ratio
        return 1 - (1 - self.final_lr_frac) * self._warmed_down(progress)

    def momentum(self, progress: float, step: int) -> float:
        """Muon's momentum: linear up over the first steps, linear to its end in the warm-down."""
        rise = min(1.0, step / self.muon_momentum_steps) if self.muon_momentum_steps else 1.0
        fall = self._warmed_down(progress)
        reached = self.muon_start_momentum + rise * (self.muon_momentum - self.muon_start_momentum)
        return (1 - fall) * reached + fall * self.muon_final_momentum

    def weight_decay(self, progress: float) -> float:
        """Share of the weight decay, from 1 to 0."""
        done = min(1.0, progress)
        return 1 - done if self.weight_decay_shape == "linear" else (1 + math.cos(math.pi * done)) / 2

    def _warmed_down(self, progress: float) -> float:
        """From 0 where the warm-down begins to 1 at the end."""
        if self.warmdown_ratio == 0:
            return 0.0
        return min(1.0, max(0.0, progress - (1 - self.warmdown_ratio)) / self.warmdown_ratio)
