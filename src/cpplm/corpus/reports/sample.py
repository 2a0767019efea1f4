"""A reproducible sample of a corpus's documents; no more than a shard is in memory at a time."""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc

from cpplm.core.errors import UserError
from cpplm.core.shards import Shard, ShardReader


def sample_documents(
    reader: ShardReader, *, project: str | None, kind: str | None, num: int, seed: int
) -> list[dict[str, Any]]:
    """Up to `num` documents with all columns and their split, in an order that depends on the seed alone.

    Raises:
        UserError: not a corpus of ours, no such project, or no document of that project and kind.
    """
    projects = reader.manifest.get("projects")
    if projects is None:
        raise UserError(
            f"{reader.storage.location} was not written by 'cpplm corpus build'",
            fix="Name the folder that it wrote.",
        )
    if project is not None and project not in projects:
        raise UserError(
            f"{reader.storage.location} has no project {project!r}",
            fix=f"Projects: {', '.join(sorted(projects))}.",
        )
    kinds = {name for entry in projects.values() for name in entry["kinds"]}
    if kind is not None and kind not in kinds:
        raise UserError(
            f"{reader.storage.location} has no documents of kind {kind!r}",
            fix=f"Kinds: {', '.join(sorted(kinds))}.",
        )
    shards = reader.shards()
    rows = [_matching(reader, shard, project, kind) for shard in shards]
    total = sum(map(len, rows))
    if not total:
        raise UserError(
            f"{reader.storage.location} has no such document", fix="Leave out --kind or --project."
        )
    numbers = random.Random(seed).sample(range(total), min(num, total))  # noqa: S311
    rows_by_number: dict[int, dict[str, Any]] = {}
    start = 0
    for shard, matching in zip(shards, rows, strict=True):
        here = [number for number in numbers if start <= number < start + len(matching)]
        if here:
            table = reader.table(shard).take([matching[number - start] for number in here])
            rows_by_number |= {
                number: {**row, "split": shard.split}
                for number, row in zip(here, table.to_pylist(), strict=True)
            }
        start += len(matching)
    return [rows_by_number[number] for number in numbers]


def _matching(reader: ShardReader, shard: Shard, project: str | None, kind: str | None) -> Sequence[int]:
    """The rows of a shard that are of this project and kind."""
    conditions = [
        (name, value) for name, value in (("project", project), ("kind", kind)) if value is not None
    ]
    if not conditions:
        return range(shard.documents)
    table = reader.table(shard, [name for name, _ in conditions])
    columns = [pc.equal(table[name], value) for name, value in conditions]
    return array("I", pc.indices_nonzero(functools.reduce(pc.and_, columns)).to_pylist())
