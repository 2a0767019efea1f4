"""Count the words of a corpus: the pieces that the pretokenizer cuts, before any merge.

Batches of text are counted in worker processes. A word that only one or two projects have counts less: it is
a name of theirs, and its place in the vocabulary is better given to what every project writes. The result is
the same for any order of the documents, any batches and any number of workers.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.shards import Shard, ShardReader
from cpplm.core.workers import worker_pool
from cpplm.tokenizer.pretokenizer import split_text

# What an occurrence counts, in twentieths, by the number of projects that have the word: 1, 2, 3 and more.
WEIGHTS = np.array([7, 14, 20], dtype=np.int64)
# With fewer projects than this, that a word is in one of them says nothing.
_MIN_PROJECTS = 4
# Rarer words are left out when there are more; bounds the memory of merging, about 20 bytes per byte of a
# word.
MAX_WORDS = 4_000_000


@dataclass(frozen=True)
class ShardBatch:
    """The documents of one shard."""

    location: str
    shard: Shard

    @property
    def size(self) -> int:
        """Bytes of text."""
        return self.shard.bytes

    def texts(self) -> Iterator[tuple[str, bytes]]:
        """Every document of the shard, as (project, bytes)."""
        table = ShardReader(self.location).table(self.shard, ["project", "text"])
        texts = table["text"].cast(pa.binary()) if pa.types.is_string(table["text"].type) else table["text"]
        yield from zip(table["project"].to_pylist(), texts.to_pylist(), strict=True)


@dataclass(frozen=True)
class FileBatch:
    """Some files of one project; `size` counts bytes."""

    project: str
    paths: tuple[Path, ...]
    size: int

    def texts(self) -> Iterator[tuple[str, bytes]]:
        """Every file, with the line ends that documents have.

        Raises:
            UserError: a file is gone or cannot be read.
        """
        for path in self.paths:
            try:
                yield self.project, path.read_bytes().replace(b"\r\n", b"\n")
            except OSError as error:
                raise UserError(f"cannot read {path}: {error}", fix="Run the command again.") from error


TextBatch = ShardBatch | FileBatch
"""Some of the texts, read where they are counted; `size` is for the progress bar."""


@dataclass(frozen=True)
class WordCounts:
    """Distinct words, the most frequent first, equal ones by their bytes.

    Attributes:
        words: the bytes of each.
        weights: how often each counts, in twentieths, shape (number of words,).
        num_bytes: of all texts that were counted.
        num_projects: that they come from.
    """

    words: list[bytes]
    weights: npt.NDArray[np.int64]
    num_bytes: int
    num_projects: int


def count_words(
    batches: Sequence[TextBatch], pattern: str, *, workers: int, share: float = 1.0
) -> WordCounts:
    """Count the pieces into which `pattern` cuts the texts.

    Args:
        batches: the texts.
        pattern: see `cpplm.tokenizer.pretokenizer`.
        workers: processes; 1 counts in this one.
        share: of the texts to count, from 0 to 1; which ones depends on their contents alone.

    Raises:
        UserError: the texts have no word.
    """
    tables, num_bytes = [], 0
    with progress_bar(sum(batch.size for batch in batches), "counting words", "B", unit_scale=True) as bar:
        for batch, (table, size) in zip(
            batches, _count_batches(batches, pattern, workers, share), strict=True
        ):
            tables.append(table)
            num_bytes += size
            bar.update(batch.size)
    if not num_bytes:
        raise UserError("there is no text to learn a tokenizer from", fix="Use a corpus with more code.")
    by_project = pa.concat_tables(tables).group_by(["word", "project"]).aggregate([("count", "sum")])
    num_projects = len(pc.unique(by_project["project"]))
    total = by_project.group_by("word").aggregate([("count_sum", "sum"), ("project", "count")])
    counts = total["count_sum_sum"].to_numpy()
    projects = total["project_count"].to_numpy()
    if num_projects >= _MIN_PROJECTS:
        weights = counts * WEIGHTS[np.minimum(projects, len(WEIGHTS)) - 1]
    else:
        weights = counts * WEIGHTS[-1]
    total = pa.table({"word": total["word"], "weight": weights})
    total = total.sort_by([("weight", "descending"), ("word", "ascending")]).slice(0, MAX_WORDS)
    return WordCounts(total["word"].to_pylist(), total["weight"].to_numpy(), num_bytes, num_projects)


def _count_batches(
    batches: Sequence[TextBatch], pattern: str, workers: int, share: float
) -> Iterator[tuple[pa.Table, int]]:
    if workers == 1 or len(batches) == 1:
        yield from (_count_batch(batch, pattern, share) for batch in batches)
        return
    with worker_pool(workers) as pool:
        n = len(batches)
        yield from pool.map(_count_batch, batches, [pattern] * n, [share] * n)


def _count_batch(batch: TextBatch, pattern: str, share: float) -> tuple[pa.Table, int]:
    """The words of one batch by project, and the bytes that were counted."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    num_bytes = 0
    for project, text in batch.texts():
        if share < 1 and zlib.crc32(text) >= share * 2**32:
            continue
        counts[project].update(split_text(pattern, text))
        num_bytes += len(text)
    tables = [
        pa.table(
            {
                "word": pa.array([word.encode("utf-8", "surrogateescape") for word in words], pa.binary()),
                "project": pa.array([project] * len(words), pa.string()),
                "count": pa.array(list(words.values()), pa.int64()),
            }
        )
        for project, words in counts.items()
    ]
    schema = pa.schema([("word", pa.binary()), ("project", pa.string()), ("count", pa.int64())])
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)]), num_bytes
