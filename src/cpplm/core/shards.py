"""Training documents on disk: parquet shards with a manifest, in a local folder or a bucket.

    train_00000.parquet ...   val_00000.parquet ...   one row per document, zstd
    manifest.json             settings, figures, and per shard its rows, text bytes, size and sha256
    _COMPLETE                 written last; a folder without it is still being built

Columns every reader may rely on: `text` (string), `id` (hex), `project` (string). The corpus adds provenance.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage, is_bucket, sha256

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")
MANIFEST = "manifest.json"
COMPLETE = "_COMPLETE"
# Small enough that workers can share one shard, large enough that zstd finds repetition.
ROWS_PER_GROUP = 256
_COPY_AGAIN = "Delete the folder and build the corpus again, or copy the shard again."
_SHARD_NAME = re.compile(r"(?:train|val)_\d{5,}\.parquet")


@dataclass(frozen=True)
class Shard:
    """One parquet file: `bytes` counts UTF-8 text, `sha256` is of the file, and so is `file_bytes`, its size,
    which older manifests do not have (-1)."""

    name: str
    split: Split
    documents: int
    bytes: int
    sha256: str
    file_bytes: int = field(default=-1, compare=False)


def write_table(storage: Storage, name: str, table: pa.Table) -> bytes:
    """Write a table as parquet, atomically; equal tables give equal bytes, which are returned."""
    return write_tables(storage, name, iter([table]))


def write_tables(storage: Storage, name: str, tables: Iterator[pa.Table]) -> bytes:
    """The same for a table that comes in pieces; there is at least one."""
    sink = pa.BufferOutputStream()
    rest = next(tables)
    with pq.ParquetWriter(sink, rest.schema, compression="zstd", store_schema=False) as writer:
        for table in tables:
            whole = len(rest) - len(rest) % ROWS_PER_GROUP
            if whole:
                writer.write_table(rest.slice(0, whole), row_group_size=ROWS_PER_GROUP)
            rest = pa.concat_tables([rest.slice(whole), table]).combine_chunks()
        writer.write_table(rest, row_group_size=ROWS_PER_GROUP)
    data: bytes = sink.getvalue().to_pybytes()
    storage.write(name, data)
    return data


def read_table(storage: Storage, name: str, columns: list[str] | None = None) -> pa.Table:
    """Read a parquet file.

    Raises:
        UserError: it is missing or is not parquet.
    """
    try:
        return pq.read_table(pa.BufferReader(storage.read(name)), columns=columns)
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{storage.path(name)} is damaged: {error}", fix="Delete it and build again."
        ) from error


def write_shard_table(storage: Storage, split: Split, number: int, table: pa.Table) -> Shard:
    """Write rows (with a `text` column) as one shard, atomically, and describe it for the manifest."""
    name = f"{split}_{number:05d}.parquet"
    return describe_shard(name, write_table(storage, name, table), table)


def describe_shard(name: str, data: bytes, table: pa.Table) -> Shard:
    """The manifest's entry for a file `data` that holds `table`."""
    split: Split = "train" if name.startswith("train") else "val"
    return Shard(name, split, len(table), text_bytes(table), sha256(data), len(data))


def text_bytes(table: pa.Table) -> int:
    """Bytes of the text of all rows."""
    return pc.sum(pc.binary_length(table["text"])).as_py() or 0


def write_shard(
    storage: Storage, split: Split, number: int, rows: list[dict[str, Any]], schema: pa.Schema
) -> Shard:
    """`write_shard_table` for rows as dictionaries."""
    return write_shard_table(storage, split, number, pa.Table.from_pylist(rows, schema=schema))


def read_shard(storage: Storage, shard: Shard, columns: list[str] | None = None) -> pa.Table:
    """One shard as an Arrow table, with those of the columns that it has; otherwise as `open_shard`."""
    return open_shard(storage, shard).read(columns=columns)


def open_shard(storage: Storage, shard: Shard) -> pq.ParquetFile:
    """One shard as a file in memory, not decompressed yet, after comparing its hash.

    Raises:
        UserError: the shard is missing, truncated or altered; the message names it.
    """
    data = storage.read(shard.name)
    if sha256(data) != shard.sha256:
        raise _damaged(storage, shard, f"its hash is not the one in {MANIFEST}")
    return pq.ParquetFile(pa.BufferReader(data))


def _damaged(storage: Storage, shard: Shard, why: str) -> UserError:
    return UserError(f"{storage.path(shard.name)} is damaged: {why}", fix=_COPY_AGAIN)


