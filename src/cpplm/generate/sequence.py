"""One continuation while it is written: what it may say next, what of it can be shown, when it ends.

No special token is ever part of what is written, but for those that end it: <EOS>, <BOS> (which begins the
next document) and `GenerationRequest.end_ids`. All others are masked, whatever the form of the request: a
plain one and a hole have no `end_ids`, the answer of a chat ends with its turn (`conversation.py`), and one
that may call tools also where a call begins or ends (`tools/loop.py`).

Shapes: B samples, V vocabulary, S special tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.generate.grammar import Grammar
from cpplm.generate.ngram_mixture import MAX_MATCH, NgramMixture
from cpplm.generate.sampling import apply_penalties, random_stream, sample
from cpplm.generate.settings import SamplingSettings
from cpplm.generate.valid_cpp import CppContext, CppSyntax
from cpplm.tokenizer.healing import PrefixConstraint
from cpplm.tokenizer.special_tokens import BOS, EOS, NUM_SPECIAL
from cpplm.tokenizer.streaming import StreamDecoder
from cpplm.tokenizer.tokenizer import Tokenizer

StopCondition = Callable[[str], bool]
"""True once a text that is being written is complete: all that follows would be cut off."""
FinishReason = Literal["end", "stop", "length"]
"""Reason for the end of a continuation: the model; a stop text, `StopCondition` or a grammar; or a limit."""


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt as tokens, and how to go on from it; `Engine.request` makes one of text."""

    ids: tuple[int, ...]
    """Tokens of the prompt, <BOS> first."""
    settings: SamplingSettings = field(default_factory=SamplingSettings)
    num_samples: int = 1
    prefix: bytes = b""
    """Bytes with which every continuation begins; no part of its text (`cpplm.tokenizer.healing`)."""
    stop: StopCondition | None = None
    """Asked after every token."""
    logprobs: int | None = None
    """Also give how likely each token was, and so many likeliest ones beside it."""
    end_ids: tuple[int, ...] = ()
    """Tokens that end a continuation, beside <EOS> and <BOS>. The one that did is the last of its ids and no
    part of its text. Special tokens that are not among them are never written."""
    first_sample: int = 0
    """Number of the first sample: with the seed it decides which random numbers that one draws."""
    written: tuple[int, ...] = ()
    """Tokens at the end of `ids` that each sample has generated itself, before a tool call: the random
    numbers behind theirs are used, and penalties count them."""
    grammar: Grammar | None = None
    """Grammar that the text of every continuation matches, unless a limit or a stop text cuts it."""
    valid: CppContext | None = None
    """Tokens that break C++'s syntax here are drawn again."""
    ngrams: NgramMixture | None = None
    """N-grams of a project that the model's probabilities are interpolated with."""


@dataclass(frozen=True)
class TokenLogprob:
    """Natural log-probability of a token to the model and its n-grams, before sampling settings."""

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]
    """Ids and their logarithms, the likeliest first."""


@dataclass(frozen=True)
class CompletionOutput:
    """One continuation of a prompt.

    `ids` are the tokens that were written; the first of them may spell the end of the prompt, the last ones a
    stop text or one of `GenerationRequest.end_ids`, all of which `text` leaves out.
    """

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] = ()


