"""Settings of distillation: the loss."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cpplm.core.errors import UserError

KDLossName = Literal["full", "topk", "topk_tail"]
WEIGHTS = ("kd_weight", "hard_top1_weight", "hard_full_weight", "sampled_ce_weight", "anchor_weight")


@dataclass(frozen=True)
class KDLossSettings:
    """The loss of distillation. A weight is a number, or two: 0.2:0 goes from 0.2 to 0 over the run."""

    kd_loss: KDLossName = "topk"
    """Divergence from the teacher's distribution: full, over the vocabulary, of a teacher that runs beside;
    topk, within its likeliest tokens; topk_tail, over those and all others as one."""
    kd_weight: str = "1"
    """Weight of the divergence."""
    temperature: float = 1.0
    """Both distributions are flattened by this."""
    hard_top1_weight: str = "0"
    """Weight of the cross-entropy of the teacher's likeliest token."""
    hard_full_weight: str = "0"
    """Weight of the cross-entropy of the text's own next token."""
    sampled_ce_weight: str = "0"
    """Weight of the same, estimated from the teacher's likeliest tokens and the cache's negatives."""
    anchor_weight: str = "0"
    """Weight of the divergence from the starting model, on rows that stay the same."""
    no_full_logits: bool = False
    """Only losses that compute the logits of few tokens; the teacher's likeliest one competes with those."""

    def __post_init__(self) -> None:
        for name in WEIGHTS:
            _schedule(name, getattr(self, name))
        if not 0 < self.temperature < float("inf"):
            raise UserError(f"--temperature {self.temperature}", fix="Use a positive number.")
        if self.kd_loss == "topk_tail" and self.temperature != 1:
            raise UserError(
                f"--kd_loss topk_tail --temperature {self.temperature}: the others' mass at another "
                "temperature than 1 is not known from their sum at 1",
                fix="Use --temperature 1, or --kd_loss topk.",
            )
        if self.no_full_logits and self.kd_loss != "topk":
            raise UserError(
                f"--kd_loss {self.kd_loss} needs all logits, which --no_full_logits excludes",
                fix="Use --kd_loss topk.",
            )
        if self.no_full_logits and self.uses("hard_full_weight"):
            raise UserError(
                "--hard_full_weight needs all logits, which --no_full_logits excludes",
                fix="Use --sampled_ce_weight instead.",
            )
        if not any(self.uses(name) for name in WEIGHTS if name != "anchor_weight"):
            raise UserError("all weights are 0: there is nothing to learn", fix="Give --kd_weight 1.")

    def weight(self, name: str, progress: float) -> float:
        """The weight of that name when this share of the run is over."""
        first, last = _schedule(name, getattr(self, name))
        return first + (last - first) * progress

    def check_teacher(self, *, cached: bool, negatives: bool) -> None:
        """Refuse losses that need more than the teacher has: what a cache holds, or one that runs beside.

        Raises:
            UserError: says what is missing.
        """
        if cached and self.kd_loss == "full" and self.uses("kd_weight"):
            raise UserError(
                "--kd_loss full needs a teacher that runs beside: a cache holds its likeliest tokens",
                fix="Use --kd_loss topk_tail or topk.",
            )
        if not cached and self.kd_loss != "full" and self.uses("kd_weight"):
            raise UserError(
                f"--kd_loss {self.kd_loss} needs a cache: a teacher that runs beside gives everything",
                fix="Use --kd_loss full.",
            )
        if not cached and self.no_full_logits:
            raise UserError(
                "--no_full_logits needs a cache: a teacher that runs beside computes all logits",
                fix="Write one with 'cpplm compress cache build'.",
            )
        if self.uses("sampled_ce_weight") and not negatives:
            raise UserError(
                f"--sampled_ce_weight {self.sampled_ce_weight} needs a cache with negatives",
                fix="Build it with --negatives 64, or use --hard_full_weight, which is exact.",
            )

    def uses(self, name: str) -> bool:
        """True if the weight of that name is above 0 at any time."""
        return any(_schedule(name, getattr(self, name)))


def _schedule(name: str, text: str) -> tuple[float, float]:
    """The first and the last value of a weight."""
    number = r"\d+\.?\d*(?:e-?\d+)?|\.\d+"
    if match := re.fullmatch(rf"({number})(?::({number}))?", text):
        return float(match[1]), float(match[2] or match[1])
    raise UserError(f"--{name} {text!r} is no weight", fix="Use a number from 0 up, or two, as in 0.2:0.")
