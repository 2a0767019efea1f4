"""Documents to batches of token ids: well mixed, nothing thrown away, resumable to the row.

The run has one endless sequence of rows; row r comes from stream r mod `NUM_STREAMS`. A stream reads every
`NUM_STREAMS`-th group of documents of each data set (see `sampler`), packed on its own (see `packing`); what
a group leaves over goes into the stream's next one. Every token of an epoch is an input once and a target
once.

Of R ranks, rank k takes the rows r with r mod R = k. It reads the streams that these rows come from, and
passes over the rows of other ranks in them. So the sequence depends neither on the number of ranks nor on
that of workers, which only pack groups ahead of time.
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
from cpplm.dataloader.conversations import ConversationEncoder
from cpplm.dataloader.encoding import DocumentEncoder, RawDocument
from cpplm.dataloader.loader_state import NUM_STREAMS, LoaderState
from cpplm.dataloader.mixture import Mixture
from cpplm.dataloader.pack_worker import PackSource, clear_shard_cache
from cpplm.dataloader.sampler import EpochShuffler
from cpplm.dataloader.shard_streams import RowStream
from cpplm.tokenizer.special_tokens import IGNORE_INDEX, PAD
from cpplm.tokenizer.tokenizer import Tokenizer

_ROUNDS_AHEAD = 8  # of all streams, whose groups are begun at the start
_VALIDATION_BATCH = 64  # validation documents; enough to keep the encoder's threads busy


@dataclass(frozen=True)
class Batch:
    """Token ids and what should follow each of them.

    Attributes:
        inputs: (batch_size, seq_len), int64.
        targets: likewise.
        state: where the loader stands after this batch, as far as this rank knows (see `LoaderState.merge`).
        documents: likewise; the number within the row of the segment of a document that each token belongs
            to, for attention masks. None unless asked for.
    """

    inputs: Tensor
    targets: Tensor
    state: LoaderState
    documents: Tensor | None = None


class TrainLoader:
    """An endless iterator of training batches. Close it: that ends its workers."""

    def __init__(
        self,
        readers: Sequence[ShardReader],
        encoder: DocumentEncoder,
        *,
        mixture: Mixture,
        batch_size: int,
        seq_len: int,
        seed: int = 0,
        state: LoaderState | None = None,
        rank: int = 0,
        num_ranks: int = 1,
        workers: int = 0,
        token_cache: Path | None = None,
        document_mask: bool = False,
        pin: bool = False,
    ) -> None:
        """Start anew, or from `state`.

        Args:
            readers: data sets.
            encoder: of all documents.
            mixture: of the data sets.
            batch_size: rows per batch of this rank.
            seq_len: tokens per row.
            seed: of all orders.
            state: the merged state of all ranks, of whatever number.
            rank: this one's number among `num_ranks`.
            num_ranks: that take part.
            workers: processes that tokenize and pack; 0 for one thread of this process.
            token_cache: folder for shards already tokenized; for the plain encoder.
            document_mask: whether batches carry `documents`.
            pin: whether tensors are in page-locked memory, for copies to CUDA that do not block.

        Raises:
            UserError: the state or the cache does not fit the rest.
        """
        state = state or LoaderState()
        state.check(seq_len=seq_len, seed=seed, num_sources=len(readers))
        self._mixture = mixture
        self._rows, self._batch_size, self._seq_len, self._seed = state.rows, batch_size, seq_len, seed
        self._rank, self._num_ranks = rank, num_ranks
        self._document_mask, self._pin = document_mask, pin
        self._resources = ExitStack()
        self._stop = threading.Event()
        packed = [PackSource(reader.storage.location, encoder, seq_len, token_cache) for reader in readers]
        executor = self._start_executor(workers)
        self._streams: dict[int, list[RowStream]] = {
            stream: [] for stream in range(rank % self._stride, NUM_STREAMS, self._stride)
        }
        for number, (reader, source) in enumerate(zip(readers, packed, strict=True)):
            shuffler = EpochShuffler(reader, seed)
            for stream, of_sources in self._streams.items():
                start = state.streams[stream][number] if state.rows else None
                of_sources.append(RowStream(shuffler, executor, source, self._stop, stream, start))
        # In the order in which they are needed, so that the first rows do not wait for groups of later ones.
        for row in self._row_numbers(state.rows + _ROUNDS_AHEAD * NUM_STREAMS):
            self._stream_of(row).begin_next()

    def _start_executor(self, workers: int) -> Executor:
        executor: Executor
        if workers > 0:
            executor = self._resources.enter_context(worker_pool(workers))
        else:
            executor = ThreadPoolExecutor(1, thread_name_prefix="packing")
            self._resources.callback(clear_shard_cache)
            self._resources.callback(executor.shutdown, cancel_futures=True)
        self._resources.callback(self._stop.set)
        return executor

    @property
    def _stride(self) -> int:
        """The rows of this rank come from streams that are so far apart."""
        return gcd(NUM_STREAMS, self._num_ranks)

    def _row_numbers(self, end: int) -> range:
        """Numbers of the rows up to `end` in the streams that this rank reads."""
        return range(self._rows + (self._rank - self._rows) % self._stride, end, self._stride)

    def _stream_of(self, row: int) -> RowStream:
        return self._streams[row % NUM_STREAMS][self._mixture.dataset_for_row(row)]

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
                packed = self._stream_of(row).next_row()
                if row % self._num_ranks == self._rank:
                    rows.append(packed)
        except BrokenProcessPool as error:
            raise UserError(
                "a process that prepares batches was killed, most likely for lack of memory",
                fix="Run the same command with fewer --workers.",
            ) from error
        self._rows = end
        documents = None
        if self._document_mask:
            lengths = [packed.lengths[row] for packed, row in rows]
            documents = self._tensor([np.repeat(np.arange(len(of_row)), of_row) for of_row in lengths])
        return Batch(
            self._tensor([packed.inputs[row] for packed, row in rows]),
            self._tensor([packed.targets[row] for packed, row in rows]),
            self._state(),
            documents,
        )

    def _tensor(self, rows: list[npt.NDArray[Any]]) -> Tensor:
        tensor = torch.from_numpy(np.stack(rows).astype(np.int64))
        return tensor.pin_memory() if self._pin else tensor

    def _state(self) -> LoaderState:
        streams = {number: tuple(s.state for s in of_sources) for number, of_sources in self._streams.items()}
        return LoaderState(self._rows, streams, self._seq_len, self._seed)

    def close(self) -> None:
        """End the workers and what waits for them. May be called from another thread, and again."""
        self._resources.close()


def reshape_to_seq_len(batch: Batch, length: int) -> Batch:
    """Cut rows into rows of `length`: (B, T) becomes (B * T / length, length), for length schedules.

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
    stream = islice(tokens, None if max_tokens is None else max_tokens + 1)
    per_batch = batch_size * seq_len
    ids = np.fromiter(islice(stream, per_batch + 1), dtype=np.int64)
    while len(ids) > 1:
        inputs, targets = np.full(per_batch, PAD), np.full(per_batch, IGNORE_INDEX)
        inputs[: len(ids) - 1], targets[: len(ids) - 1] = ids[:-1], ids[1:]
        shape = (batch_size, seq_len)
        yield torch.from_numpy(inputs.reshape(shape)), torch.from_numpy(targets.reshape(shape))
        ids = np.fromiter(chain(ids[-1:], islice(stream, per_batch)), dtype=np.int64)


