"""The overlap of validation and training text: figures for the manifest and the pages of runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpplm.core.shards import ROWS_PER_GROUP, SPLITS, Shard, open_shard, read_shard
from cpplm.core.storage import Storage

# Shorter lines (`return result;`) repeat in any two projects.
MIN_LINE_BYTES = 40


def train_val_overlap(storage: Storage, shards: list[Shard]) -> dict[str, Any]:
    """Projects that are in both splits, and the share of long validation lines that training text has, too.

    Lines are compared without the white space around them. Memory holds some rows and the distinct long lines
    of the validation text.
    """
    projects: dict[str, set[str]] = {split: set() for split in SPLITS}
    sizes: dict[str, int] = {}
    for shard in shards:
        projects[shard.split].update(read_shard(storage, shard, ["project"])["project"].to_pylist())
        if shard.split == "val":
            for line in _long_lines(storage, shard):
                sizes[line] = sizes.get(line, 0) + len(line.encode())
    repeated: set[str] = set()
    for shard in shards:
        if shard.split == "train":
            repeated.update(line for line in _long_lines(storage, shard) if line in sizes)
    repeated_bytes, total = sum(sizes[line] for line in repeated), sum(sizes.values())
    return {
        "projects": len(projects["val"]),
        "projects_in_train": len(projects["val"] & projects["train"]),
        "min_line_bytes": MIN_LINE_BYTES,
        "long_line_bytes": total,
        "repeated_bytes": repeated_bytes,
        "repeated_share": round(repeated_bytes / max(1, total), 4),
    }


def _long_lines(storage: Storage, shard: Shard) -> Iterator[str]:
    for batch in open_shard(storage, shard).iter_batches(ROWS_PER_GROUP, columns=["text"]):
        for text in batch["text"].to_pylist():
            for line in text.split("\n"):
                stripped = line.strip()
                if len(stripped) >= MIN_LINE_BYTES or len(stripped.encode()) >= MIN_LINE_BYTES:
                    yield stripped
