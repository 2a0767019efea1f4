"""Shards already tokenized, in a folder: one file per shard and tokenizer, read without a copy.

A file is named after the hashes of the shard and the tokenizer, so it never goes stale. Whoever needs a
shard first tokenizes it whole, while the others wait for it, and writes the file atomically. It holds 64
characters, the sha256 of all that follows, and then an Arrow IPC file with the list columns `ids` and
`borrowed`. Every process compares the hash before it uses anything else: a damaged file is named
and made again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from filelock import FileLock

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.shards import Shard
from cpplm.core.spans import BORROWED_COLUMN
from cpplm.core.storage import Storage, sha256
from cpplm.dataloader.encoding import PlainEncoder, RawDocument

_HASH_BYTES = 64
_AT_ONCE = 256  # documents; bounds the memory of their ids as Python integers


class TokenizedShard(NamedTuple):
    """The documents of a shard, tokenized.

    Attributes:
        ids: <BOS> first, as a list array of uint16 or uint32.
        borrowed: the column of that name; nulls where the shard has none.
    """

    ids: pa.ListArray
    borrowed: pa.Array


@lru_cache(maxsize=16)
def cached_tokens(
    folder: Path, shard: Shard, encoder: PlainEncoder, read: Callable[[Shard], pa.Table]
) -> TokenizedShard:
    """The documents of a shard, from its file in the cache.

    Args:
        folder: of the cache; made if it is not there.
        shard: whose documents.
        encoder: tokenizes them when there is no file yet.
        read: gives the shard's table.

    Raises:
        UserError: the shard is damaged, or the folder cannot be written.
    """
    storage = Storage(folder, create=True)
    name = f"{shard.sha256[:32]}-{encoder.tokenizer_hash[:32]}.arrow"
    path = Path(storage.location, name)
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            if (tokens := _open_verified(path)) is not None:
                return tokens
            log_info(f"warning: {path} is damaged, or of an older version; tokenizing {shard.name} again")
        body = _serialize(_tokenize(read(shard), encoder))
        storage.write(name, sha256(body).encode() + body)
        tokens = _open_verified(path)
    if tokens is None:
        raise UserError(f"{path} does not hold what was just written to it", fix="Name another folder.")
    return tokens


def _tokenize(table: pa.Table, encoder: PlainEncoder) -> TokenizedShard:
    chunks = []
    for batch in table.to_batches(max_chunksize=_AT_ONCE):
        rows = [
            ids for [ids] in encoder.encode([RawDocument(t, (0, 0, 0)) for t in batch["text"].to_pylist()])
        ]
        offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
        chunks.append(pa.ListArray.from_arrays(offsets, np.concatenate(rows)))
    tokens = pa.chunked_array(chunks, type=pa.list_(pa.int32())).combine_chunks()
    max_id = int(tokens.values.to_numpy().max(initial=0))
    ids = tokens.cast(pa.list_(pa.uint16() if max_id < 2**16 else pa.uint32()))
    has_borrowed = BORROWED_COLUMN in table.column_names
    return TokenizedShard(
        ids, table[BORROWED_COLUMN].combine_chunks() if has_borrowed else pa.nulls(len(ids))
    )


def _serialize(tokens: TokenizedShard) -> bytes:
    table = pa.table(tokens._asdict())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _open_verified(path: Path) -> TokenizedShard | None:
    """The tokens in a file, in its memory map; None if it is not as it was written."""
    if path.stat().st_size <= _HASH_BYTES:
        return None
    data = pa.memory_map(str(path)).read_buffer()
    head, body = data.slice(0, _HASH_BYTES), data.slice(_HASH_BYTES)
    if sha256(body).encode() != head.to_pybytes():
        return None
    table = pa.ipc.open_file(body).read_all()
    if set(table.column_names) != set(TokenizedShard._fields):
        return None
    return TokenizedShard(table["ids"].chunk(0), table["borrowed"].chunk(0))
