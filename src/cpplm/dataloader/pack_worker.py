"""One group of documents to packed rows: what runs in worker processes.

Nothing here has a memory that matters: the rows follow from the arguments alone. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpplm.core.errors import UserError
from cpplm.core.shards import Shard, read_shard
from cpplm.core.storage import Storage
from cpplm.dataloader.encoding import DocumentEncoder, PlainEncoder, RawDocument, TokenIds
from cpplm.dataloader.loader_state import DocumentRef
from cpplm.dataloader.packing import Segment, pack_rows, pack_whole
from cpplm.dataloader.sampler import DocumentGroup
from cpplm.dataloader.token_cache import cached_tokens
from cpplm.tokenizer.special_tokens import BOS, IGNORE_INDEX, PAD

SHARDS_IN_MEMORY = 2  # of each data set; the streams stand in one shard, or some already in the next

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PackSource:
    """A data set as workers know it: all that its groups share.

    Attributes:
        location: of the shards.
        encoder: of the documents.
        seq_len: tokens per row.
        token_cache: folder of shards already tokenized, for the plain encoder; None for none.
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
class Leftover:
    """A document, or the end of one, that is still to be packed.

    `ids` are its tokens from `ref.first` on, and the <BOS> of whatever comes next; None when they have
    to be made again, in a loader that goes on from a state.
    """

    ref: DocumentRef
    shard: Shard
    ids: TokenIds | None


@dataclass(frozen=True)
class PackedRows:
    """Rows ready for training.

    Attributes:
        inputs: (rows, seq_len), int32.
        targets: what follows each input in its document, <BOS> after the last token; likewise.
        lengths: per row, the tokens of each segment in it; the room that is left is the last one.
        leftover: what did not fill a row, for the stream's next group.
    """

    inputs: Rows
    targets: Rows
    lengths: tuple[tuple[int, ...], ...]
    leftover: tuple[Leftover, ...]


def pack_group(source: PackSource, group: DocumentGroup, carry: tuple[Leftover, ...]) -> PackedRows:
    """Tokenize and pack the documents of a group, and before them what the stream's last group left over."""
    documents = [_with_ids(source, leftover) for leftover in carry]
    encoded = _encode(source, group.epoch, group.number, group.shard, group.documents)
    for document, pieces in zip(group.documents, encoded, strict=True):
        for piece, ids in enumerate(pieces):
            ref = DocumentRef(group.epoch, group.number, document, piece, 0)
            documents.append((ref, group.shard, np.append(ids, _end(source))))
    if source.encoder.packs_whole:
        layout = pack_whole([len(ids) - 1 for _, _, ids in documents], source.seq_len)
    else:
        lengths = [(ref.first, ref.first + len(ids) - 1) for ref, _, ids in documents]
        layout = pack_rows(lengths, source.seq_len)
    order = np.random.default_rng(group.row_seed).permutation(len(layout.rows))
    rows = [layout.rows[i] for i in order]
    inputs = np.full((len(rows), source.seq_len), PAD, dtype=np.int32)
    targets = np.full_like(inputs, IGNORE_INDEX)
    for row, segments in enumerate(rows):
        at = 0
        for number, start, stop in segments:
            ref, _, ids = documents[number]
            begin, end = start - ref.first, stop - ref.first
            inputs[row, at : at + end - begin] = ids[begin:end]
            targets[row, at : at + end - begin] = ids[begin + 1 : end + 1]
            at += end - begin
    if source.encoder.packs_whole:  # a complement is context: its target, one place before, counts nothing
        inputs = np.where(inputs < 0, ~inputs, inputs)
        targets[targets < 0] = IGNORE_INDEX
    leftover = []
    for number, start, _ in layout.leftover:
        ref, shard, ids = documents[number]
        leftover.append(Leftover(ref._replace(first=start), shard, ids[start - ref.first :]))
    return PackedRows(inputs, targets, tuple(_lengths(row, source.seq_len) for row in rows), tuple(leftover))


def _lengths(row: Sequence[Segment], seq_len: int) -> tuple[int, ...]:
    """Tokens of the segments of a row, and those of the room that is left."""
    lengths = tuple(segment.stop - segment.start for segment in row)
    room = seq_len - sum(lengths)
    return (*lengths, room) if room else lengths


def clear_shard_cache() -> None:
    """Free the memory of shards that were read in this process."""
    _shard_tables.cache_clear()
    cached_tokens.cache_clear()  # it keeps the functions that read them


def _with_ids(source: PackSource, leftover: Leftover) -> tuple[DocumentRef, Shard, TokenIds]:
    ref, ids = leftover.ref, leftover.ids
    if ids is None:
        [pieces] = _encode(source, ref.epoch, ref.shard, leftover.shard, (ref.document,))
        ids = np.append(pieces[ref.piece], _end(source))[ref.first :]
    return ref, leftover.shard, ids


def _end(source: PackSource) -> np.int32:
    """The target of a document's last token: that it has ended, or nothing."""
    return np.int32(~BOS if source.encoder.packs_whole else BOS)


def _encode(
    source: PackSource, epoch: int, number: int, shard: Shard, documents: tuple[int, ...]
) -> list[list[TokenIds]]:
    """The pieces of some documents of a shard."""
    read = _shard_tables(source.location, source.encoder.columns)
    if source.token_cache is not None and isinstance(source.encoder, PlainEncoder):
        tokens = cached_tokens(source.token_cache, shard, source.encoder, read)
        return [
            source.encoder.pieces(
                tokens.ids[document].values.to_numpy()[1:].astype(np.int32),
                tokens.borrowed[document].as_py(),
            )
            for document in documents
        ]
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
    return lru_cache(maxsize=SHARDS_IN_MEMORY)(lambda shard: read_shard(storage, shard, ["text", *columns]))
