"""Many requests at once: who is read, who writes, who waits.

Each step reads at most `chunk` tokens of prompts, those of the longest waiting request first, so that a long
prompt does not stop the others; then every sample that writes gets one token, and as many of those drafted
behind it (`drafting.py`) as it would have written anyway. Samples of one prompt share what was read of it.
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
from cpplm.generate.sequence import Completion, Request, Sample, TokenLogprob, choose
from cpplm.generate.settings import Limits
from cpplm.generate.speculative import Drafter, Trail
from cpplm.model.kv_cache.block_pool import BLOCK, CachedSequence
from cpplm.model.kv_cache.cache import Cache
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Event:
    """One token of one sample."""

    ticket: int
    """Of the request, as `submit` gave it."""
    sample: int
    text: str
    """What can be shown now; may be empty."""
    completion: Completion | None
    """The whole sample, when it has ended."""
    ended: bool
    """Whether that was the request's last one."""
    logprob: TokenLogprob | None = None
    """Of the token, where that was asked for."""
    counts: bool = True
    """Whether the token is one of the new ones: it neither spells the prompt's end nor is <EOS>."""


@dataclass(eq=False)
class _Job:
    """One request on its way, with the blocks that its prompt and each of its samples may take."""

    ticket: int
    request: Request
    prompt_blocks: int
    sample_blocks: int
    sequence: CachedSequence | None = None
    """What was read of the prompt, until the last sample has begun."""
    state_C: Tensor | None = None
    """Of the model, at the end of the prompt."""
    begun: int = 0
    ended: int = 0


@dataclass(eq=False)
class _Row:
    """One sample that writes; the last token it wrote is not in its sequence yet."""

    job: _Job
    sample: Sample
    sequence: CachedSequence
    trail: Trail


