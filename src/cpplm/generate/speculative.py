"""Drafts: tokens guessed at little cost, which the model then reads all at once.

At each place the model's own distribution and the sample's own random number choose the token, drafted or not
(`scheduler.py`). A draft decides only whether what follows has been read already, so it changes no text, be
it greedy or sampled, but for rounding. With a single guess this accepts as often as speculative sampling does
(Leviathan et al. 2023, arXiv 2211.17192, theorem 3.5: the probability of the guess).

- "lookup": what followed the last time that the same tokens stood there (as Saxena's prompt lookup decoding,
  2023): code repeats itself, and it costs nothing.
- "heads": the model's own first head for further tokens (DeepSeek-V3, arXiv 2412.19437, section 2.2). For
  more than one token it reads its own states again in the place of the model's.

Shapes: B samples, T tokens, C model_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cpplm.generate.settings import DraftSettings
from cpplm.model.kv_cache.block_pool import CachedSequence
from cpplm.model.kv_cache.cache import Cache
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import NUM_SPECIAL

_NGRAMS = (3, 2)  # lengths that are looked up, the most telling first
_FREQUENT = (
    8192  # tokens that a head may draft: ids count up from what was merged first, so these come most often
)


@dataclass
class Trail:
    """What drafting knows of one sample."""

    ids: list[int]
    """All tokens, the prompt's too."""
    states: list[Tensor]
    """Of the model, shape C each, at the last places of which the head was not told what follows."""
    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Where that stands which followed some tokens the last time."""


class Drafter:
    """Drafts for the samples of one scheduler."""

    def __init__(self, model: Transformer, cache: Cache, settings: DraftSettings) -> None:
        """The cache remembers the first head if heads are to draft."""
        self.settings = settings
        self._model, self._cache = model, cache

    def read(self, sequence: CachedSequence, ids: Sequence[int], hidden_1TC: Tensor) -> None:
        """Tell the head what follows some tokens of a prompt, before the cache takes them as read.

        Args:
            sequence: the prompt, as far as it was read.
            ids: the rest of it.
            hidden_1TC: states of the model at the first of these.
        """
        told = list(ids[1 : hidden_1TC.size(1) + 1])
        if self.settings.kind == "heads" and told:
            view = self._cache.view([sequence], len(told))
            told_1T = torch.tensor([told], device=hidden_1TC.device)
            self._model.draft_states(0, hidden_1TC[:, : len(told)], told_1T, view)

    def begin(self, ids: Sequence[int]) -> Trail:
        """Of a sample behind a prompt."""
        trail = Trail([], [])
        for token in ids:
            self._append(trail, token)
        return trail

    def extend(self, trail: Trail, state_C: Tensor, token: int) -> None:
        """The sample goes on with a token, which was chosen from this state of the model."""
        self._append(trail, token)
        if self.settings.kind == "heads":
            trail.states.append(state_C)

    def _append(self, trail: Trail, token: int) -> None:
        if self.settings.kind == "lookup":
            for length in _NGRAMS:
                if len(trail.ids) >= length:
                    trail.after[tuple(trail.ids[-length:])] = len(trail.ids)
        trail.ids.append(token)

    def draft(self, trails: list[Trail], sequences: list[CachedSequence]) -> list[list[int]]:
        """Guesses of what follows each sample's last token, which its sequence has not read yet.

        Special tokens are never guessed: they are masked, or end the sample and need not be read.
        """
        if self.settings.kind == "off" or len(trails) > self.settings.rows:
            return [[] for _ in trails]
        if self.settings.kind == "lookup":
            return [self._look_up(trail) for trail in trails]
        return self._ask_head(trails, sequences)

    def _look_up(self, trail: Trail) -> list[int]:
        for length in _NGRAMS:
            start = trail.after.get(tuple(trail.ids[-length:]))
            if start is not None:
                found = trail.ids[start : start + self.settings.tokens]
                return list(takewhile(lambda id_: id_ >= NUM_SPECIAL, found))
        return []

    def _ask_head(self, trails: list[Trail], sequences: list[CachedSequence]) -> list[list[int]]:
        counts = [len(trail.states) for trail in trails]
        hidden_BTC = pad_sequence([torch.stack(trail.states) for trail in trails], batch_first=True)
        told = [torch.tensor(trail.ids[-count:]) for trail, count in zip(trails, counts, strict=True)]
        told_BT = pad_sequence(told, batch_first=True).to(hidden_BTC.device)
        ends = [sequence.length for sequence in sequences]
        starts = [end - count for end, count in zip(ends, counts, strict=True)]
        last_B = torch.tensor(counts, device=hidden_BTC.device) - 1
        drafts: list[Tensor] = []
        while True:
            view = self._cache.view(sequences, counts, starts)
            states_BTC = self._model.draft_states(0, hidden_BTC, told_BT, view)
            hidden_BTC = states_BTC[torch.arange(len(trails)), last_B].unsqueeze(1)
            told_BT = self._likeliest(hidden_BTC)
            drafts.append(told_BT)
            if len(drafts) == self.settings.tokens:
                break
            # On from its own state, as if that were the model's at the next place.
            starts, counts, last_B = ends, [1] * len(trails), torch.zeros_like(last_B)
            ends = [end + 1 for end in ends]
        for trail in trails:
            trail.states.clear()
        return torch.cat(drafts, dim=1).tolist()

    def _likeliest(self, hidden_BTC: Tensor) -> Tensor:
        """Of the frequent tokens: a product over all of them would take a fifth of a step for each draft."""
        weight = self._model.lm_head.weight[NUM_SPECIAL : min(_FREQUENT, self._model.config.vocab_size)]
        return F.linear(hidden_BTC, weight.to(hidden_BTC.dtype)).argmax(-1) + NUM_SPECIAL
