"""`cpplm corpus export`: a corpus's documents or its docstring pairs as JSON lines.

Each line is one object: the text, or docstring, signature and body, and where it comes from. Rows are read
shard by shard and written as they come; the file appears when it is whole.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.settings import Argument
from cpplm.core.shards import ROWS_PER_GROUP, Shard, ShardReader, Split
from cpplm.core.spans import DOCSTRINGS_COLUMN, SPANS_COLUMN
from cpplm.core.storage import Storage, is_bucket
from cpplm.core.workers import batched_by_size
from cpplm.corpus.ingest.jsonl import ENDINGS
from cpplm.cpp.doc_comments import export_pairs

_CODECS = {".gz": "gzip", ".zst": "zstd"}
# Lines are compressed and sent in portions of about this size, each a whole gzip member or zstd frame.
_PORTION_BYTES = 4_000_000


@dataclass(frozen=True)
class ExportSettings:
    """Settings of `cpplm corpus export`."""

    corpus: Annotated[str, Argument("CORPUS", positional=True)]
    """Folder or bucket URL of a corpus."""
    to: Annotated[str, Argument("FILE")]
    """File or bucket URL to write; the ending says the format: .jsonl, .jsonl.gz or .jsonl.zst."""
    what: Literal["documents", "docstrings"] = "documents"
    """documents: their texts; docstrings: functions with the comment before them, each pair once."""
    split: Split | None = None
    """Only this split; both when left out."""

    def __post_init__(self) -> None:
        if not self.to.endswith(ENDINGS):
            raise UserError(f"--to {self.to} ends in none of {', '.join(ENDINGS)}", fix="Rename it.")


def export_corpus(settings: ExportSettings) -> dict[str, Any]:
    """Write the lines; returns the documents read, the lines and bytes written.

    Raises:
        UserError: no corpus, one without docstring pairs, or a place that cannot be written to.
    """
    reader = ShardReader(settings.corpus)
    shards = reader.shards(settings.split)
    docstrings = settings.what == "docstrings"
    if docstrings and shards and DOCSTRINGS_COLUMN not in reader.table(shards[0]).column_names:
        raise UserError(
            f"{reader.storage.location} holds no docstring pairs: it was built by an older version",
            fix="Build the corpus again.",
        )
    folder, name = _place(settings.to)
    storage = Storage(folder, create=True)
    documents = sum(shard.documents for shard in shards)
    codec = _CODECS.get(Path(name).suffix)
    lines = size = 0
    with progress_bar(documents, "export", "document") as bar, storage.open_write(name) as file:
        rows = _rows(reader, shards, bar.update)
        records = export_pairs(rows) if docstrings else map(_document, rows)
        encoded = ((json.dumps(record, ensure_ascii=False) + "\n").encode() for record in records)
        portions = batched_by_size(encoded, len, _PORTION_BYTES)
        for portion in itertools.chain(portions, [[]]):  # a .gz without a member would be no .gz
            data = b"".join(portion)
            if codec:
                data = pa.Codec(codec).compress(data, asbytes=True)
            file.write(data)
            size += len(data)
            lines += len(portion)
    return {"what": settings.what, "documents": documents, "lines": lines, "bytes": size}


def _place(to: str) -> tuple[str, str]:
    """The folder and the name of a file, local or in a bucket."""
    if is_bucket(to):
        folder, _, name = to.rpartition("/")
        return folder, name
    path = Path(to).expanduser()
    if path.is_dir():
        raise UserError(f"--to {to} is a folder", fix="Name a file.")
    return str(path.parent), path.name


def _rows(
    reader: ShardReader, shards: list[Shard], report: Callable[[int], object]
) -> Iterator[dict[str, Any]]:
    """The rows of some shards with their split."""
    for shard in shards:
        for batch in reader.table(shard).to_batches(max_chunksize=ROWS_PER_GROUP):
            for row in batch.to_pylist():
                yield {**row, "split": shard.split}
            report(len(batch))


def _document(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the columns that mean nothing to other programs: offsets."""
    return {name: value for name, value in row.items() if name not in (SPANS_COLUMN, DOCSTRINGS_COLUMN)}
