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
from cpplm.model.kv_cache.cache import KVCache
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import NUM_SPECIAL

_NGRAMS = (3, 2)  # lengths that are looked up, the most telling first
_FREQUENT = 8192
"""Tokens that a head may draft: ids count up from what was merged first, so these come most often."""


@dataclass
class DraftState:
    """Tokens and hidden states of one sample that drafts are made from."""

    ids: list[int]
    """All tokens, the prompt's too."""
    hidden: list[Tensor]
    """States of the model, shape C each, at the last places, which the head has not read yet."""
    next_index: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Index of the token that followed an n-gram the last time."""


class Proposer:
    """Drafts for the samples of one scheduler."""

    def __init__(self, model: Transformer, cache: KVCache, settings: DraftSettings) -> None:
        """The cache remembers the first head if heads are to draft."""
        self.settings = settings
        self._model, self._cache = model, cache

    def prefill(self, sequence: CachedSequence, ids: Sequence[int], hidden_1TC: Tensor) -> None:
        """Tell the head what follows some tokens of a prompt, before the cache takes them as read.

        Args:
            sequence: the prompt, as far as it was read.
            ids: the rest of it.
            hidden_1TC: states of the model at the first of these.
        """
        following = list(ids[1 : hidden_1TC.size(1) + 1])
        if self.settings.kind == "heads" and following:
            view = self._cache.view([sequence], len(following))
            next_1T = torch.tensor([following], device=hidden_1TC.device)
            self._model.draft_states(0, hidden_1TC[:, : len(following)], next_1T, view)

    def begin(self, ids: Sequence[int]) -> DraftState:
        """Return the state of a sample behind a prompt."""
        state = DraftState([], [])
        for token in ids:
            self._append(state, token)
        return state

    def extend(self, state: DraftState, state_C: Tensor, token: int) -> None:
        """The sample goes on with a token, which was chosen from this state of the model."""
        self._append(state, token)
        if self.settings.kind == "heads":
            state.hidden.append(state_C)

    def _append(self, state: DraftState, token: int) -> None:
        if self.settings.kind == "lookup":
            for length in _NGRAMS:
                if len(state.ids) >= length:
                    state.next_index[tuple(state.ids[-length:])] = len(state.ids)
        state.ids.append(token)

    def draft(self, states: list[DraftState], sequences: list[CachedSequence]) -> list[list[int]]:
        """Guesses of what follows each sample's last token, which its sequence has not read yet.

        Special tokens are never guessed: they are masked, or end the sample and need not be read.
        """
        if self.settings.kind == "off" or len(states) > self.settings.max_batch:
            return [[] for _ in states]
        if self.settings.kind == "lookup":
            return [self._lookup(state) for state in states]
        return self._draft_by_head(states, sequences)

    def _lookup(self, state: DraftState) -> list[int]:
        for length in _NGRAMS:
            start = state.next_index.get(tuple(state.ids[-length:]))
            if start is not None:
                followers = state.ids[start : start + self.settings.tokens]
                return list(takewhile(lambda id_: id_ >= NUM_SPECIAL, followers))
        return []

    def _draft_by_head(self, states: list[DraftState], sequences: list[CachedSequence]) -> list[list[int]]:
        counts = [len(state.hidden) for state in states]
        hidden_BTC = pad_sequence([torch.stack(state.hidden) for state in states], batch_first=True)
        following = [torch.tensor(state.ids[-count:]) for state, count in zip(states, counts, strict=True)]
        next_BT = pad_sequence(following, batch_first=True).to(hidden_BTC.device)
        ends = [sequence.length for sequence in sequences]
        starts = [end - count for end, count in zip(ends, counts, strict=True)]
        last_B = torch.tensor(counts, device=hidden_BTC.device) - 1
        drafts: list[Tensor] = []
        while True:
            view = self._cache.view(sequences, counts, starts)
            states_BTC = self._model.draft_states(0, hidden_BTC, next_BT, view)
            hidden_BTC = states_BTC[torch.arange(len(states)), last_B].unsqueeze(1)
            next_BT = self._most_likely(hidden_BTC)
            drafts.append(next_BT)
            if len(drafts) == self.settings.tokens:
                break
            # On from its own state, as if that were the model's at the next place.
            starts, counts, last_B = ends, [1] * len(states), torch.zeros_like(last_B)
            ends = [end + 1 for end in ends]
        for state in states:
            state.hidden.clear()
        return torch.cat(drafts, dim=1).tolist()

    def _most_likely(self, hidden_BTC: Tensor) -> Tensor:
        """Return the most likely of the frequent tokens.

        A product over all tokens would take a fifth of a step for each draft.
        """
        weight = self._model.lm_head.weight[NUM_SPECIAL : min(_FREQUENT, self._model.config.vocab_size)]
        return F.linear(hidden_BTC, weight.to(hidden_BTC.dtype)).argmax(-1) + NUM_SPECIAL
