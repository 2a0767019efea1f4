"""Fingerprints of the files that a corpus was made of, stored beside it to compare later projects with.

    OUT/fingerprints_00000.parquet   project, file, text, sketch: one row per file that made documents

The columns are those of `dedup.Fingerprint`. The manifest names the file, with its hash and version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader, read_table, write_table
from cpplm.core.storage import Storage, sha256
from cpplm.corpus.ingest.dedup import Fingerprint

# Raised when a file gets other hashes than before: these cannot be compared.
_VERSION = 2
FINGERPRINTS_NAME = re.compile(r"fingerprints_(\d{5,})\.parquet")
_SCHEMA = pa.schema({"project": pa.string(), "file": pa.string(), "text": pa.binary(), "sketch": pa.binary()})


@dataclass(frozen=True)
class KnownFile:
    """A file that made documents of a corpus; `held_out` when its text is in validation documents."""

    project: str
    file: str
    fingerprint: Fingerprint
    held_out: bool = False

    def __str__(self) -> str:
        return f"{self.project}: {self.file}"


def write_fingerprints(
    storage: Storage, files: Sequence[KnownFile], earlier: ShardReader | None
) -> dict[str, Any]:
    """Write the files of a corpus under a name that `earlier` does not use; returns the manifest's entry."""
    last = earlier.manifest["fingerprints"]["name"] if earlier else ""
    match = FINGERPRINTS_NAME.fullmatch(last)
    name = f"fingerprints_{int(match[1]) + 1 if match else 0:05d}.parquet"
    rows = [
        {"project": each.project, "file": each.file, **vars(each.fingerprint)}
        for each in sorted(files, key=lambda each: (each.project, each.file))
    ]
    data = write_table(storage, name, pa.Table.from_pylist(rows, schema=_SCHEMA))
    return {"name": name, "version": _VERSION, "sha256": sha256(data), "files": len(rows)}


def read_fingerprints(corpus: ShardReader) -> list[KnownFile]:
    """The files of a finished corpus, with those that validation documents quote marked.

    Raises:
        UserError: it has no fingerprints, other ones than this version makes, or damaged ones.
    """
    entry = corpus.manifest.get("fingerprints", {})
    if entry.get("version") != _VERSION:
        raise UserError(
            f"{corpus.storage.location} was built by another version of cpplm: what is added cannot be "
            "compared with it",
            fix="Build it anew with all projects.",
        )
    if sha256(corpus.storage.read(entry["name"])) != entry["sha256"]:
        raise UserError(
            f"{corpus.storage.path(entry['name'])} is damaged: its hash is not the one in the manifest",
            fix="Delete the folder and build the corpus again, or copy that file again.",
        )
    held_out = _held_out(corpus)
    return [
        KnownFile(
            row["project"],
            row["file"],
            Fingerprint(row["text"], row["sketch"]),
            (row["project"], row["file"]) in held_out,
        )
        for row in read_table(corpus.storage, entry["name"]).to_pylist()
    ]


def _held_out(corpus: ShardReader) -> set[tuple[str, str]]:
    """Project and name of each file that a validation document has text of."""
    tables = (corpus.table(shard, ["project", "files"]) for shard in corpus.shards("val"))
    return {(row["project"], file) for table in tables for row in table.to_pylist() for file in row["files"]}