class SequenceState:
    """The state of one continuation."""

    def __init__(self, tokenizer: Tokenizer, request: GenerationRequest, number: int, room: int) -> None:
        """Nothing written yet.

        Args:
            tokenizer: the model's.
            request: what it belongs to.
            number: which of the request's samples it is; decides its random numbers.
            room: tokens for which the context has room.
        """
        self.request, self.number = request, number
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self._constraint = PrefixConstraint(tokenizer, request.prefix)
        self._matcher = request.grammar.matcher() if request.grammar is not None else None
        self._syntax = CppSyntax(request.valid) if request.valid is not None else None
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer, skip=len(request.prefix))
        self._random = random_stream(request.settings.seed, request.first_sample + number)
        self._random.random(len(request.written))
        self._again = random_stream(request.settings.seed, 2**32 + request.first_sample + number)
        self._left, self._room = request.settings.max_new_tokens, room
        self._has_penalties = _penalty_settings(request.settings) != _penalty_settings(SamplingSettings())
        self._text = ""
        self._pending = ""  # behind it, what may be the beginning of a stop text

    def uniform(self) -> float:
        """The next of the sample's random numbers."""
        return self._random.random()

    @property
    def last_ids(self) -> tuple[int, ...]:
        """The end of prompt and continuation, as much as n-grams read."""
        return (*self.request.ids[-MAX_MATCH:], *self.ids[-MAX_MATCH:])

    def apply_constraints(self, logits_V: Tensor) -> Tensor:
        """Logits without what does not spell the prefix or match the grammar, with penalties and bias."""
        if self._has_penalties:
            new = self.ids[len(self.ids) - self.num_new :]  # without what spells the prefix
            written = (*self.request.written, *new)
            logits_V = apply_penalties(logits_V, self.request.settings, self.request.ids, written)
        if self._matcher is not None:
            allowed_V = torch.from_numpy(self._matcher.allowed(self._constraint)).to(logits_V.device)
            return logits_V.masked_fill(~allowed_V, float("-inf"))
        if not self._constraint.done:
            allowed = torch.from_numpy(self._constraint.allowed()).to(logits_V.device)
            nothing_V = torch.full_like(logits_V, float("-inf"))
            logits_V = nothing_V.index_copy(0, allowed, logits_V[allowed])
        return logits_V

    @property
    def constrained(self) -> bool:
        """True if `apply_constraints` changes anything."""
        return self._has_penalties or not self._constraint.done or self._matcher is not None

    def draw_valid(self, token: int, logits_V: Tensor) -> int:
        """Return a token that was drawn, or the first of a few others that does not break the syntax.

        Args:
            token: the one that was drawn.
            logits_V: that it was drawn from; overwritten.
        """
        drawn = token
        for _ in range(_MOST_DRAWN):
            if self._syntax is None or self._keeps_syntax(token):
                return token
            logits_V[token] = float("-inf")
            if logits_V.max() == float("-inf"):
                break
            (token,) = sample(logits_V.unsqueeze(0), self.request.settings, [self._again.random()])
        return drawn

    def _keeps_syntax(self, token: int) -> bool:
        assert self._syntax is not None  # noqa: S101  (the caller looked)
        if token < NUM_SPECIAL or token in self.request.end_ids:
            return self._syntax.accepts(b"", ends=True)
        data = self._behind_prefix(token, len(self._constraint.rest))
        stop, text = self.request.stop, self._text + self._pending + data.decode(errors="replace")
        place = stop_place(text, self.request.settings.stop)
        if place is not None:  # what stands behind it is no part of the text
            data = data[: max(0, place - len(self._text) - len(self._pending))]
        return self._syntax.accepts(data, ends=place is not None or (stop is not None and stop(text)))

    def _behind_prefix(self, token: int, unspelt: int) -> bytes:
        """Bytes of a token that are part of the text."""
        return b"" if token < NUM_SPECIAL else self._tokenizer.decode_bytes([token])[unspelt:]

    @property
    def num_new(self) -> int:
        """Tokens behind the prompt's end: what the limit on new tokens counts."""
        return self.request.settings.max_new_tokens - self._left

    def append(self, token: int) -> str:
        """Take the next token; returns the text that can be shown now. It may set `finish_reason`."""
        if token in (BOS, EOS):
            return self._end("end")
        self._left -= self._constraint.done  # what spells the prefix does not count
        unspelt = len(self._constraint.rest)
        self._constraint.advance(token)
        if self._syntax is not None:
            self._syntax.append(self._behind_prefix(token, unspelt))
        self.ids.append(token)
        if token in self.request.end_ids:
            return self._end("end")
        visible = self._release(self._decoder.push(token))
        if self.finish_reason is not None:
            return visible
        if self._matcher is not None:
            self._matcher.advance(token, skip=unspelt - len(self._constraint.rest))
        reason = self._reason_to_end()
        return visible if reason is None else visible + self._end(reason)

    def _reason_to_end(self) -> FinishReason | None:
        """Reason for which the text so far is all; None where it goes on."""
        if self.request.stop is not None and self.request.stop(self._text + self._pending):
            return "stop"
        if self._matcher is not None and self._matcher.ended:
            return "stop" if self._matcher.complete else "length"
        return "length" if self._left == 0 or len(self.ids) == self._room else None

    def completion(self) -> CompletionOutput:
        """All of it, once it has ended."""
        assert self.finish_reason is not None  # noqa: S101  (the caller looked)
        return CompletionOutput(self._text, tuple(self.ids), self.finish_reason, tuple(self.logprobs))

    def _end(self, reason: FinishReason) -> str:
        visible = self._release(self._decoder.finish())
        if self.finish_reason is None:  # what was held back is no stop text
            self.finish_reason = reason
            visible, self._text, self._pending = visible + self._pending, self._text + self._pending, ""
        return visible

    def _release(self, text: str) -> str:
        """Return the text that is certain to stay, up to the stop text that is complete first."""
        pending, stops = self._pending + text, self.request.settings.stop
        place = stop_place(pending, stops)
        if place is not None:
            self.finish_reason, keep = "stop", 0
            visible = pending[:place]
        else:
            keep = max((_overlap(pending, stop) for stop in stops), default=0)
            visible = pending[: len(pending) - keep]
        self._pending = pending[len(pending) - keep :]
        self._text += visible
        return visible