def open_corpus(location: str | Path) -> Storage:
    """The storage of a folder or bucket of shards.

    Raises:
        UserError: it does not exist, or is a file.
    """
    if not is_bucket(location) and Path(location).expanduser().is_file():
        raise UserError(
            f"{location} is a file, not a corpus",
            fix="Make documents of its project first: cpplm corpus build --projects FOLDER --out CORPUS.",
        )
    return Storage(location)


def shard_names(storage: Storage) -> list[str]:
    """The files in a folder that are named like shards, whether or not a manifest lists them."""
    return [name for name in storage.list_names() if _SHARD_NAME.fullmatch(name)]


def write_manifest(storage: Storage, shards: list[Shard], **figures: Any) -> None:
    """Write the manifest, then the `_COMPLETE` mark: from here on the documents exist."""
    storage.write_json(MANIFEST, {"version": 1, "shards": [asdict(shard) for shard in shards], **figures})
    storage.write(COMPLETE, b"")


def read_manifest(storage: Storage) -> tuple[dict[str, Any], list[Shard]]:
    """The manifest, and the shards that it lists.

    Raises:
        UserError: it is missing, or not a manifest.
    """
    manifest: dict[str, Any] = storage.read_json(MANIFEST)
    try:
        return manifest, [Shard(**entry) for entry in manifest["shards"]]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{storage.path(MANIFEST)} does not describe shards ({error})", fix="Build the corpus again."
        ) from error


class ShardReader:
    """Reads a finished set of shards, checking each shard against the manifest."""

    # Whether the shards are not to be shuffled in the first epoch: a set that still grows cannot be.
    first_epoch_in_order = False

    def __init__(self, location: str | Path) -> None:
        """Open a folder or bucket URL.

        Raises:
            UserError: it does not exist, holds no manifest, is unfinished, or a shard has not its size.
        """
        self.storage = open_corpus(location)
        if not self.storage.exists(COMPLETE):
            raise UserError(
                f"{self.storage.location} holds no finished documents (no {COMPLETE})",
                fix="Run 'cpplm corpus build' until it ends, or name another folder.",
            )
        self.manifest, self._shards = read_manifest(self.storage)
        sizes = self.storage.sizes()
        for shard in self._shards:
            if shard.name not in sizes:
                raise UserError(f"{self.storage.path(shard.name)} is missing", fix=_COPY_AGAIN)
            if shard.file_bytes not in (-1, sizes[shard.name]):
                why = f"it has {sizes[shard.name]:,} bytes, not {shard.file_bytes:,}"
                raise _damaged(self.storage, shard, why)

    def shards(self, split: Split | None = None) -> list[Shard]:
        """The shards of a split, or of all, one split after the other, in order."""
        splits = SPLITS if split is None else (split,)
        return [shard for each in splits for shard in self._shards if shard.split == each]

    def num_train_shards(self) -> int | None:
        """Number of training shards; None as long as it is not known, in a set that still grows."""
        return len(self.shards("train"))

    def train_shard(self, number: int) -> Shard | None:
        """The training shard of that number; None if it has not come yet, in a set that still grows."""
        return self.shards("train")[number]

    def wait(self, stop: threading.Event) -> None:
        """Let time pass in which a shard may come; returns when `stop` is set."""

    def table(self, shard: Shard, columns: list[str] | None = None) -> pa.Table:
        """One shard as an Arrow table, after comparing its hash with the manifest's.

        Raises:
            UserError: the shard is missing, truncated or altered; the message names it.
        """
        return read_shard(self.storage, shard, columns)

    def verify(self, shard: Shard, stop: threading.Event) -> None:
        """Compare the hash of a shard with the manifest's, piece by piece; returns early when `stop` is set.

        Raises:
            UserError: as `table`.
        """
        digest = hashlib.sha256()
        for piece in self.storage.chunks(shard.name):
            if stop.is_set():
                return
            digest.update(piece)
        if digest.hexdigest() != shard.sha256:
            raise _damaged(self.storage, shard, f"its hash is not the one in {MANIFEST}")

    def texts(self, split: Split) -> Iterator[tuple[str, str]]:
        """Every document of a split as (project, text), in shard order."""
        for shard in self.shards(split):
            table = self.table(shard, ["project", "text"])
            yield from zip(table["project"].to_pylist(), table["text"].to_pylist(), strict=True)

    def fingerprint(self) -> str:
        """A hash of the contents: equal for equal shards, whatever the location."""
        return sha256("\n".join(shard.sha256 for shard in self._shards).encode())
