"""Documents to batches of token ids, nothing thrown away, resumable to the token.

Each epoch is one stream: every document once, in an order shuffled anew by (seed, epoch), each begun by
<BOS>. The stream is cut into rows of `seq_len`; a document that does not fit goes on in the next row. Every
token is an input once and a target once.

The state is four integers. A loader started from it gives the very batches that would have followed.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader, Split
from cpplm.tokenizer.special import IGNORED
from cpplm.tokenizer.tokenizer import Tokenizer

TOKENIZE_AT_ONCE = 64  # documents; large enough to keep the encoder's threads busy


@dataclass(frozen=True)
class LoaderState:
    """The position of the next unread token: shard and document are positions in the epoch's order."""

    epoch: int = 0
    shard: int = 0
    document: int = 0
    token: int = 0

    def to_json(self) -> dict[str, int]:
        """Plain integers for a checkpoint."""
        return asdict(self)


@dataclass(frozen=True)
class Batch:
    """Token ids and what should follow each of them, both of shape (batch_size, seq_len), int64.

    `state` is where the loader stands after this batch.
    """

    inputs: Tensor
    targets: Tensor
    state: LoaderState


@dataclass(frozen=True)
class _Piece:
    """One tokenised document and its position."""

    epoch: int
    shard: int
    document: int
    ids: np.ndarray[tuple[int], np.dtype[np.int64]]


def documents(
    reader: ShardReader,
    tokenizer: Tokenizer,
    split: Split,
    *,
    seed: int | None,
    start: LoaderState,
    threads: int,
) -> Iterator[_Piece]:
    """Tokenised documents from `start` on, epoch after epoch; `seed` None keeps the stored order.

    Only one shard is in memory at a time.
    """
    shards = reader.shards(split)
    if sum(shard.documents for shard in shards) == 0:
        raise UserError(
            f"{reader.storage.location} has no {split} documents", fix="Build a corpus with more code."
        )
    for epoch in itertools.count(start.epoch):
        order = _permutation(len(shards), seed, epoch, 0)
        first_shard = start.shard if epoch == start.epoch else 0
        for position in range(first_shard, len(shards)):
            texts = reader.table(shards[order[position]], ["text"])["text"].to_pylist()
            inner = _permutation(len(texts), seed, epoch, 1 + order[position])
            here = epoch == start.epoch and position == start.shard
            for begin in range(start.document if here else 0, len(texts), TOKENIZE_AT_ONCE):
                chosen = inner[begin : begin + TOKENIZE_AT_ONCE]
                rows = tokenizer.encode_batch([texts[i] for i in chosen], prepend="<BOS>", threads=threads)
                for offset, ids in enumerate(rows):
                    yield _Piece(epoch, position, begin + offset, np.array(ids, dtype=np.int64))


def _permutation(length: int, seed: int | None, *key: int) -> list[int]:
    if seed is None:
        return list(range(length))
    return [int(i) for i in np.random.default_rng([seed, *key]).permutation(length)]


class TrainLoader:
    """An endless iterator of training batches."""

    def __init__(
        self,
        reader: ShardReader,
        tokenizer: Tokenizer,
        *,
        batch_size: int,
        seq_len: int,
        seed: int = 0,
        state: LoaderState | None = None,
        threads: int = 2,
    ) -> None:
        self._batch_size, self._seq_len = batch_size, seq_len
        start = state or LoaderState()
        self._documents = documents(reader, tokenizer, "train", seed=seed, start=start, threads=threads)
        self._pending: deque[_Piece] = deque()
        self._offset = start.token  # tokens of the first pending document that were already inputs

    def __iter__(self) -> TrainLoader:
        return self

    def __next__(self) -> Batch:
        """The next batch; its last target is the first input of the batch after it."""
        wanted = self._batch_size * self._seq_len
        while sum(len(piece.ids) for piece in self._pending) - self._offset <= wanted:
            self._pending.append(next(self._documents))
        stream = np.concatenate([piece.ids for piece in self._pending])[self._offset :]
        self._offset += wanted
        while self._offset >= len(self._pending[0].ids):
            self._offset -= len(self._pending.popleft().ids)
        first = self._pending[0]
        shape = (self._batch_size, self._seq_len)
        return Batch(
            inputs=torch.from_numpy(stream[:wanted].reshape(shape)),
            targets=torch.from_numpy(stream[1 : wanted + 1].reshape(shape)),
            state=LoaderState(first.epoch, first.shard, first.document, self._offset),
        )


def validation_batches(
    reader: ShardReader,
    tokenizer: Tokenizer,
    *,
    batch_size: int,
    seq_len: int,
    max_tokens: int | None = None,
    threads: int = 2,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass over the validation documents in stored order, as (inputs, targets).

    Stops after `max_tokens` tokens. The last batch is filled up with <PAD> and ignored targets, so that all
    batches have one shape.
    """
    total = sum(shard.documents for shard in reader.shards("val"))
    stream = documents(reader, tokenizer, "val", seed=None, start=LoaderState(), threads=threads)
    rows = np.concatenate([piece.ids for piece in _until(itertools.islice(stream, total), max_tokens)])
    ids = rows[: None if max_tokens is None else max_tokens + 1]
    per_batch = batch_size * seq_len
    for begin in range(0, len(ids) - 1, per_batch):
        inputs = np.zeros(per_batch, dtype=np.int64)  # <PAD> is 0
        targets = np.full(per_batch, IGNORED, dtype=np.int64)
        part = ids[begin : begin + per_batch + 1]
        inputs[: len(part) - 1], targets[: len(part) - 1] = part[:-1], part[1:]
        shape = (batch_size, seq_len)
        yield torch.from_numpy(inputs.reshape(shape)), torch.from_numpy(targets.reshape(shape))


def _until(pieces: Iterator[_Piece], max_tokens: int | None) -> Iterator[_Piece]:
    seen = 0
    for piece in pieces:
        yield piece
        seen += len(piece.ids)
        if max_tokens is not None and seen > max_tokens:
            return
