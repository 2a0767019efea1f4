"""The endless sequence of windows: which documents are read together, epoch after epoch.

A window is some documents of one shard that are packed together, about `WINDOW_BYTES` of text. How many
windows a shard has follows from its entry in the manifest. Shards, and the documents of each, come in an
order that depends on the seed and the epoch and on nothing else; in the first epoch of a set of shards that
still grows, the shards come in the order of their numbers, whenever they arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpplm.core.errors import UserError
from cpplm.core.shards import Shard, ShardReader
from cpplm.dataloader.loader_state import Position

# About 20 documents or 80,000 tokens: enough that hardly one is cut, few enough to be tokenised in 0.1 s.
WINDOW_BYTES = 256 * 1024


@dataclass(frozen=True)
class Window:
    """Documents to pack together.

    Attributes:
        epoch: of the data set.
        number: of the shard in stored order.
        shard: the file.
        documents: numbers in the shard's stored order, in the order in which they are read.
        row_seed: shuffles the packed rows; None leaves them.
    """

    epoch: int
    number: int
    shard: Shard
    documents: tuple[int, ...]
    row_seed: tuple[int, ...] | None


def num_windows(shard: Shard) -> int:
    """At least one, at most one per document; an empty shard has none."""
    return min(shard.documents, max(1, round(shard.bytes / WINDOW_BYTES)))


class WindowOrder:
    """The windows of one data set's training shards."""

    def __init__(self, reader: ShardReader, seed: int | None) -> None:
        """With `seed` None everything stays in its stored order."""
        self.reader, self._seed = reader, seed

    def forward(self, position: Position, steps: int) -> Position | None:
        """The window so many steps further on; None if a shard up to there has not come yet.

        Raises:
            UserError: there are no training documents at all.
        """
        epoch, place, window = position.epoch, position.shard, position.window + steps
        while True:
            count = self.reader.num_train_shards()
            if count is not None and place >= count:
                self._require_documents(count)
                epoch, place = epoch + 1, 0
                continue
            shard = self.reader.train_shard(self._number(epoch, place, count))
            if shard is None:
                return None
            if window < num_windows(shard):
                return Position(epoch, place, window)
            window -= num_windows(shard)
            place += 1

    def window(self, position: Position) -> Window:
        """What to read at a position that `forward` gave."""
        epoch, place, window = position
        number = self._number(epoch, place, self.reader.num_train_shards())
        shard = self.reader.train_shard(number)
        assert shard is not None  # noqa: S101  (`forward` has seen it)
        documents = _shuffled(shard.documents, self._key(epoch, 1 + number))
        begin, end = (w * shard.documents // num_windows(shard) for w in (window, window + 1))
        row_seed = self._key(epoch, 1 + number, 1 + window)
        return Window(epoch, number, shard, tuple(documents[begin:end]), row_seed)

    def _key(self, *numbers: int) -> tuple[int, ...] | None:
        return None if self._seed is None else (self._seed, *numbers)

    def _number(self, epoch: int, place: int, count: int | None) -> int:
        """The number of the shard at that place of the epoch."""
        if count is None or (epoch == 0 and self.reader.first_epoch_in_order):
            return place
        return _shuffled(count, self._key(epoch, 0))[place]

    def _require_documents(self, count: int) -> None:
        shards = (self.reader.train_shard(number) for number in range(count))
        if not any(shard and shard.documents for shard in shards):
            raise UserError(
                f"{self.reader.storage.location} has no train documents", fix="Build a corpus with more code."
            )


def _shuffled(length: int, key: tuple[int, ...] | None) -> list[int]:
    if key is None:
        return list(range(length))
    return [int(i) for i in np.random.default_rng(key).permutation(length)]