def stop_place(text: str, stops: Sequence[str]) -> int | None:
    """The place in a text at which the stop text begins that is complete first; None without any."""
    matches = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    return min(matches)[1] if matches else None


def _overlap(text: str, stop: str) -> int:
    """Count the characters at the end of the text that begin the stop text."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)


_MOST_DRAWN = 9  # tokens at one place, until one keeps C++'s syntax
_draw_settings = attrgetter("temperature", "top_k", "top_p", "min_p")
"""The settings that `sample` reads."""
_penalty_settings = attrgetter("repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias")
"""The settings that `apply_penalties` reads."""


@lru_cache(maxsize=256)
def _special_mask(end_ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Mask of the special tokens that a continuation with these ends never holds: bool, shape S."""
    mask_S = torch.ones(NUM_SPECIAL, dtype=torch.bool)
    mask_S[[id_ for id_ in (BOS, EOS, *end_ids) if id_ < NUM_SPECIAL]] = False
    return mask_S.to(device)


def sample_next(logits_BV: Tensor, states: Sequence[SequenceState]) -> list[int]:
    """The next token of each sample; how likely it was is noted where that was asked for.

    Args:
        logits_BV: float32, the model's own; overwritten.
        states: one per row; the token is not appended yet.

    Raises:
        UserError: the model's logits are no numbers.
    """
    if bool(logits_BV.sum().isnan()):  # a third of the time of looking at each
        raise UserError("the model gives no numbers (NaN)", fix="Its training diverged: use an earlier step.")
    for row, each in enumerate(states):
        if each.request.ngrams is not None:
            logits_BV[row] = each.request.ngrams.mix(logits_BV[row], each.last_ids)
    logprobs = {
        row: logits_BV[row].log_softmax(-1)
        for row, each in enumerate(states) if each.request.logprobs is not None
    }  # fmt: skip
    masks = [_special_mask(each.request.end_ids, logits_BV.device) for each in states]
    same_mask = all(mask is masks[0] for mask in masks)
    logits_BV[:, :NUM_SPECIAL].masked_fill_(masks[0] if same_mask else torch.stack(masks), float("-inf"))
    for row, each in enumerate(states):
        if each.constrained:
            logits_BV[row] = each.apply_constraints(logits_BV[row])
    alike: dict[Any, list[int]] = {}  # rows that differ in their seeds or limits alone are drawn together
    for row, each in enumerate(states):
        alike.setdefault(_draw_settings(each.request.settings), []).append(row)
    tokens = [0] * len(states)
    for rows in alike.values():
        settings = states[rows[0]].request.settings
        uniforms = [states[row].uniform() for row in rows]
        drawn = sample(logits_BV if len(alike) == 1 else logits_BV[rows], settings, uniforms)
        for row, token in zip(rows, drawn, strict=True):
            tokens[row] = token
    for row, each in enumerate(states):
        if each.request.valid is not None:
            tokens[row] = each.draw_valid(tokens[row], logits_BV[row])
    for row, logprobs_V in logprobs.items():
        states[row].logprobs.append(_logprob(logprobs_V, tokens[row], states[row].request.logprobs or 0))
    return tokens


def _logprob(logprobs_V: Tensor, token: int, count: int) -> TokenLogprob:
    likeliest = logprobs_V.topk(count)
    pairs = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return TokenLogprob(token, float(logprobs_V[token]), tuple(pairs))
