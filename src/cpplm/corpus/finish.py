"""Parts to shards: choose the split, order rows by their hash, write shards of bounded size.

Two passes, so that memory holds one shard at a time: the first reads only hashes and lengths and decides
where each row goes, the second distributes the rows, and each shard is then sorted and written.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.shards import SPLITS, Shard, Split, read_table, write_shard_table, write_table
from cpplm.core.storage import Storage, sha256

SHARD_BYTES = 64_000_000


@dataclass(frozen=True)
class _Assignment:
    """Which split a group (project or unit) is in, and the first hash of each shard of a split."""

    by: str
    val: frozenset[tuple[str, str]]
    starts: dict[Split, list[str]]

    def split_of(self, project: str, unit: str) -> Split:
        group = (project, "") if self.by == "project" else (project, unit)
        return "val" if group in self.val else "train"


def write_splits(
    storage: Storage, scratch: str, parts: list[str], val_fraction: float
) -> tuple[list[Shard], str]:
    """Write all shards; returns them and what the split was made by ("project" or "unit").

    Raises:
        UserError: there is too little code for two splits.
    """
    assignment = _assign(storage, parts, val_fraction)
    buckets = _distribute(storage, scratch, parts, assignment)
    shards = []
    with progress_bar(len(buckets), "shards", "shard") as bar:
        for split in SPLITS:
            for number in range(len(assignment.starts[split])):
                tables = [read_table(storage, name) for name in buckets[split, number]]
                table = pa.concat_tables(tables).sort_by("id").drop_columns(["unit"])
                shards.append(write_shard_table(storage, split, number, table))
                bar.update(1)
    return shards, assignment.by


def _assign(storage: Storage, parts: list[str], val_fraction: float) -> _Assignment:
    """Read hashes and lengths only, and decide."""
    rows: list[tuple[str, str, str, int]] = []
    for name in parts:
        table = read_table(storage, name, ["id", "project", "unit", "text"])
        sizes = pc.binary_length(table["text"]).to_pylist()
        rows += zip(
            table["id"].to_pylist(),
            table["project"].to_pylist(),
            table["unit"].to_pylist(),
            sizes,
            strict=True,
        )
    by = "project" if len({row[1] for row in rows}) > 1 else "unit"
    groups: dict[tuple[str, str], int] = defaultdict(int)
    for _, project, unit, size in rows:
        groups[(project, "") if by == "project" else (project, unit)] += size
    val = choose_val(groups, val_fraction)
    starts: dict[Split, list[str]] = {}
    for split in SPLITS:
        starts[split] = []
        filled = SHARD_BYTES
        for identifier, project, unit, size in sorted(rows):
            group = (project, "") if by == "project" else (project, unit)
            if (group in val) != (split == "val"):
                continue
            if filled >= SHARD_BYTES:
                starts[split].append(identifier)
                filled = 0
            filled += size
    return _Assignment(by, val, starts)


def choose_val(groups: dict[tuple[str, str], int], fraction: float) -> frozenset[tuple[str, str]]:
    """The groups to hold out: in the order of a stable hash, those that still fit; at least one, never all.

    Raises:
        UserError: there is only one group.
    """
    if len(groups) < 2:
        raise UserError(
            "the sources hold too little code for a training and a validation split",
            fix="Add projects, or point --projects at a folder with at least two C++ files.",
        )
    wanted = fraction * sum(groups.values())
    ordered = sorted(groups, key=lambda group: sha256("\0".join(group).encode("utf-8", "replace")))
    val: set[tuple[str, str]] = set()
    held = 0
    for group in ordered:
        if held + groups[group] <= wanted:
            val.add(group)
            held += groups[group]
    if not val:
        val.add(min(ordered, key=lambda group: groups[group]))
    return frozenset(val)


def _distribute(
    storage: Storage, scratch: str, parts: list[str], assignment: _Assignment
) -> dict[tuple[Split, int], list[str]]:
    """Each row to the bucket of its shard; returns the bucket files of each shard."""
    buckets: dict[tuple[Split, int], list[str]] = defaultdict(list)
    for part_number, name in enumerate(parts):
        table = read_table(storage, name)
        places: dict[tuple[Split, int], list[int]] = defaultdict(list)
        columns = (table["id"].to_pylist(), table["project"].to_pylist(), table["unit"].to_pylist())
        for row, (identifier, project, unit) in enumerate(zip(*columns, strict=True)):
            split = assignment.split_of(project, unit)
            places[split, bisect.bisect_right(assignment.starts[split], identifier) - 1].append(row)
        for (split, number), indices in sorted(places.items()):
            bucket = f"{scratch}shuffle/{split}_{number:05d}_{part_number:06d}.parquet"
            write_table(storage, bucket, table.take(indices))
            buckets[split, number].append(bucket)
    return buckets
