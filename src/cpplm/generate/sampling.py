"""From logits to the next token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cpplm.core.errors import UserError


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are chosen, and how many."""

    max_new_tokens: int = 256
    """Tokens to write at most; the context length of the model is a limit too."""
    temperature: float = 0.8
    """Divides the logits; 0 takes the likeliest token."""
    top_k: int = 50
    """Sample among this many likeliest tokens (0 = all)."""
    seed: int = 0
    """The same seed gives the same text, sample by sample."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"--max_new_tokens {self.max_new_tokens} must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"--temperature {self.temperature}", fix="Use 0 (greedy) or a positive number.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed {self.seed}", fix="Use a number from 0 to 4294967295.")
        if self.top_k < 0:
            raise UserError(f"--top_k {self.top_k}", fix="Use 0 for all tokens, or a positive number.")


def generators(settings: SamplingSettings, num_samples: int) -> list[torch.Generator]:
    """One random stream per sample: a sample does not depend on how many others are drawn beside it."""
    return [torch.Generator().manual_seed(settings.seed * 1_000_003 + index) for index in range(num_samples)]


def sample(logits_BV: Tensor, settings: SamplingSettings, streams: list[torch.Generator]) -> list[int]:
    """The next token of each row.

    Args:
        logits_BV: float32, on any device.
        settings: temperature and top_k.
        streams: one generator per row.
    """
    if settings.temperature == 0:
        return logits_BV.argmax(-1).tolist()
    logits_BV = logits_BV.cpu() / settings.temperature
    if 0 < settings.top_k < logits_BV.size(-1):
        least_B1 = logits_BV.topk(settings.top_k).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, float("-inf"))
    probabilities_BV = logits_BV.softmax(-1)
    return [
        int(torch.multinomial(row, 1, generator=stream))
        for row, stream in zip(probabilities_BV, streams, strict=True)
    ]
