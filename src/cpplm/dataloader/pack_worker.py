"""One window to packed rows: what runs in worker processes.

Nothing here has a memory that matters: the rows follow from the arguments alone. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cpplm.core.errors import UserError
from cpplm.core.shards import Shard, read_shard
from cpplm.core.storage import Storage
from cpplm.dataloader.encoding import DocumentEncoder, PlainEncoder, RawDocument, TokenIds
from cpplm.dataloader.loader_state import Reference
from cpplm.dataloader.packing import pack
from cpplm.dataloader.sampler import Window
from cpplm.dataloader.token_cache import cached_tokens
from cpplm.tokenizer.special_tokens import BOS

SHARDS_IN_MEMORY = 2  # of each data set; the lanes stand in one shard, or some already in the next

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class WindowSource:
    """What all windows of a data set share.

    Attributes:
        location: of the shards.
        encoder: of the documents.
        seq_len: tokens per row.
        token_cache: folder of shards already tokenised, for the plain encoder; None for none.
    """

    location: str
    encoder: DocumentEncoder
    seq_len: int
    token_cache: Path | None = None

    def __post_init__(self) -> None:
        if self.token_cache is not None and not isinstance(self.encoder, PlainEncoder):
            raise UserError(
                "documents that are changed before they are encoded cannot come from a token cache",
                fix="Leave out the cache, or fill-in-the-middle.",
            )


@dataclass(frozen=True)
class Unread:
    """A document, or the end of one, that is still to be packed.

    `ids` are its tokens from `reference.first` on, and the <BOS> of whatever comes next; None when they have
    to be made again, in a loader that goes on from a state.
    """

    reference: Reference
    shard: Shard
    ids: TokenIds | None


@dataclass(frozen=True)
class PackedWindow:
    """Rows ready for training.

    Attributes:
        inputs: (rows, seq_len), int32.
        targets: what follows each input in its document, <BOS> after the last token; likewise.
        lengths: per row, the tokens of each piece in it.
        rest: what did not fill a row, for the lane's next window.
    """

    inputs: Rows
    targets: Rows
    lengths: tuple[tuple[int, ...], ...]
    rest: tuple[Unread, ...]


def pack_window(source: WindowSource, window: Window, carry: tuple[Unread, ...]) -> PackedWindow:
    """Tokenise and pack the documents of a window, and before them what the lane's last window left over."""
    documents = [_with_ids(source, unread) for unread in carry]
    encoded = _encode(source, window.epoch, window.number, window.shard, window.documents)
    for document, several in zip(window.documents, encoded, strict=True):
        for piece, ids in enumerate(several):
            reference = Reference(window.epoch, window.number, document, piece, 0)
            documents.append((reference, window.shard, np.append(ids, np.int32(BOS))))
    spans = [(reference.first, reference.first + len(ids) - 1) for reference, _, ids in documents]
    packing = pack(spans, source.seq_len)
    rows = packing.rows
    if window.row_seed is not None:
        rows = [rows[i] for i in np.random.default_rng(window.row_seed).permutation(len(rows))]
    inputs, targets = np.empty((2, len(rows), source.seq_len), dtype=np.int32)
    for row, pieces in enumerate(rows):
        at = 0
        for number, start, stop in pieces:
            reference, _, ids = documents[number]
            begin, end = start - reference.first, stop - reference.first
            inputs[row, at : at + end - begin] = ids[begin:end]
            targets[row, at : at + end - begin] = ids[begin + 1 : end + 1]
            at += end - begin
    rest = []
    for number, start, _ in packing.rest:
        reference, shard, ids = documents[number]
        rest.append(Unread(reference._replace(first=start), shard, ids[start - reference.first :]))
    lengths = tuple(tuple(piece.stop - piece.start for piece in row) for row in rows)
    return PackedWindow(inputs, targets, lengths, tuple(rest))


def forget_shards() -> None:
    """Free the memory of shards that were read in this process."""
    _shard_tables.cache_clear()


def _with_ids(source: WindowSource, unread: Unread) -> tuple[Reference, Shard, TokenIds]:
    reference, ids = unread.reference, unread.ids
    if ids is None:
        [pieces] = _encode(source, reference.epoch, reference.shard, unread.shard, (reference.document,))
        ids = np.append(pieces[reference.piece], np.int32(BOS))[reference.first :]
    return reference, unread.shard, ids


def _encode(
    source: WindowSource, epoch: int, number: int, shard: Shard, documents: tuple[int, ...]
) -> list[list[TokenIds]]:
    """The pieces of some documents of a shard."""
    read = _shard_tables(source.location, source.encoder.columns)
    if source.token_cache is not None and isinstance(source.encoder, PlainEncoder):
        tokens = cached_tokens(source.token_cache, shard, source.encoder, read)
        return [[tokens[document].values.to_numpy().astype(np.int32)] for document in documents]
    table = read(shard)
    raw = []
    for document in documents:
        [row] = table.slice(document, 1).to_pylist()
        raw.append(RawDocument(key=(epoch, number, document), **row))
    return source.encoder.encode(raw)


@cache
def _shard_tables(location: str, columns: tuple[str, ...]) -> Callable[[Shard], Any]:
    """Reads shards of a data set and keeps the last ones."""
    storage = Storage(location)

    def read(shard: Shard) -> pa.Table:
        return read_shard(storage, shard, ["text", *columns])

    return lru_cache(maxsize=SHARDS_IN_MEMORY)(read)
