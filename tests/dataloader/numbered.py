"""Documents whose token ids tell where they come from, so that each token can be followed.

Worker processes import this: no torch here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cpplm.core.shards import write_manifest, write_shard
from cpplm.core.storage import Storage
from cpplm.dataloader.encoding import RawDocument, TokenIds

SCHEMA = pa.schema([("text", pa.string()), ("id", pa.string()), ("project", pa.string())])
FIRST_ID = 64
MOST_TOKENS = 1000
MOST_DOCUMENTS = 100


@dataclass(frozen=True)
class NumberedEncoder:
    """The text "7 30" is document 7 and has 30 tokens; with `halves`, two pieces of 15."""

    halves: bool = False
    columns: tuple[str, ...] = ()
    packs_whole: bool = False

    def encode(self, documents: list[RawDocument]) -> list[list[TokenIds]]:
        result = []
        for document in documents:
            if document.text == "broken":
                raise ValueError("this document cannot be encoded")
            number, length = map(int, document.text.split())
            ids = np.array([token_id(document.key[0], number, i) for i in range(length)], dtype=np.int32)
            result.append([half for half in np.array_split(ids, 2) if len(half)] if self.halves else [ids])
        return result


def token_id(epoch: int, document: int, token: int) -> int:
    return FIRST_ID + (epoch * MOST_DOCUMENTS + document) * MOST_TOKENS + token


def where(id_: int) -> tuple[int, int, int]:
    """Epoch, document and number of the token."""
    rest, token = divmod(id_ - FIRST_ID, MOST_TOKENS)
    return (*divmod(rest, MOST_DOCUMENTS), token)


def write_numbered(folder: Path, shards: Sequence[Sequence[int]], first: int = 0) -> Path:
    """Training shards of documents with so many tokens, numbered from `first` on, and one for validation."""
    storage, described, number = Storage(folder, create=True), [], first
    for index, lengths in enumerate(shards):
        rows = []
        for length in lengths:
            rows.append({"text": f"{number} {length}", "id": f"{number:x}", "project": "p"})
            number += 1
        described.append(write_shard(storage, "train", index, rows, SCHEMA))
    val = [{"text": "0 5", "id": "v", "project": "v"}]
    write_manifest(storage, [*described, write_shard(storage, "val", 0, val, SCHEMA)])
    return folder
