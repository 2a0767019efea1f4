"""Many requests at once: who is read, who writes, who waits.

Each step reads at most `chunk` tokens of prompts, those of the longest waiting request first, so that a long
prompt does not stop the others; then every sample that writes gets one token, and as many of those drafted
behind it (`speculative.py`) as it would have written anyway. Samples of one prompt share what was read of it.
Prompts that begin alike are read once, as long as what was read of them is kept.

A request is taken in when there is room for all that it may need, so none has to be put back later. Whoever
ends or is cancelled gives back its memory at once. One thread drives a scheduler.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.generate.sequence import (
    CompletionOutput,
    GenerationRequest,
    SequenceState,
    TokenLogprob,
    sample_next,
)
from cpplm.generate.settings import SchedulerLimits
from cpplm.generate.speculative import DraftState, Proposer
from cpplm.model.kv_cache.block_pool import BLOCK_SIZE, CachedSequence
from cpplm.model.kv_cache.cache import KVCache
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenEvent:
    """One token of one sample."""

    request_id: int
    """Id of the request, as `submit` gave it."""
    sample: int
    text: str
    """Text that can be shown now; may be empty."""
    completion: CompletionOutput | None
    """The whole sample, when it has ended."""
    last: bool
    """True if that ended the request: no sample of it is left."""
    logprob: TokenLogprob | None = None
    """Log-probability of the token, where that was asked for."""
    is_new: bool = True
    """False for tokens that spell the prompt's end, and for <EOS>."""


@dataclass(eq=False)
class _Request:
    """A submitted request, with the blocks that its prompt and each of its samples may take."""

    id: int
    spec: GenerationRequest
    prompt_blocks: int
    sample_blocks: int
    sequence: CachedSequence | None = None
    """The prompt as far as it was read, until the last sample has begun."""
    state_C: Tensor | None = None
    """State of the model at the end of the prompt."""
    num_begun: int = 0
    num_ended: int = 0


@dataclass(eq=False)
class _Running:
    """One sample that writes; the last token it wrote is not in its sequence yet."""

    request: _Request
    state: SequenceState
    sequence: CachedSequence
    draft_state: DraftState


