"""Documents to batches of token ids: well mixed, nothing thrown away, resumable to the row.

The run has one endless sequence of rows; row r comes from lane r mod `LANES`. A lane reads every `LANES`-th
window of each data set (see `sampler`), packed on its own (see `packing`); what a window leaves over goes
into the lane's next one. Every token of an epoch is an input once and a target once.

Of R ranks, rank k takes the rows r with r mod R = k. It reads the lanes that these rows come from, and passes
over the rows of other ranks in them. So the sequence depends neither on the number of ranks nor on that of
workers, which only pack windows ahead of time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.core.workers import worker_pool
from cpplm.dataloader.encoding import DocumentEncoder
from cpplm.dataloader.loader_state import LANES, LoaderState
from cpplm.dataloader.mixture import Mixture
from cpplm.dataloader.pack_worker import WindowSource, forget_shards, pack_window
from cpplm.dataloader.sampler import WindowOrder
from cpplm.dataloader.shard_streams import Lane, Submit
from cpplm.tokenizer.special_tokens import IGNORED, PAD
from cpplm.tokenizer.tokenizer import Tokenizer

_ROUNDS_AHEAD = 8  # of all lanes, whose windows are begun at the start
_TOKENIZE_AT_ONCE = 64  # validation documents; enough to keep the encoder's threads busy


@dataclass(frozen=True)
class DataSource:
    """A data set of a mixture.

    Attributes:
        reader: its shards.
        weight: its share of the rows, relative to the weights of the other data sets.
        late_weight: the same from the loader's `late_from_row` on; None for no change.
    """

    reader: ShardReader
    weight: float = 1.0
    late_weight: float | None = None


@dataclass(frozen=True)
class Batch:
    """Token ids and what should follow each of them.

    Attributes:
        inputs: (batch_size, seq_len), int64.
        targets: likewise.
        state: where the loader stands after this batch, as far as this rank knows (see `LoaderState.merge`).
        documents: likewise; the number within the row of the document or piece that each token belongs to,
            for attention masks. None unless asked for.
    """

    inputs: Tensor
    targets: Tensor
    state: LoaderState
    documents: Tensor | None = None


class TrainLoader:
    """An endless iterator of training batches. Close it: that ends its workers."""

    def __init__(
        self,
        sources: Sequence[DataSource],
        encoder: DocumentEncoder,
        *,
        batch_size: int,
        seq_len: int,
        seed: int = 0,
        state: LoaderState | None = None,
        late_from_row: int | None = None,
        rank: int = 0,
        num_ranks: int = 1,
        workers: int = 0,
        token_cache: Path | None = None,
        document_mask: bool = False,
        pin: bool = False,
    ) -> None:
        """Start anew, or from `state`.

        Args:
            sources: data sets to mix; one is a mixture too.
            encoder: of all documents.
            batch_size: rows per batch of this rank.
            seq_len: tokens per row.
            seed: of all orders.
            state: the merged state of all ranks, of whatever number.
            late_from_row: number of the row of the run (counted over all ranks) from which the late weights
                hold.
            rank: this one's number among `num_ranks`.
            num_ranks: that take part.
            workers: processes that tokenise and pack; 0 for one thread of this process.
            token_cache: folder for shards already tokenised; for the plain encoder.
            document_mask: whether batches carry `documents`.
            pin: whether tensors are in page-locked memory, for copies to CUDA that do not block.

        Raises:
            UserError: the state, the weights or the cache do not fit the rest.
        """
        state = state or LoaderState()
        state.check(seq_len=seq_len, seed=seed, num_sources=len(sources))
        self._mixture = _mixture(sources, late_from_row)
        self._rows, self._batch_size, self._seq_len, self._seed = state.rows, batch_size, seq_len, seed
        self._rank, self._num_ranks = rank, num_ranks
        self._document_mask, self._pin = document_mask, pin
        self._resources = ExitStack()
        self._stop = threading.Event()
        encoded = [WindowSource(s.reader.storage.location, encoder, seq_len, token_cache) for s in sources]
        executor = self._start_executor(workers)
        self._lanes: dict[int, list[Lane]] = {
            lane: [] for lane in range(rank % self._stride, LANES, self._stride)
        }
        for number, source in enumerate(sources):
            order, submit = WindowOrder(source.reader, seed), _submitter(executor, encoded[number])
            for lane, lanes in self._lanes.items():
                known = state.lanes[lane][number] if state.rows else None
                lanes.append(Lane(order, submit, self._stop, lane, known))
        # In the order in which they are needed, so that the first rows do not wait for windows of later ones.
        for row in self._row_numbers(state.rows + _ROUNDS_AHEAD * LANES):
            self._lane_of(row).begin_next()

    def _start_executor(self, workers: int) -> Executor:
        executor: Executor
        if workers > 0:
            executor = self._resources.enter_context(worker_pool(workers))
        else:
            executor = ThreadPoolExecutor(1, thread_name_prefix="packing")
            self._resources.callback(forget_shards)
            self._resources.callback(executor.shutdown, cancel_futures=True)
        self._resources.callback(self._stop.set)
        return executor

    @property
    def _stride(self) -> int:
        """The rows of this rank come from lanes that are so far apart."""
        return gcd(LANES, self._num_ranks)

    def _row_numbers(self, end: int) -> range:
        """Of the rows up to `end` in the lanes that this rank reads."""
        return range(self._rows + (self._rank - self._rows) % self._stride, end, self._stride)

    def _lane_of(self, row: int) -> Lane:
        return self._lanes[row % LANES][self._mixture.source(row)]

    def __iter__(self) -> TrainLoader:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            UserError: a shard is damaged, or a worker process was killed.
        """
        rows = []
        end = self._rows + self._batch_size * self._num_ranks
        try:
            for row in self._row_numbers(end):
                taken = self._lane_of(row).next_row()
                if row % self._num_ranks == self._rank:
                    rows.append(taken)
        except BrokenProcessPool as error:
            raise UserError(
                "a process that prepares batches was killed, most likely for lack of memory",
                fix="Run the same command with fewer --workers.",
            ) from error
        self._rows = end
        documents = None
        if self._document_mask:
            lengths = [window.lengths[row] for window, row in rows]
            documents = self._tensor([np.repeat(np.arange(len(pieces)), pieces) for pieces in lengths])
        return Batch(
            self._tensor([window.inputs[row] for window, row in rows]),
            self._tensor([window.targets[row] for window, row in rows]),
            self._state(),
            documents,
        )

    def _tensor(self, rows: list[npt.NDArray[Any]]) -> Tensor:
        tensor = torch.from_numpy(np.stack(rows).astype(np.int64))
        return tensor.pin_memory() if self._pin else tensor

    def _state(self) -> LoaderState:
        lanes = {number: tuple(lane.state for lane in lanes) for number, lanes in self._lanes.items()}
        return LoaderState(self._rows, lanes, self._seq_len, self._seed)

    def close(self) -> None:
        """End the workers and what waits for them. May be called from another thread, and again."""
        self._resources.close()


