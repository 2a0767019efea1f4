"""Groups: every document once per epoch, an order that follows from seed and epoch."""

from collections import Counter
from pathlib import Path

import pytest

from cpplm.core.shards import Shard, ShardReader
from cpplm.dataloader import sampler
from cpplm.dataloader.loader_state import StreamCursor
from cpplm.dataloader.sampler import GROUP_BYTES, DocumentGroup, EpochShuffler, num_groups
from tests.dataloader.numbered import write_numbered

LENGTHS = [[9] * 10, [], [9] * 3, [9] * 7]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardReader:
    monkeypatch.setattr(sampler, "GROUP_BYTES", 9)
    return ShardReader(write_numbered(tmp_path, LENGTHS))


def groups(reader: ShardReader, seed: int, epochs: int) -> list[DocumentGroup]:
    shuffler, cursor, found = EpochShuffler(reader, seed), StreamCursor(), []
    for steps in range(10_000):
        cursor = shuffler.advance(StreamCursor(), steps)
        assert cursor is not None
        if cursor.epoch == epochs:
            return found
        assert shuffler.advance(shuffler.advance(StreamCursor(), steps // 2), steps - steps // 2) == cursor
        found.append(shuffler.group_at(cursor))
    raise AssertionError("epochs do not end")


@pytest.mark.parametrize("seed", [0, 5])
def test_every_document_once_per_epoch(reader: ShardReader, seed: int) -> None:
    found = groups(reader, seed, 3)
    for epoch in range(3):
        documents = Counter((w.number, d) for w in found if w.epoch == epoch for d in w.documents)
        assert documents == Counter((n, d) for n, lengths in enumerate(LENGTHS) for d in range(len(lengths)))
    assert all(group.documents for group in found)
    assert max(len(group.documents) for group in found) <= 4


def test_orders_differ_by_epoch_and_seed_and_repeat(reader: ShardReader) -> None:
    def documents(seed: int, epoch: int) -> list[tuple[int, int]]:
        return [(w.number, d) for w in groups(reader, seed, 2) if w.epoch == epoch for d in w.documents]

    assert documents(0, 0) != sorted(documents(0, 0))
    assert documents(0, 0) == documents(0, 0)
    assert len({tuple(documents(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    seeds = [group.row_seed for group in groups(reader, 0, 2)]
    assert len(set(seeds)) == len(seeds)


def test_the_number_of_groups_follows_from_the_manifest() -> None:
    def shard(documents: int, size: float) -> Shard:
        return Shard("train_00000.parquet", "train", documents, round(size * GROUP_BYTES), "")

    assert [num_groups(shard(100, size)) for size in (0.1, 1.4, 1.6, 50)] == [1, 1, 2, 50]
    assert num_groups(shard(3, 50)) == 3
    assert num_groups(shard(0, 0)) == 0
