"""Settings of distillation: the loss, and caches of a teacher."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, Precision
from cpplm.core.storage import require_path, split_step
from cpplm.generate.settings import require_at_least

KDLossName = Literal["full", "topk", "topk_tail"]


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
        self.weights(0.0)
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
        if not any(self.uses(name) for name in self.weights(0.0) if name != "anchor_weight"):
            raise UserError("all weights are 0: there is nothing to learn", fix="Give --kd_weight 1.")

    def weights(self, progress: float) -> dict[str, float]:
        """The weights by name when this share of the run is over."""
        texts = {
            "kd_weight": self.kd_weight,
            "hard_top1_weight": self.hard_top1_weight,
            "hard_full_weight": self.hard_full_weight,
            "sampled_ce_weight": self.sampled_ce_weight,
            "anchor_weight": self.anchor_weight,
        }
        schedules = {name: _schedule(name, text) for name, text in texts.items()}
        return {name: first + (last - first) * progress for name, (first, last) in schedules.items()}

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
        return any(self.weights(progress)[name] for progress in (0.0, 1.0))


def _schedule(name: str, text: str) -> tuple[float, float]:
    """The first and the last value of a weight."""
    number = r"\d+\.?\d*(?:e-?\d+)?|\.\d+"
    if match := re.fullmatch(rf"({number})(?::({number}))?", text):
        return float(match[1]), float(match[2] or match[1])
    raise UserError(f"--{name} {text!r} is no weight", fix="Use a number from 0 up, or two, as in 0.2:0.")


@dataclass(frozen=True)
class CacheBuildSettings:
    """A teacher's distributions for the rows that training would read."""

    corpus: Annotated[str, Argument("CORPUS", positional=True)]
    """Corpus of `cpplm corpus build`: a folder or bucket URL."""
    teacher: Annotated[str, Argument("RUN")]
    """The model whose distributions are written: RUN or RUN:STEP, or hf:DIR of transformers."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder of the cache. Holding a part of it, it is continued."""
    num_tokens: int = 1_000_000
    """So many tokens, rounded up to whole rows."""
    topk: int = 32
    """Likeliest tokens of each position."""
    negatives: int = 0
    """Tokens drawn uniformly at each position, for --sampled_ce_weight."""
    max_seq_len: int = -1
    """Tokens of a row (-1 = the teacher's context)."""
    no_fim: bool = False
    """Do not rearrange documents for fill-in-the-middle (default: at the rates of the teacher's training)."""
    device_batch_size: int = 8
    """Rows that the teacher reads at once."""
    seed: int = 0
    """Seed of the order of documents, and of negatives."""
    device_type: Literal["", "cuda", "mps", "cpu"] = ""
    """Device (empty = the best one present)."""
    precision: Precision = "auto"
    """Number format of the teacher's matrix products. auto = bf16 where the hardware has it."""

    def __post_init__(self) -> None:
        require_at_least(self, num_tokens=1, topk=1, device_batch_size=1, negatives=0, seed=0)
        if self.max_seq_len < 1 and self.max_seq_len != -1:
            raise UserError(f"--max_seq_len {self.max_seq_len}", fix="Use a positive number, or -1.")

    def check_paths(self) -> None:
        """Refuse a teacher or a corpus that is not there."""
        require_path(split_step(self.teacher)[0])
        require_path(self.corpus)


@dataclass(frozen=True)
class CacheSettings:
    """A cache of `cpplm compress cache build`."""

    cache: Annotated[str, Argument("CACHE", positional=True)]
    """Its folder or bucket URL."""

    def check_paths(self) -> None:
        """Refuse a cache that is not there."""
        require_path(self.cache)
