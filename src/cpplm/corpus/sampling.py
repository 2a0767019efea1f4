"""A reproducible sample of a corpus's documents, each shard read once."""

from __future__ import annotations

import random
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.shards import SPLITS, Shard, ShardReader


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
    places: list[tuple[Shard, int]] = []
    for split in SPLITS:
        for shard in reader.shards(split):
            table = reader.table(shard, ["project", "kind"])
            columns = zip(table["project"].to_pylist(), table["kind"].to_pylist(), strict=True)
            places += [
                (shard, row)
                for row, (p, k) in enumerate(columns)
                if project in (None, p) and kind in (None, k)
            ]
    if not places:
        raise UserError(
            f"{reader.storage.location} has no such document", fix="Leave out --kind or --project."
        )
    chosen = random.Random(seed).sample(places, min(num, len(places)))  # noqa: S311
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for shard in {shard.name: shard for shard, _ in chosen}.values():
        rows = [row for other, row in chosen if other.name == shard.name]
        for row, document in zip(rows, reader.table(shard).take(rows).to_pylist(), strict=True):
            found[shard.name, row] = {**document, "split": shard.split}
    return [found[shard.name, row] for shard, row in chosen]
