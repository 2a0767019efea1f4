"""Completion of prompts: the prompt is read once, then all its samples are written side by side.

A prompt may end anywhere, also inside a token: its end is taken back and written again by the model, which
has to spell it (see `cpplm.tokenizer.healing`).

engine = Engine(model, tokenizer)
for completion in engine.complete("int main() {", num_samples=2):
    print(completion.text)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from cpplm.core.errors import UserError
from cpplm.generate.sampling import SamplingSettings, generators, sample
from cpplm.model.cache import KVCache
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.healing import PrefixConstraint, heal
from cpplm.tokenizer.special import BOS, EOS
from cpplm.tokenizer.streaming import StreamDecoder
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Completion:
    """What was written after a prompt; `reason` says whether the model ended it or a length limit did.

    `ids` are the tokens that were written; the first of them spell the end of the prompt, which `text` leaves
    out.
    """

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
        self, prompt_ids: list[int], settings: SamplingSettings, num_samples: int = 1, prefix: bytes = b""
    ) -> Iterator[list[int | None]]:
        """Tokens as they are written: per step one id per sample, None for a sample that has ended.

        Args:
            prompt_ids: what the model reads, <BOS> first.
            settings: how tokens are chosen, and how many; those that spell the prefix are not counted.
            num_samples: continuations.
            prefix: bytes with which every continuation begins.

        Raises:
            UserError: the prompt leaves no room in the context, or is empty.
        """
        config = self.model.config
        if not prompt_ids or len(prompt_ids) >= config.max_seq_len:
            raise UserError(
                f"the prompt has {len(prompt_ids)} tokens, the model's context {config.max_seq_len}",
                fix="Shorten the prompt." if prompt_ids else "Begin with <BOS>.",
            )
        constraints = [PrefixConstraint(self.tokenizer, prefix) for _ in range(num_samples)]
        # Each byte of the prefix may take a token of its own.
        most_new = len(prefix) + settings.max_new_tokens
        capacity = min(len(prompt_ids) + most_new, config.max_seq_len)
        device, dtype = self.model.device, self.model.compute_dtype
        cache = KVCache(config, 1, capacity, device=device, dtype=dtype)
        logits_BV = self._last_logits([prompt_ids], cache).expand(num_samples, -1)
        if num_samples > 1:
            cache = cache.expand(num_samples)
        streams = generators(settings, num_samples)
        ended = [False] * num_samples
        left = [settings.max_new_tokens] * num_samples
        for position in range(len(prompt_ids), len(prompt_ids) + most_new):
            tokens = sample(_constrained(logits_BV, constraints), settings, streams)
            for row, token in enumerate(tokens):
                ended[row] = ended[row] or left[row] == 0 or token in (BOS, EOS)
                left[row] -= constraints[row].done and not ended[row]
                constraints[row].advance(token)
            yield [None if done else token for done, token in zip(ended, tokens, strict=True)]
            if position >= capacity or all(done or not rest for done, rest in zip(ended, left, strict=True)):
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
        healed = heal(self.tokenizer, prompt)
        rows: list[list[int]] = [[] for _ in range(num_samples)]
        ended = [False] * num_samples
        for step in self.stream([BOS, *healed.ids], settings, num_samples, healed.taken):
            for index, token in enumerate(step):
                if token is None:
                    ended[index] = True
                else:
                    rows[index].append(token)
        return [
            self._completion(row, len(healed.taken), done, settings)
            for row, done in zip(rows, ended, strict=True)
        ]

    def _completion(self, ids: list[int], skip: int, stopped: bool, settings: SamplingSettings) -> Completion:
        """One sample, whose first `skip` bytes are the end of the prompt."""
        decoder = StreamDecoder(self.tokenizer, skip=skip)
        text = decoder.push(*ids) + decoder.finish()
        ends = np.cumsum(self.tokenizer.token_bytes[ids])
        spelling = int(np.searchsorted(ends, skip)) + 1 if skip else 0
        full = len(ids) - spelling >= settings.max_new_tokens
        return Completion(text, tuple(ids), "end" if stopped and not full else "length")


def _constrained(logits_BV: torch.Tensor, constraints: list[PrefixConstraint]) -> torch.Tensor:
    """Logits with all tokens ruled out that do not go on with what a row has to spell."""
    if all(constraint.done for constraint in constraints):
        return logits_BV
    rows = []
    for logits_V, constraint in zip(logits_BV, constraints, strict=True):
        if constraint.done:
            rows.append(logits_V)
            continue
        allowed = torch.from_numpy(constraint.allowed()).to(logits_V.device)
        rows.append(torch.full_like(logits_V, float("-inf")).index_copy(0, allowed, logits_V[allowed]))
    return torch.stack(rows)