def conversation_batches(
    reader: ShardReader, encoder: ConversationEncoder, *, batch_size: int, max_rows: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Validation conversations in stored order, one a row: (inputs, targets) as `validation_batches`."""
    rows = islice(_validation_texts(reader), max_rows)
    shape = (batch_size, encoder.max_tokens)
    while some := list(islice(rows, batch_size)):
        inputs, targets = np.full(shape, PAD), np.full(shape, IGNORE_INDEX)
        pieces = encoder.encode([RawDocument(text, (0, 0, 0)) for text in some])
        for row, [ids] in enumerate(pieces):
            inputs[row, : len(ids)] = np.where(ids < 0, ~ids, ids)
            targets[row, : len(ids) - 1] = np.where(ids[1:] < 0, IGNORE_INDEX, ids[1:])
        yield torch.from_numpy(inputs), torch.from_numpy(targets)


def _validation_texts(reader: ShardReader) -> Iterator[str]:
    for shard in reader.shards("val"):
        yield from reader.table(shard, ["text"])["text"].to_pylist()


def _validation_documents(reader: ShardReader, tokenizer: Tokenizer, threads: int) -> Iterator[list[int]]:
    if not any(shard.documents for shard in reader.shards("val")):
        raise UserError(
            f"{reader.storage.location} has no val documents", fix="Build a corpus with more code."
        )
    texts = _validation_texts(reader)
    while some := list(islice(texts, _VALIDATION_BATCH)):
        yield from tokenizer.encode_batch(some, prepend="<BOS>", threads=threads)
