"""Documents to batches of token ids: nothing thrown away, well mixed, resumable to the token.

Rows of `seq_len` tokens are taken in turn from `LANES` lanes. A lane reads one document after the other: a
document that does not fit goes on in that lane's next row, and one that ends is followed by the next unread
document. Neighbouring rows thus come from different documents, however long those are, and every token of
an epoch is an input once and a target once.

The state says where each lane stands. A loader started from it gives the very batches that would have
followed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cpplm.batches.documents import Document, DocumentStream, Position
from cpplm.core.shards import ShardReader
from cpplm.tokenizer.special import IGNORED, PAD
from cpplm.tokenizer.tokenizer import Tokenizer

# Documents that are open at a time. A fixed number: the order of rows must not depend on the batch size.
LANES = 64


@dataclass(frozen=True)
class LoaderState:
    """Rows given out; per lane its document and the next token there; the next unread document.

    A fresh loader has no lanes yet.
    """

    rows: int = 0
    lanes: tuple[tuple[Position, int], ...] = ()
    unread: Position = field(default_factory=Position)

    def to_json(self) -> dict[str, Any]:
        """Plain integers for a checkpoint."""
        return {
            "rows": self.rows,
            "lanes": [[*_integers(position), token] for position, token in self.lanes],
            "unread": _integers(self.unread),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LoaderState:
        """The inverse of `to_json`."""
        lanes = tuple((Position(*position), token) for *position, token in values["lanes"])
        return cls(values["rows"], lanes, Position(*values["unread"]))


def _integers(position: Position) -> list[int]:
    return [position.epoch, position.shard, position.document]


@dataclass(frozen=True)
class Batch:
    """Token ids and what should follow each of them, both of shape (batch_size, seq_len), int64.

    `state` is where the loader stands after this batch.
    """

    inputs: Tensor
    targets: Tensor
    state: LoaderState


@dataclass
class _Lane:
    """The document being read and its next token. There is always at least one token left."""

    document: Document
    token: int = 0


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
        """Start anew, or from `state`."""
        state = state or LoaderState()
        self._batch_size, self._seq_len = batch_size, seq_len
        stream = DocumentStream(reader, tokenizer, "train", seed=seed, threads=threads)
        self._unread = stream.read_from(state.unread)
        self._rows = state.rows
        # Sorted reading touches each shard once; the lanes keep their own order.
        places = {
            position: stream.read(position) for position in sorted({p for p, _ in state.lanes}, key=_integers)
        }
        self._lanes = [_Lane(places[position], token) for position, token in state.lanes]
        self._next = next(self._unread)
        if not self._lanes:
            self._lanes = [_Lane(self._advance()) for _ in range(LANES)]

    def _advance(self) -> Document:
        """The next unread document; one is kept in hand, so that the state can name it."""
        document, self._next = self._next, next(self._unread)
        return document

    def _row(self) -> npt.NDArray[np.int64]:
        """The next `seq_len` tokens of the lane whose turn it is, and the one after them."""
        lane = self._lanes[self._rows % LANES]
        pieces = [lane.document.ids[lane.token :]]
        missing = self._seq_len + 1 - len(pieces[0])
        lane.token += self._seq_len
        while missing > 0:
            lane.token -= len(lane.document.ids)
            lane.document = self._advance()
            pieces.append(lane.document.ids)
            missing -= len(lane.document.ids)
        self._rows += 1
        return np.concatenate(pieces)[: self._seq_len + 1]

    def __iter__(self) -> TrainLoader:
        return self

    def __next__(self) -> Batch:
        """The next batch."""
        rows = np.stack([self._row() for _ in range(self._batch_size)])
        state = LoaderState(
            self._rows,
            tuple((lane.document.position, lane.token) for lane in self._lanes),
            self._next.position,
        )
        return Batch(torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy()), state)


def validation_batches(
    reader: ShardReader,
    tokenizer: Tokenizer,
    *,
    batch_size: int,
    seq_len: int,
    max_tokens: int | None = None,
    threads: int = 2,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass over the validation documents in stored order.

    Gives (inputs, targets), each of shape (batch_size, seq_len).

    Stops after `max_tokens` tokens. The last batch is filled up with <PAD> and ignored targets, so that all
    batches have one shape.
    """
    stream = DocumentStream(reader, tokenizer, "val", seed=None, threads=threads)
    documents = itertools.islice(stream.read_from(Position()), stream.num_documents)
    tokens = itertools.chain.from_iterable(document.ids for document in documents)
    wanted = itertools.islice(tokens, None if max_tokens is None else max_tokens + 1)
    per_batch = batch_size * seq_len
    ids = np.fromiter(itertools.islice(wanted, per_batch + 1), dtype=np.int64)
    while len(ids) > 1:
        inputs, targets = np.full(per_batch, PAD), np.full(per_batch, IGNORED)
        inputs[: len(ids) - 1], targets[: len(ids) - 1] = ids[:-1], ids[1:]
        shape = (batch_size, seq_len)
        yield torch.from_numpy(inputs.reshape(shape)), torch.from_numpy(targets.reshape(shape))
        ids = np.fromiter(itertools.chain(ids[-1:], itertools.islice(wanted, per_batch)), dtype=np.int64)
