"""`cpplm corpus inspect`: the figures of a corpus and a few of its documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import tyro

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.corpus.sampling import sample_documents


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
    documents = sample_documents(
        reader, project=settings.project, kind=settings.kind, num=settings.num, seed=settings.seed
    )
    return reader.manifest, documents
