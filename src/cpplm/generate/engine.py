"""Completion of prompts: the prompt is read once, then all its samples are written side by side.

engine = Engine(model, tokenizer)
for completion in engine.complete("int main() {", num_samples=2):
    print(completion.text)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from cpplm.core.errors import UserError
from cpplm.generate.sampling import SamplingSettings, generators, sample
from cpplm.model.cache import KVCache
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special import BOS, EOS
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Completion:
    """What was written after a prompt; `reason` says whether the model ended it or a length limit did."""

    text: str
    ids: tuple[int, ...]
    reason: Literal["end", "length"]


class Engine:
    """A model with its tokenizer, for inference."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer

    @torch.no_grad()
    def stream(
        self, prompt_ids: list[int], settings: SamplingSettings, num_samples: int = 1
    ) -> Iterator[list[int | None]]:
        """Tokens as they are written: per step one id per sample, None for a sample that has ended.

        Raises:
            UserError: the prompt leaves no room in the context, or is empty.
        """
        config = self.model.config
        if not prompt_ids or len(prompt_ids) >= config.max_seq_len:
            raise UserError(
                f"the prompt has {len(prompt_ids)} tokens, the model's context {config.max_seq_len}",
                fix="Shorten the prompt." if prompt_ids else "Begin with <BOS>.",
            )
        capacity = min(len(prompt_ids) + settings.max_new_tokens, config.max_seq_len)
        device, dtype = self.model.device, self.model.compute_dtype
        cache = KVCache(config, 1, capacity, device=device, dtype=dtype)
        logits_BV = self._last_logits([prompt_ids], cache).expand(num_samples, -1)
        if num_samples > 1:
            cache = cache.expand(num_samples)
        streams = generators(settings, num_samples)
        ended = [False] * num_samples
        for position in range(len(prompt_ids), len(prompt_ids) + settings.max_new_tokens):
            tokens = sample(logits_BV, settings, streams)
            ended = [done or token in (BOS, EOS) for done, token in zip(ended, tokens, strict=True)]
            yield [None if done else token for done, token in zip(ended, tokens, strict=True)]
            if all(ended) or position >= capacity:
                return
            logits_BV = self._last_logits([[token] for token in tokens], cache)

    def _last_logits(self, ids: list[list[int]], cache: KVCache) -> torch.Tensor:
        """Logits BV after the newest tokens; only the last position goes through the output head."""
        hidden_BTC = self.model.hidden_states(torch.tensor(ids, device=self.model.device), cache)
        return self.model.logits(hidden_BTC[:, -1:])[:, 0]

    def complete(
        self, prompt: str, settings: SamplingSettings | None = None, num_samples: int = 1
    ) -> list[Completion]:
        """Samples that follow `prompt`, which is taken as the beginning of a document."""
        settings = settings or SamplingSettings()
        rows: list[list[int]] = [[] for _ in range(num_samples)]
        ended = [False] * num_samples
        for step in self.stream(self.tokenizer.encode(prompt, prepend=BOS), settings, num_samples):
            for index, token in enumerate(step):
                if token is None:
                    ended[index] = True
                else:
                    rows[index].append(token)
        return [
            Completion(self.tokenizer.decode(row), tuple(row), "end" if done else "length")
            for row, done in zip(rows, ended, strict=True)
        ]
