"""`cpplm corpus inspect`: the figures of a corpus and a few of its documents."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from cpplm.core.errors import UserError
from cpplm.core.shards import SPLITS, ShardReader


@dataclass(frozen=True)
class InspectSettings:
    """Which documents to show."""

    corpus: tyro.conf.Positional[str]
    """Folder or bucket URL of a corpus."""
    project: str | None = None
    """Only documents of this project."""
    kind: Literal["compilable", "file", "chunk"] | None = None
    """Only documents of this kind."""
    num: int = 1
    """How many documents to show."""
    seed: int = 0
    """Which ones: another seed shows others."""

    def __post_init__(self) -> None:
        if self.num < 0:
            raise UserError(f"--num {self.num} is negative", fix="Use 0 to see the figures only.")


def inspect(settings: InspectSettings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The manifest and the chosen documents, each with its columns and its split.

    Raises:
        UserError: no corpus there, or no document of that project and kind.
    """
    reader = ShardReader(settings.corpus)
    projects = reader.manifest.get("projects")
    if projects is None:
        raise UserError(
            f"{settings.corpus} was not written by 'cpplm corpus build'", fix="Name the folder that it wrote."
        )
    if settings.project is not None and settings.project not in projects:
        raise UserError(
            f"{settings.corpus} has no project {settings.project!r}",
            fix=f"Projects: {', '.join(sorted(projects))}.",
        )
    places = []
    for split in SPLITS:
        for shard in reader.shards(split):
            table = reader.table(shard, ["project", "kind"])
            columns = zip(table["project"].to_pylist(), table["kind"].to_pylist(), strict=True)
            for row, (project, kind) in enumerate(columns):
                if settings.project in (None, project) and settings.kind in (None, kind):
                    places.append((shard, row))
    if not places:
        raise UserError(f"{settings.corpus} has no such document", fix="Leave out --kind or --project.")
    chosen = random.Random(settings.seed).sample(range(len(places)), min(settings.num, len(places)))  # noqa: S311
    documents = []
    for shard, row in (places[index] for index in chosen):
        documents.append({**reader.table(shard).slice(row, 1).to_pylist()[0], "split": shard.split})
    return reader.manifest, documents