class Scheduler:
    """Runs requests on one model, step by step."""

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, limits: SchedulerLimits | None = None
    ) -> None:
        """Begin idle.

        Raises:
            UserError: heads are to draft, and the model has none.
        """
        self.model, self.tokenizer, self.limits = model, tokenizer, limits or SchedulerLimits()
        draft = self.limits.draft
        if draft.kind == "heads" and not model.multi_token:
            raise UserError(
                "the model has no head that could draft", fix="Train with --mtp, or draft by lookup."
            )
        self.cache = KVCache(
            model.cache_specs(heads=int(draft.kind == "heads")), device=model.device,
            dtype=model.compute_dtype, prefix_cache_tokens=self.limits.prefix_cache_tokens,
        )  # fmt: skip
        self._proposer = Proposer(model, self.cache, draft)
        self._max_drafts = 0 if draft.kind == "off" else draft.tokens
        self.num_drafted = self.num_accepted = 0
        """Tokens that were drafted so far, and those of them that were written."""
        # Prompt and continuation end in the middle of a block, and one block is copied.
        per_sample = model.config.max_seq_len + self._max_drafts + 3 * BLOCK_SIZE
        tokens = self.limits.cache_tokens or self.limits.max_batch * per_sample
        self._blocks = self._free_blocks = tokens // BLOCK_SIZE
        self._requests: dict[int, _Request] = {}
        self._waiting: deque[_Request] = deque()
        self._running: list[_Running] = []
        self._next_id = 0

    @property
    def num_waiting(self) -> int:
        """Requests of which some sample has not begun."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Samples that write."""
        return len(self._running)

    @property
    def idle(self) -> bool:
        """True if there is nothing to do."""
        return not self._requests

    def submit(self, spec: GenerationRequest) -> int:
        """Put a request at the end of the queue; returns its id.

        Raises:
            UserError: the prompt is empty, leaves no room in the context, or never fits into the cache; or a
                bias is of a token that the model does not have.
        """
        length, context = len(spec.ids), self.model.config.max_seq_len
        if not 0 < length < context:
            raise UserError(
                f"the prompt has {length} tokens, the model's context {context}",
                fix="Shorten the prompt." if length else "Begin with <BOS>.",
            )
        if spec.num_samples < 1:
            raise UserError(f"{spec.num_samples} samples were asked for", fix="Ask for 1 at least.")
        vocab_size = self.model.config.vocab_size
        if unknown := [id_ for id_, _ in spec.settings.logit_bias if id_ >= vocab_size]:
            raise UserError(f"logit_bias names token {unknown[0]}, the model has only {vocab_size}")
        # Each byte of the prefix may take a token of its own; the prompt's last block is copied.
        new = min(len(spec.prefix) + spec.settings.max_new_tokens, context - length) + self._max_drafts
        request = _Request(self._next_id, spec, -(-length // BLOCK_SIZE), -(-new // BLOCK_SIZE) + 1)
        if request.prompt_blocks + request.sample_blocks > self._blocks:
            raise UserError(
                f"a prompt of {length} tokens and up to {new} new ones do not fit into the cache of "
                f"{self._blocks * BLOCK_SIZE}",
                fix="Lower max_new_tokens, or raise the limit.",
            )
        self._next_id += 1
        self._requests[request.id] = request
        self._waiting.append(request)
        return request.id

    def cancel(self, request_id: int) -> None:
        """Forget a request; its memory is free at once. One that has ended already is no error."""
        request = self._requests.get(request_id)
        if request is None:
            return
        if request in self._waiting:
            self._waiting.remove(request)
        for running in [running for running in self._running if running.request is request]:
            self._release(running)
        self._finish(request)

    @torch.inference_mode()
    def step(self) -> list[TokenEvent]:
        """Read a chunk of prompts, write one token of every sample; returns what was written."""
        events: list[TokenEvent] = []
        budget = self.limits.prefill_chunk
        while budget > 0 and self._waiting and self._fits(self._waiting[0]):
            request = self._waiting[0]
            budget -= self._prefill(request, budget)
            if request.state_C is None:
                break
            events += self._begin_samples(request, request.state_C)
            if request.num_begun == request.spec.num_samples:
                self._waiting.popleft()
        if self._running:
            events += self._decode()
        return events

    def _fits(self, request: _Request) -> bool:
        """True if there is room for the prompt and one sample."""
        blocks = request.sample_blocks + (request.prompt_blocks if request.sequence is None else 0)
        return len(self._running) < self.limits.max_batch and blocks <= self._free_blocks

    def _prefill(self, request: _Request, budget: int) -> int:
        """Read the next part of a prompt; returns how many tokens that were."""
        if request.sequence is None:
            request.sequence = self.cache.begin(request.spec.ids)
            self._free_blocks -= request.prompt_blocks
        rest = request.spec.ids[request.sequence.length :]
        ids = rest[:budget]
        if ids:
            num_outputs = None if self.limits.draft.kind == "heads" else 1  # heads read the states of all
            hidden_1TC = self._hidden([request.sequence], [list(ids)], num_outputs)
            self._proposer.prefill(request.sequence, rest, hidden_1TC)
            self.cache.advance(request.sequence, ids)
            if len(ids) == len(rest):
                request.state_C = hidden_1TC[0, -1]
        return len(ids)

    def _begin_samples(self, request: _Request, state_C: Tensor) -> list[TokenEvent]:
        """Write the first token of as many of the prompt's samples as there is room for."""
        assert request.sequence is not None  # noqa: S101  (the prompt was read)
        total = request.spec.num_samples
        count = min(
            total - request.num_begun,
            self.limits.max_batch - len(self._running),
            self._free_blocks // request.sample_blocks,
        )
        room = self.model.config.max_seq_len - len(request.spec.ids) + 1
        begun = []
        for _ in range(count):
            state = SequenceState(self.tokenizer, request.spec, request.num_begun, room)
            request.num_begun += 1
            last = request.num_begun == total
            sequence = request.sequence if last else self.cache.fork(request.sequence)
            begun.append(_Running(request, state, sequence, self._proposer.begin(request.spec.ids)))
        if request.num_begun == total:
            request.sequence = request.state_C = None
        self._running += begun
        self._free_blocks -= count * request.sample_blocks
        logits_BV = self.model.logits(state_C).expand(count, -1).contiguous()
        tokens = sample_next(logits_BV, [each.state for each in begun])
        return [self._append(each, state_C, token) for each, token in zip(begun, tokens, strict=True)]

    def _decode(self) -> list[TokenEvent]:
        """One token of every sample, and what was drafted behind it as long as that is what it writes."""
        rows = self._running.copy()
        sequences = [row.sequence for row in rows]
        drafts = self._proposer.draft([row.draft_state for row in rows], sequences)
        ids = [[row.state.ids[-1], *draft] for row, draft in zip(rows, drafts, strict=True)]
        hidden_BTC = self._hidden(sequences, ids)
        logits_BTV = self.model.logits(hidden_BTC)
        self.num_drafted += sum(map(len, drafts))
        events: list[TokenEvent] = []
        active = list(range(len(rows)))
        for place in range(hidden_BTC.size(1)):
            logits_BV = logits_BTV[:, place] if len(active) == len(rows) else logits_BTV[active, place]
            tokens = sample_next(logits_BV, [rows[row].state for row in active])
            for row, token in zip(active, tokens, strict=True):
                self.cache.advance(rows[row].sequence, ids[row][place : place + 1])
                events.append(self._append(rows[row], hidden_BTC[row, place], token))
            active = [
                row for row, token in zip(active, tokens, strict=True)
                if rows[row].state.finish_reason is None and ids[row][place + 1 : place + 2] == [token]
            ]  # fmt: skip
            self.num_accepted += len(active)
            if not active:
                break
        return events

    def _hidden(
        self, sequences: list[CachedSequence], ids: list[list[int]], num_outputs: int | None = None
    ) -> Tensor:
        """States of the model, shape BTC, at the next tokens of some sequences, padded on the right."""
        counts = list(map(len, ids))
        padded = [row + [0] * (max(counts) - len(row)) for row in ids]
        view = self.cache.view(sequences, counts)
        return self.model.hidden_states(
            torch.tensor(padded, device=self.model.device), view, num_outputs=num_outputs
        )

    def _append(self, running: _Running, state_C: Tensor, token: int) -> TokenEvent:
        """Give a sample its next token, chosen from this state; it is released when it ends."""
        request, state, completion = running.request, running.state, None
        num_new = state.num_new
        text = state.append(token)
        self._proposer.extend(running.draft_state, state_C, token)
        if state.finish_reason is not None:
            completion = state.completion()
            self._release(running)
        last = request.num_ended == request.spec.num_samples
        if last:
            self._finish(request)
        logprob = state.logprobs[-1] if state.logprobs else None
        is_new = state.num_new > num_new
        return TokenEvent(request.id, state.number, text, completion, last, logprob, is_new)

    def _release(self, running: _Running) -> None:
        """Give back what a sample took."""
        self._running.remove(running)
        self.cache.release(running.sequence)
        self._free_blocks += running.request.sample_blocks
        running.request.num_ended += 1

    def _finish(self, request: _Request) -> None:
        """Give back what the prompt took, if it was begun."""
        del self._requests[request.id]
        if request.sequence is not None:
            self.cache.release(request.sequence)
        if request.sequence is not None or request.num_begun:
            self._free_blocks += request.prompt_blocks
