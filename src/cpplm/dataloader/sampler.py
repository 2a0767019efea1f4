"""The endless sequence of document groups: which documents are packed together, epoch after epoch.

A group is some documents of one shard, about `GROUP_BYTES` of text. How many groups a shard has follows from
its entry in the manifest. Shards, and the documents of each, come in an order that depends on the seed and
the epoch and on nothing else; in the first epoch of a set of shards that still grows, the shards come in the
order of their numbers, whenever they arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpplm.core.errors import UserError
from cpplm.core.shards import Shard, ShardReader
from cpplm.dataloader.loader_state import StreamCursor

# About 20 documents or 80,000 tokens: enough that hardly one is cut, few enough to be tokenized in 0.1 s.
GROUP_BYTES = 256 * 1024


@dataclass(frozen=True)
class DocumentGroup:
    """Documents to pack together.

    Attributes:
        epoch: of the data set.
        number: of the shard in stored order.
        shard: the file.
        documents: numbers in the shard's stored order, in the order in which they are read.
        row_seed: shuffles the packed rows.
    """

    epoch: int
    number: int
    shard: Shard
    documents: tuple[int, ...]
    row_seed: tuple[int, ...]


def num_groups(shard: Shard) -> int:
    """Groups of a shard: at least one, at most one per document; an empty shard has none."""
    return min(shard.documents, max(1, round(shard.bytes / GROUP_BYTES)))


class EpochShuffler:
    """The groups of one data set's training shards, shuffled anew in each epoch."""

    def __init__(self, reader: ShardReader, seed: int) -> None:
        self.reader, self._seed = reader, seed

    def advance(self, cursor: StreamCursor, steps: int) -> StreamCursor | None:
        """The group so many steps further on; None if a shard up to there has not come yet.

        Raises:
            UserError: there are no training documents at all.
        """
        epoch, place, group = cursor.epoch, cursor.shard, cursor.group + steps
        while True:
            count = self.reader.num_train_shards()
            if count is not None and place >= count:
                self._require_documents(count)
                epoch, place = epoch + 1, 0
                continue
            shard = self.reader.train_shard(self._number(epoch, place, count))
            if shard is None:
                return None
            if group < num_groups(shard):
                return StreamCursor(epoch, place, group)
            group -= num_groups(shard)
            place += 1

    def group_at(self, cursor: StreamCursor) -> DocumentGroup:
        """The group at a cursor that `advance` gave."""
        epoch, place, group = cursor
        number = self._number(epoch, place, self.reader.num_train_shards())
        shard = self.reader.train_shard(number)
        assert shard is not None  # noqa: S101  (`advance` has seen it)
        documents = _shuffle(shard.documents, (self._seed, epoch, 1 + number))
        begin, end = (g * shard.documents // num_groups(shard) for g in (group, group + 1))
        row_seed = (self._seed, epoch, 1 + number, 1 + group)
        return DocumentGroup(epoch, number, shard, tuple(documents[begin:end]), row_seed)

    def _number(self, epoch: int, place: int, count: int | None) -> int:
        """The number of the shard at that place of the epoch."""
        if count is None or (epoch == 0 and self.reader.first_epoch_in_order):
            return place
        return _shuffle(count, (self._seed, epoch, 0))[place]

    def _require_documents(self, count: int) -> None:
        shards = (self.reader.train_shard(number) for number in range(count))
        if not any(shard and shard.documents for shard in shards):
            raise UserError(
                f"{self.reader.storage.location} has no train documents", fix="Build a corpus with more code."
            )


def _shuffle(length: int, key: tuple[int, ...]) -> list[int]:
    return np.random.default_rng(key).permutation(length).tolist()
