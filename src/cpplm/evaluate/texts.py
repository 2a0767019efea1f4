"""Texts to measure a model on: a corpus of ours, any parquet file with texts, or C++ files as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.shards import COMPLETE, ShardReader
from cpplm.core.storage import Storage, is_bucket, sha256
from cpplm.core.text import pluralize
from cpplm.cpp.file_suffixes import FRAGMENT_SUFFIXES, HEADER_SUFFIXES, PART_SUFFIXES, SOURCE_SUFFIXES

_HEADERS = HEADER_SUFFIXES | PART_SUFFIXES | FRAGMENT_SUFFIXES
LARGEST_FILE = 1_000_000  # bytes; what is larger is data in the shape of code


@dataclass(frozen=True)
class Text:
    """A document, with the groups that figures are given for; "" where the source has none."""

    text: str
    project: str = ""
    kind: str = ""
    path: str = ""
    """Within the folder of C++ files."""

    @property
    def digest(self) -> str:
        """A hash of the text."""
        return sha256(self.text.encode())


def read_texts(location: str, text_column: str = "text", most_bytes: int = -1) -> list[Text]:
    """Every text that is not empty, in stored order.

    Args:
        location: a corpus, whose validation documents are taken; a parquet file or a folder of them; or a
            folder of C++ files, each of its sub-folders a project. Corpora and folders of parquet files may
            be in a bucket.
        text_column: of parquet files that are no corpus. `project` and `kind` are used where they exist.
        most_bytes: take only so many documents that they have at most so many bytes, chosen by their hashes:
            the same for every model. At least one; -1 takes all.

    Raises:
        UserError: nothing there, or it cannot be read.
    """
    texts = [text for text in _source(location, text_column) if text.text]
    if not texts:
        raise UserError(f"{location} has no text to measure on", fix="Check the path.")
    return texts if most_bytes < 0 else _some(texts, most_bytes)


def fingerprint(texts: Iterable[Text]) -> str:
    """A hash of texts, groups and order."""
    return sha256("\n".join(f"{text.digest} {text.project!r} {text.kind!r}" for text in texts).encode())


def _some(texts: list[Text], most_bytes: int) -> list[Text]:
    chosen: list[int] = []
    left = most_bytes
    for number in sorted(range(len(texts)), key=lambda number: texts[number].digest):
        left -= len(texts[number].text.encode())
        if left < 0 and chosen:
            break
        chosen.append(number)
    return [texts[number] for number in sorted(chosen)]


def _source(location: str, text_column: str) -> Iterator[Text]:
    path = Path(location).expanduser()
    if not is_bucket(location) and path.is_file():
        if path.suffix != ".parquet":
            raise UserError(
                f"{location} is no parquet file", fix="Name the folder of the source files, or a corpus."
            )
        return _parquet(Storage(path.parent), [path.name], text_column)
    storage = Storage(location)
    names = (
        storage.list_names() if is_bucket(location) else sorted(p.name for p in path.iterdir() if p.is_file())
    )
    if COMPLETE in names:
        return _corpus(ShardReader(location))
    parquet = [name for name in names if name.endswith(".parquet")]
    if parquet:
        return _parquet(storage, parquet, text_column)
    if is_bucket(location):
        raise UserError(f"{location} holds no parquet files", fix="C++ files are read from local folders.")
    return _files(path)


def _corpus(reader: ShardReader) -> Iterator[Text]:
    shards = reader.shards("val")
    if not any(shard.documents for shard in shards):
        raise UserError(
            f"{reader.storage.location} has no val documents", fix="Build a corpus with more code."
        )
    for shard in shards:
        yield from _rows(reader.table(shard, ["text", "project", "kind"]), "text")


def _parquet(storage: Storage, names: list[str], text_column: str) -> Iterator[Text]:
    for name in names:
        try:
            file = pq.ParquetFile(pa.BufferReader(storage.read(name)))
            there = file.schema_arrow.names
            if text_column not in there:
                raise UserError(
                    f"{storage.path(name)} has no column {text_column!r}",
                    fix=f"Name another --text_column: {', '.join(there)}.",
                )
            table = file.read(columns=[c for c in (text_column, "project", "kind") if c in there])
        except pa.ArrowException as error:
            raise UserError(f"cannot read {storage.path(name)}: {error}") from error
        if any(text is not None and not isinstance(text, str) for text in table[text_column].to_pylist()[:1]):
            raise UserError(f"{storage.path(name)}: column {text_column!r} holds no text")
        yield from _rows(table, text_column)


def _rows(table: pa.Table, text_column: str) -> Iterator[Text]:
    def column(name: str) -> list[Any]:
        return table[name].to_pylist() if name in table.column_names else [None] * len(table)

    for text, project, kind in zip(column(text_column), column("project"), column("kind"), strict=True):
        if text is not None:
            yield Text(text, str(project or ""), str(kind or ""))


def _files(folder: Path) -> Iterator[Text]:
    """Files in the order of their paths; hidden folders and links are passed over."""
    left_out: Counter[str] = Counter()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        suffix = path.suffix.lower()
        hidden = any(part.startswith(".") for part in inside.parts)
        if suffix not in SOURCE_SUFFIXES | _HEADERS or hidden or path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if len(data) > LARGEST_FILE:
            left_out[f"larger than {LARGEST_FILE:,} bytes"] += 1
            continue
        try:
            text = data.decode()
        except UnicodeDecodeError:
            left_out["not UTF-8"] += 1
            continue
        project = inside.parts[0] if len(inside.parts) > 1 else folder.resolve().name
        yield Text(text, project, "source" if suffix in SOURCE_SUFFIXES else "header", inside.as_posix())
    for reason, count in left_out.items():
        log_info(f"{folder}: {pluralize(count, 'file')} left out, {reason}")
