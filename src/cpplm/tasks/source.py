"""What tasks are made of: the documents of a corpus by split, and the folders of its projects."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from cpplm.core.shards import SPLITS, ShardReader, Split
from cpplm.core.storage import sha256
from cpplm.corpus.compile.compiler import main_source
from cpplm.cpp.parser import Language
from cpplm.tasks.grader import Grader

T = TypeVar("T")
STANDALONE_KINDS = ("compilable", "inlined")
"""Kinds of documents that are made to compile on their own."""
MAX_DOCUMENT_CHARS = 40_000
"""Longer ones take long to compile, and there are enough others."""
_BATCH = 64  # documents that are compiled before some are used: a multiple of any number of cores
_COLUMNS = ["text", "id", "project", "files", "license", "kind", "docstrings"]


@dataclass(frozen=True)
class SourceDocument:
    """A document of a corpus."""

    text: str
    id: str
    project: str
    files: tuple[str, ...]
    license: str
    standard: str = ""
    """Of C++, that it compiles under."""

    @property
    def language(self) -> Language:
        """C or C++, by the file that it stands for."""
        return "c" if main_source(self.files).endswith(".c") else "c++"


class TaskSource:
    """A corpus and project folders, read in an order that the seed alone decides."""

    def __init__(self, corpus: str, projects: Mapping[str, Path], grader: Grader, *, seed: int = 0) -> None:
        """Open the corpus; "" for none.

        Raises:
            UserError: there is none, or it is unfinished.
        """
        self._reader = ShardReader(corpus) if corpus else None
        self.projects, self.grader, self.seed = dict(projects), grader, seed

    def rng(self, name: str) -> random.Random:
        """Random numbers that depend on the seed and a name."""
        return random.Random(f"{self.seed} {name}")  # noqa: S311  (no secret)

    def rank(self, name: str) -> str:
        """Sorts names in an order that depends on the seed alone."""
        return sha256(f"{self.seed} {name}".encode())

    def documents(self, split: Split, columns: Sequence[str] = _COLUMNS) -> list[dict[str, Any]]:
        """The rows of a split."""
        reader = self._reader
        if reader is None:
            return []
        return [
            row for shard in reader.shards(split) for row in reader.table(shard, list(columns)).to_pylist()
        ]

    def standalone(self, split: Split) -> list[SourceDocument]:
        """The documents of a split that may compile, projects in turn so that none prevails.

        Those that are made to, or the plain files of a corpus that has no others.
        """
        rows = [row for row in self.documents(split) if len(row["text"]) <= MAX_DOCUMENT_CHARS]
        rows = [row for row in rows if row["kind"] in STANDALONE_KINDS] or rows
        rows.sort(key=lambda row: self.rank(row["id"]))
        turn: dict[str, int] = {}
        for row in rows:
            turn[row["project"]] = row["turn"] = turn.get(row["project"], 0) + 1
        rows.sort(key=lambda row: row["turn"])  # stable
        return [
            SourceDocument(row["text"], row["id"], row["project"], tuple(row["files"]), row["license"])
            for row in rows
        ]

    def compiling(self, split: Split) -> Iterator[SourceDocument]:
        """Those of them that do compile."""
        documents = self.standalone(split)
        for start in range(0, len(documents), _BATCH):
            batch = documents[start : start + _BATCH]
            found = self.grader.compile(
                [(each.text, each.language, "") for each in batch], "compile documents"
            )
            for document, verdict in zip(batch, found, strict=True):
                if verdict.compiles:
                    yield replace(document, standard=verdict.standard)

    @cached_property
    def _splits(self) -> dict[tuple[str, str], Split]:
        splits: dict[tuple[str, str], Split] = {}
        for split in SPLITS:
            for row in self.documents(split, ["project", "files", "sources"]):
                own = {each["file"] for each in row["sources"] if not each["reason"]}
                splits |= {(row["project"], file): split for file in own or row["files"]}
        return splits

    def split_of(self, project: str, file: str) -> Split | None:
        """The split of the documents that a file was made into; None if it made none."""
        return self._splits.get((project, file))


def round_robin(sources: Iterable[Iterator[T]], count: int) -> Iterator[T]:
    """Up to `count` values, one of each source in turn."""
    rounds = zip_longest(*sources)
    return islice((value for values in rounds for value in values if value is not None), count)


def excerpt(text: str, start: int, end: int, before: int, after: int) -> tuple[str, str]:
    """Whole lines before `start` and after `end` of a text, of about so many characters."""
    first = text.rfind("\n", 0, max(0, start - before)) + 1 if start > before else 0
    last = text.find("\n", min(len(text), end + after))
    return text[first:start], text[end : last + 1 if last >= 0 else len(text)]
