"""Texts of any length scored by a model with a limited context.

A document longer than the context T is read in windows of T tokens that move on by T/2. Every token is scored
once, in the first window that has it: behind at least T/2 earlier tokens, or all that there are. The windows
of many documents share batches, so that short ones cost no more than their tokens; what a token's bits are
does not depend on what else is in its batch, apart from rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpplm.evaluate.models.code_model import TokenBits
from cpplm.tokenizer.special_tokens import IGNORE_INDEX

# Rows of a batch are cut to its longest one, rounded up to this: fewer shapes to plan for.
_LENGTH_MULTIPLE = 128
# Batches whose documents are gathered before the first is scored: enough to put equal lengths together, and
# little enough to lose when a run is killed.
_BATCHES_AT_ONCE = 4
MAX_BATCH_TOKENS = 32_768

Losses = Callable[[Tensor, Tensor], Tensor]
"""Nats BT of targets BT behind inputs BT, 0 where the target is `IGNORE_INDEX`."""


@dataclass(frozen=True)
class ScoringWindow:
    """Tokens `begin` to `end` (exclusive) of a document are in it; those from `fresh` on are scored in it."""

    begin: int
    fresh: int
    end: int


@dataclass(frozen=True)
class EncodedText:
    """A text as the model reads it: ids without the start token, and `ends` as `TokenBits` has them."""

    ids: Sequence[int]
    ends: NDArray[np.int64]


def sliding_windows(num_tokens: int, context: int) -> Iterator[ScoringWindow]:
    """The windows of a document behind which stands a start token, which takes one place of the context."""
    begin = fresh = 0
    while fresh < num_tokens:
        end = min(begin + context, num_tokens)
        yield ScoringWindow(begin, fresh, end)
        begin, fresh = begin + max(1, context // 2), end


def score_in_windows(
    documents: Iterable[EncodedText],
    losses: Losses,
    *,
    start_id: int,
    context: int,
    rows: int,
    batch_tokens: int = MAX_BATCH_TOKENS,
) -> Iterator[TokenBits]:
    """Score documents, in order.

    Args:
        documents: any number; a few batches of them are read ahead.
        losses: the model.
        start_id: what stands before a document's first token, and beside shorter rows.
        context: tokens per window.
        rows: windows in one call of the model at most.
        batch_tokens: of its inputs at most; a single window may have more.
    """
    group: list[EncodedText] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document.ids)
        if size >= _BATCHES_AT_ONCE * min(rows * context, batch_tokens):
            yield from _score_group(group, losses, start_id, context, rows, batch_tokens)
            group, size = [], 0
    yield from _score_group(group, losses, start_id, context, rows, batch_tokens)


def _score_group(
    documents: list[EncodedText], losses: Losses, start_id: int, context: int, rows: int, batch_tokens: int
) -> list[TokenBits]:
    scored = [
        TokenBits(document.ends, np.zeros(len(document.ids)), np.zeros(len(document.ids), dtype=np.int64))
        for document in documents
    ]
    jobs = [
        (number, window)
        for number, document in enumerate(documents)
        for window in sliding_windows(len(document.ids), context)
    ]
    jobs.sort(key=lambda job: job[1].end - job[1].begin, reverse=True)
    while jobs:
        longest = jobs[0][1].end - jobs[0][1].begin
        longest = min(context, -(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE)
        taken = max(1, min(rows, batch_tokens // longest))
        batch, jobs = jobs[:taken], jobs[taken:]
        nats_BT = losses(*_tensors(documents, batch, start_id, longest)).double().cpu().numpy()
        for row, (number, window) in enumerate(batch):
            inside = np.arange(window.fresh, window.end)
            scored[number].bits[inside] = nats_BT[row, inside - window.begin] / math.log(2)
            scored[number].context[inside] = inside - window.begin + 1
    return scored


def _tensors(
    documents: list[EncodedText], batch: list[tuple[int, ScoringWindow]], start_id: int, length: int
) -> tuple[Tensor, Tensor]:
    """Inputs and targets BT; what a window does not score, and the rest of a short row, is `IGNORE_INDEX`."""
    inputs = torch.full((len(batch), length), start_id)
    targets = torch.full((len(batch), length), IGNORE_INDEX)
    for row, (number, window) in enumerate(batch):
        ids = documents[number].ids
        before = [start_id] if window.begin == 0 else [ids[window.begin - 1]]
        size = window.end - window.begin
        inputs[row, :size] = torch.tensor([*before, *ids[window.begin : window.end - 1]])
        fresh = window.fresh - window.begin
        targets[row, fresh:size] = torch.tensor(ids[window.fresh : window.end])
    return inputs, targets