def _submitter(executor: Executor, source: WindowSource) -> Submit:
    return lambda window, carry: executor.submit(pack_window, source, window, carry)


def _mixture(sources: Sequence[DataSource], late_from_row: int | None) -> Mixture:
    weights = [source.weight for source in sources]
    given = [source.late_weight for source in sources]
    changes = any(weight is not None for weight in given)
    if changes != (late_from_row is not None):
        raise UserError(
            "late weights and the row from which they hold only mean something together",
            fix="Give both or neither.",
        )
    late = [weight if late is None else late for weight, late in zip(weights, given, strict=True)]
    return Mixture(weights, late if changes else None, late_from_row)


def shorten(batch: Batch, length: int) -> Batch:
    """The same tokens in rows of `length`: (B, T) becomes (B * T / length, length), for length schedules.

    Documents are numbered from 0 in each of the new rows.

    Raises:
        ValueError: `length` does not divide T.
    """
    if batch.inputs.shape[1] == length:
        return batch
    if batch.inputs.shape[1] % length:
        raise ValueError(f"rows of {batch.inputs.shape[1]} tokens cannot be cut into rows of {length}")
    documents = None if batch.documents is None else batch.documents.reshape(-1, length)
    return Batch(
        batch.inputs.reshape(-1, length),
        batch.targets.reshape(-1, length),
        batch.state,
        None if documents is None else documents - documents[:, :1],
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
    """One pass over the validation documents in stored order.

    Gives (inputs, targets), each of shape (batch_size, seq_len), int64.

    Stops after `max_tokens` tokens. The last batch is filled up with <PAD> and ignored targets, so that all
    batches have one shape.

    Raises:
        UserError: there are no validation documents.
    """
    tokens = chain.from_iterable(_validation_documents(reader, tokenizer, threads))
    wanted = islice(tokens, None if max_tokens is None else max_tokens + 1)
    per_batch = batch_size * seq_len
    ids = np.fromiter(islice(wanted, per_batch + 1), dtype=np.int64)
    while len(ids) > 1:
        inputs, targets = np.full(per_batch, PAD), np.full(per_batch, IGNORED)
        inputs[: len(ids) - 1], targets[: len(ids) - 1] = ids[:-1], ids[1:]
        shape = (batch_size, seq_len)
        yield torch.from_numpy(inputs.reshape(shape)), torch.from_numpy(targets.reshape(shape))
        ids = np.fromiter(chain(ids[-1:], islice(wanted, per_batch)), dtype=np.int64)


def _validation_documents(reader: ShardReader, tokenizer: Tokenizer, threads: int) -> Iterator[list[int]]:
    shards = reader.shards("val")
    if not any(shard.documents for shard in shards):
        raise UserError(
            f"{reader.storage.location} has no val documents", fix="Build a corpus with more code."
        )
    for shard in shards:
        texts = reader.table(shard, ["text"])["text"].to_pylist()
        for begin in range(0, len(texts), _TOKENIZE_AT_ONCE):
            some = texts[begin : begin + _TOKENIZE_AT_ONCE]
            yield from tokenizer.encode_batch(some, prepend="<BOS>", threads=threads)
