"""The endless stream of tokenised documents: every document once per epoch, in an order shuffled anew."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader, Split
from cpplm.tokenizer.tokenizer import Tokenizer

TOKENIZE_AT_ONCE = 64  # documents; enough to keep the encoder's threads busy
SHARDS_IN_MEMORY = 2


@dataclass(frozen=True)
class Position:
    """A document's place in the stream: shard and document count in the epoch's order, not the stored one."""

    epoch: int = 0
    shard: int = 0
    document: int = 0


@dataclass(frozen=True)
class Document:
    """Token ids, <BOS> first."""

    position: Position
    ids: npt.NDArray[np.int64]


class DocumentStream:
    """Documents of one split. The order depends on the seed, the epoch and the shards, on nothing else."""

    def __init__(
        self, reader: ShardReader, tokenizer: Tokenizer, split: Split, *, seed: int | None, threads: int
    ) -> None:
        """Open a stream.

        Args:
            reader: the corpus.
            tokenizer: encodes the documents.
            split: "train" or "val".
            seed: of the order; None keeps the stored order.
            threads: of the encoder.

        Raises:
            UserError: the split has no documents.
        """
        self._reader, self._tokenizer, self._seed, self._threads = reader, tokenizer, seed, threads
        self._shards = reader.shards(split)
        self.num_documents = sum(shard.documents for shard in self._shards)
        if self.num_documents == 0:
            raise UserError(
                f"{reader.storage.location} has no {split} documents", fix="Build a corpus with more code."
            )
        self._texts = lru_cache(maxsize=SHARDS_IN_MEMORY)(self._shuffled_texts)

    def read_from(self, start: Position) -> Iterator[Document]:
        """All documents from `start` on, epoch after epoch."""
        for epoch in itertools.count(start.epoch):
            for shard in range(start.shard if epoch == start.epoch else 0, len(self._shards)):
                texts = self._texts(epoch, shard)
                here = epoch == start.epoch and shard == start.shard
                for begin in range(start.document if here else 0, len(texts), TOKENIZE_AT_ONCE):
                    rows = self._encode(texts[begin : begin + TOKENIZE_AT_ONCE])
                    for number, ids in enumerate(rows, begin):
                        yield Document(Position(epoch, shard, number), ids)

    def read(self, position: Position) -> Document:
        """One document."""
        texts = self._texts(position.epoch, position.shard)
        return Document(position, self._encode([texts[position.document]])[0])

    def _encode(self, texts: list[str]) -> list[npt.NDArray[np.int64]]:
        rows = self._tokenizer.encode_batch(texts, prepend="<BOS>", threads=self._threads)
        return [np.array(row, dtype=np.int64) for row in rows]

    def _shuffled_texts(self, epoch: int, position: int) -> list[str]:
        index = self._order(len(self._shards), epoch, 0)[position]
        texts = self._reader.table(self._shards[index], ["text"])["text"].to_pylist()
        return [texts[i] for i in self._order(len(texts), epoch, 1 + index)]

    def _order(self, length: int, *key: int) -> list[int]:
        if self._seed is None:
            return list(range(length))
        return [int(i) for i in np.random.default_rng([self._seed, *key]).permutation(length)]