class Scheduler:
    """Runs requests on one model, step by step."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, limits: Limits | None = None) -> None:
        """Idle.

        Raises:
            UserError: heads are to draft, and the model has none.
        """
        self.model, self.tokenizer, self.limits = model, tokenizer, limits or Limits()
        draft = self.limits.draft
        if draft.kind == "heads" and not model.multi_token:
            raise UserError(
                "the model has no head that could draft", fix="Train with --mtp, or draft by lookup."
            )
        self.cache = Cache(
            model.remembered(heads=int(draft.kind == "heads")), device=model.device,
            dtype=model.compute_dtype, kept_tokens=self.limits.kept_tokens,
        )  # fmt: skip
        self._drafter = Drafter(model, self.cache, draft)
        self._most_drafts = 0 if draft.kind == "off" else draft.tokens
        self.drafted = self.accepted = 0
        """Tokens that were drafted so far, and those of them that were written."""
        # Prompt and continuation end in the middle of a block, and one block is copied.
        most = model.config.max_seq_len + self._most_drafts + 3 * BLOCK
        tokens = self.limits.tokens or self.limits.rows * most
        self._blocks = self._free_blocks = tokens // BLOCK
        self._jobs: dict[int, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._rows: list[_Row] = []
        self._tickets = 0

    @property
    def waiting(self) -> int:
        """Requests of which some sample has not begun."""
        return len(self._waiting)

    @property
    def writing(self) -> int:
        """Samples that write."""
        return len(self._rows)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._jobs

    def submit(self, request: Request) -> int:
        """Put a request at the end of the queue; returns its ticket.

        Raises:
            UserError: the prompt is empty, leaves no room in the context, or never fits into the cache; or a
                bias is of a token that the model does not have.
        """
        length, context = len(request.ids), self.model.config.max_seq_len
        if not 0 < length < context:
            raise UserError(
                f"the prompt has {length} tokens, the model's context {context}",
                fix="Shorten the prompt." if length else "Begin with <BOS>.",
            )
        if request.num_samples < 1:
            raise UserError(f"{request.num_samples} samples were asked for", fix="Ask for 1 at least.")
        vocab_size = self.model.config.vocab_size
        if unknown := [id_ for id_, _ in request.settings.logit_bias if id_ >= vocab_size]:
            raise UserError(f"logit_bias names token {unknown[0]}, the model has only {vocab_size}")
        # Each byte of the prefix may take a token of its own; the prompt's last block is copied.
        new = min(len(request.prefix) + request.settings.max_new_tokens, context - length) + self._most_drafts
        job = _Job(self._tickets, request, -(-length // BLOCK), -(-new // BLOCK) + 1)
        if job.prompt_blocks + job.sample_blocks > self._blocks:
            raise UserError(
                f"a prompt of {length} tokens and up to {new} new ones do not fit into the cache of "
                f"{self._blocks * BLOCK}",
                fix="Lower max_new_tokens, or raise the limit.",
            )
        self._tickets += 1
        self._jobs[job.ticket] = job
        self._waiting.append(job)
        return job.ticket

    def cancel(self, ticket: int) -> None:
        """Forget a request; its memory is free at once. One that has ended already is no error."""
        job = self._jobs.get(ticket)
        if job is None:
            return
        if job in self._waiting:
            self._waiting.remove(job)
        for row in [row for row in self._rows if row.job is job]:
            self._leave(row)
        self._finish(job)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Read a chunk of prompts, write one token of every sample; returns what was written."""
        events: list[Event] = []
        budget = self.limits.chunk
        while budget > 0 and self._waiting and self._fits(self._waiting[0]):
            job = self._waiting[0]
            budget -= self._read(job, budget)
            if job.state_C is None:
                break
            events += self._begin(job, job.state_C)
            if job.begun == job.request.num_samples:
                self._waiting.popleft()
        if self._rows:
            events += self._write()
        return events

    def _fits(self, job: _Job) -> bool:
        """Whether there is room for the prompt and one sample."""
        blocks = job.sample_blocks + (job.prompt_blocks if job.sequence is None else 0)
        return len(self._rows) < self.limits.rows and blocks <= self._free_blocks

    def _read(self, job: _Job, most: int) -> int:
        """Read the next part of a prompt; returns how many tokens that were."""
        if job.sequence is None:
            job.sequence = self.cache.begin(job.request.ids)
            self._free_blocks -= job.prompt_blocks
        rest = job.request.ids[job.sequence.length :]
        ids = rest[:most]
        if ids:
            hidden_1TC = self._hidden([job.sequence], [list(ids)])
            self._drafter.read(job.sequence, rest, hidden_1TC)
            self.cache.advance(job.sequence, ids)
            if len(ids) == len(rest):
                job.state_C = hidden_1TC[0, -1]
        return len(ids)

    def _begin(self, job: _Job, state_C: Tensor) -> list[Event]:
        """Write the first token of as many of the prompt's samples as there is room for."""
        assert job.sequence is not None  # noqa: S101  (the prompt was read)
        total = job.request.num_samples
        count = min(
            total - job.begun, self.limits.rows - len(self._rows), self._free_blocks // job.sample_blocks
        )
        room = self.model.config.max_seq_len - len(job.request.ids) + 1
        rows = []
        for _ in range(count):
            sample = Sample(self.tokenizer, job.request, job.begun, room)
            job.begun += 1
            sequence = job.sequence if job.begun == total else self.cache.fork(job.sequence)
            rows.append(_Row(job, sample, sequence, self._drafter.begin(job.request.ids)))
        if job.begun == total:
            job.sequence = job.state_C = None
        self._rows += rows
        self._free_blocks -= count * job.sample_blocks
        logits_BV = self.model.logits(state_C).expand(count, -1).contiguous()
        tokens = choose(logits_BV, [row.sample for row in rows])
        return [self._push(row, state_C, token) for row, token in zip(rows, tokens, strict=True)]

    def _write(self) -> list[Event]:
        """One token of every sample, and what was drafted behind it as long as that is what it writes."""
        rows = self._rows.copy()
        sequences = [row.sequence for row in rows]
        drafts = self._drafter.draft([row.trail for row in rows], sequences)
        ids = [[row.sample.ids[-1], *draft] for row, draft in zip(rows, drafts, strict=True)]
        hidden_BTC = self._hidden(sequences, ids)
        logits_BTV = self.model.logits(hidden_BTC)
        self.drafted += sum(map(len, drafts))
        events: list[Event] = []
        going = list(range(len(rows)))
        for place in range(hidden_BTC.size(1)):
            logits_BV = logits_BTV[:, place] if len(going) == len(rows) else logits_BTV[going, place]
            tokens = choose(logits_BV, [rows[row].sample for row in going])
            for row, token in zip(going, tokens, strict=True):
                self.cache.advance(rows[row].sequence, ids[row][place : place + 1])
                events.append(self._push(rows[row], hidden_BTC[row, place], token))
            going = [
                row for row, token in zip(going, tokens, strict=True)
                if rows[row].sample.reason is None and ids[row][place + 1 : place + 2] == [token]
            ]  # fmt: skip
            self.accepted += len(going)
            if not going:
                break
        return events

    def _hidden(self, sequences: list[CachedSequence], ids: list[list[int]]) -> Tensor:
        """States of the model, shape BTC, at the next tokens of some sequences, padded on the right."""
        counts = list(map(len, ids))
        padded = [row + [0] * (max(counts) - len(row)) for row in ids]
        view = self.cache.view(sequences, counts)
        return self.model.hidden_states(torch.tensor(padded, device=self.model.device), view)

    def _push(self, row: _Row, state_C: Tensor, token: int) -> Event:
        """Tell a sample its next token, chosen from this state; it leaves when it ends."""
        job, sample, completion = row.job, row.sample, None
        written = sample.written
        text = sample.push(token)
        self._drafter.extend(row.trail, state_C, token)
        if sample.reason is not None:
            completion = sample.completion()
            self._leave(row)
        ended = job.ended == job.request.num_samples
        if ended:
            self._finish(job)
        logprob = sample.logprobs[-1] if sample.logprobs else None
        counts = sample.written > written
        return Event(job.ticket, sample.number, text, completion, ended, logprob, counts)

    def _leave(self, row: _Row) -> None:
        """Give back what a sample took."""
        self._rows.remove(row)
        self.cache.release(row.sequence)
        self._free_blocks += row.job.sample_blocks
        row.job.ended += 1

    def _finish(self, job: _Job) -> None:
        """Give back what the prompt took, if it was begun."""
        del self._jobs[job.ticket]
        if job.sequence is not None:
            self.cache.release(job.sequence)
        if job.sequence is not None or job.begun:
            self._free_blocks += job.prompt_blocks
