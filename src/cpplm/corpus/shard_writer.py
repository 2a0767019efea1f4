"""Parts to shards: choose the split, mix projects by the hash of each row, write shards of bounded size.

Two passes, so that memory holds one piece of a shard at a time: the first sums bytes by project, the second
puts each row into the bucket of its piece; buckets are then sorted and written. Which shard a row is in
depends on its id alone; ids are SHA-256, so shards come out equally large. Rows of an earlier corpus keep
their split.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.shards import (
    SPLITS,
    Shard,
    ShardReader,
    Split,
    read_table,
    text_bytes,
    write_table,
    write_tables,
)
from cpplm.core.storage import Storage, sha256
from cpplm.core.workers import batched_by_size
from cpplm.corpus.settings import SplitBy

SHARD_BYTES = 64_000_000
# Each shard is put together from so many ranges of ids.
_PIECES = 4
# Text in memory while rows are spread over buckets.
FLUSH_BYTES = 16_000_000
# Columns of parts that only decide where a row goes.
PLACEMENT_COLUMNS = ("unit",)
SplitGroup = tuple[str, str]
Bucket = tuple[Split, int]


class _Assignment(NamedTuple):
    """The groups (projects, or units of one) that are held out, and the number of shards of each split."""

    by: str
    val: frozenset[SplitGroup]
    shards: Mapping[Split, int]

    def split_of(self, project: str, unit: str) -> Split:
        """The split of a new row."""
        return "val" if (project, "" if self.by == "project" else unit) in self.val else "train"

    def bucket(self, split: Split, identifier: str) -> Bucket:
        """The piece of a shard that any row is in: ranges of the first 32 bits of its id."""
        return split, int(identifier[:8], 16) * self.shards[split] * _PIECES >> 32


def write_splits(
    storage: Storage,
    scratch: str,
    parts: list[str],
    val_fraction: float,
    split_by: SplitBy = "auto",
    earlier: ShardReader | None = None,
) -> tuple[list[Shard], str]:
    """Write all shards; returns them and what the split was made by ("project" or "unit").

    Args:
        storage: where the parts are and the shards go.
        scratch: prefix of the names of files in between.
        parts: files of new rows.
        val_fraction: share of the bytes to hold out.
        split_by: what is held out; see `CorpusSettings.val_split`.
        earlier: the corpus in `storage` whose rows are to be kept. Its shards are not touched: the new ones
            have other names.

    Raises:
        UserError: there is too little code for two splits, or a shard of `earlier` is damaged.
    """
    assignment = _assign(storage, parts, val_fraction, split_by, earlier)
    buckets = _bucket_rows(storage, scratch, _rows(storage, parts, assignment, earlier), assignment)
    shards = []
    with progress_bar(len(buckets), "shards", "piece") as bar:
        for split in SPLITS:
            filled = sorted(bucket for bucket in buckets if bucket[0] == split)
            by_shard = itertools.groupby(filled, key=lambda bucket: bucket[1] // _PIECES)
            for number, (_, pieces) in enumerate(by_shard, _first_number(earlier)):
                names = [buckets[bucket] for bucket in pieces]
                shards.append(_write_shard(storage, split, number, names))
                bar.update(len(names))
    return shards, earlier.manifest["split_by"] if earlier else assignment.by


def _write_shard(storage: Storage, split: Split, number: int, pieces: list[list[str]]) -> Shard:
    """A shard of pieces that follow each other, each given by its files."""
    rows = size = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal rows, size
        for names in pieces:
            table = pa.concat_tables(read_table(storage, name) for name in names).sort_by("id")
            rows += len(table)
            size += text_bytes(table)
            yield table

    name = f"{split}_{number:05d}.parquet"
    data = write_tables(storage, name, tables())
    return Shard(name, split, rows, size, sha256(data), len(data))


def _first_number(earlier: ShardReader | None) -> int:
    """The first number that no shard of `earlier` has."""
    if earlier is None:
        return 0
    names = [shard.name for shard in earlier.shards()]
    return 1 + max(int(name.removesuffix(".parquet").split("_")[1]) for name in names)


def _assign(
    storage: Storage, parts: list[str], val_fraction: float, split_by: SplitBy, earlier: ShardReader | None
) -> _Assignment:
    """Decide by the bytes of each project or of each unit."""
    projects: dict[SplitGroup, int] = defaultdict(int)
    units: dict[SplitGroup, int] = defaultdict(int)
    for name in parts:
        table = read_table(storage, name, ["project", "unit", "text"])
        table = table.append_column("bytes", pc.binary_length(table["text"])).drop_columns(["text"])
        for row in table.group_by(["project", "unit"]).aggregate([("bytes", "sum")]).to_pylist():
            projects[row["project"], ""] += row["bytes_sum"]
            units[row["project"], row["unit"]] += row["bytes_sum"]
        if split_by != "unit" and len(projects) > 1:
            units.clear()
    split_bytes = {split: sum(s.bytes for s in earlier.shards(split)) if earlier else 0 for split in SPLITS}
    by: SplitBy = split_by
    if by == "auto":
        by = "project" if earlier or len(projects) > 1 else "unit"
    groups = units if by == "unit" else projects
    val = choose_validation_groups(
        groups, val_fraction, train_bytes=split_bytes["train"], val_bytes=split_bytes["val"]
    )
    for group, size in groups.items():
        split_bytes["val" if group in val else "train"] += size
    return _Assignment(by, val, {split: max(1, -(-split_bytes[split] // SHARD_BYTES)) for split in SPLITS})


def choose_validation_groups(
    groups: dict[SplitGroup, int], fraction: float, *, train_bytes: int = 0, val_bytes: int = 0
) -> frozenset[SplitGroup]:
    """The groups to hold out: in the order of a stable hash, those that still fit.

    `train_bytes` and `val_bytes` are there already. Where they are not, at least one group is held out, and
    never all of them.

    Raises:
        UserError: nothing is there already and there is only one group.
    """
    if not val_bytes and len(groups) < 2:
        raise UserError(
            "the sources hold too little code for a training and a validation split",
            fix="Add projects, or name a folder with at least two C++ files.",
        )
    target_bytes = fraction * (sum(groups.values()) + train_bytes + val_bytes)
    ordered = sorted(groups, key=lambda group: sha256("\0".join(group).encode("utf-8", "replace")))
    validation: set[SplitGroup] = set()
    for group in ordered:
        if val_bytes + groups[group] <= target_bytes:
            validation.add(group)
            val_bytes += groups[group]
    if not val_bytes:
        validation.add(min(ordered, key=lambda group: groups[group]))
    return frozenset(validation)


def _rows(
    storage: Storage, parts: list[str], assignment: _Assignment, earlier: ShardReader | None
) -> Iterator[tuple[pa.Table, list[Split]]]:
    """Every row with its split: those of the earlier corpus, then the new ones."""
    if earlier is not None:
        for shard in earlier.shards():
            yield earlier.table(shard), [shard.split] * shard.documents
    for name in parts:
        table = read_table(storage, name)
        groups = zip(table["project"].to_pylist(), table["unit"].to_pylist(), strict=True)
        splits = [assignment.split_of(project, unit) for project, unit in groups]
        yield table.drop_columns(list(PLACEMENT_COLUMNS)), splits


def _bucket_rows(
    storage: Storage, scratch: str, rows: Iterator[tuple[pa.Table, list[Split]]], assignment: _Assignment
) -> dict[Bucket, list[str]]:
    """Each row to the bucket of its shard; returns the files of each bucket."""
    buckets: dict[Bucket, list[str]] = defaultdict(list)
    for flush, batch in enumerate(batched_by_size(rows, lambda each: each[0].nbytes, FLUSH_BYTES)):
        table = pa.concat_tables([table for table, _ in batch])
        splits = [split for _, part in batch for split in part]
        row_indices: dict[Bucket, list[int]] = defaultdict(list)
        for row, (split, identifier) in enumerate(zip(splits, table["id"].to_pylist(), strict=True)):
            row_indices[assignment.bucket(split, identifier)].append(row)
        for bucket, indices in sorted(row_indices.items()):
            name = f"{scratch}{bucket[0]}_{bucket[1]:05d}_{flush:06d}.parquet"
            write_table(storage, name, table.take(indices))
            buckets[bucket].append(name)
        del batch, table  # before the next rows are read
    return buckets
