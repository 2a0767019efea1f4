"""Documents to token ids: the protocol of an encoder, and the plain one.

An encoder is a small frozen dataclass of parameters. It travels to worker processes with every group, so
what is large (the tokenizer) is named by path and hash and loaded once per process. This module and all that
it imports do without torch, so that workers start quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from cpplm.core.errors import UserError
from cpplm.core.spans import BORROWED_COLUMN
from cpplm.dataloader.borrowed import training_stretches
from cpplm.tokenizer.special_tokens import BOS
from cpplm.tokenizer.tokenizer import Tokenizer

# One document or piece of one, <BOS> first, at least one token.
TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True)
class RawDocument:
    """A row of a shard.

    Attributes:
        text: the document.
        key: epoch, number of the shard, number of the document in the shard's stored order. Whatever an
            encoder draws at random for a document must depend on its seed and this key alone, so that
            resuming and reordering change nothing.
        spans: the column of that name (see `cpplm.core.spans`); None unless the encoder's `columns` names it
            and the shard has it.
        docstrings, borrowed: likewise.
    """

    text: str
    key: tuple[int, int, int]
    spans: bytes | None = None
    docstrings: list[dict[str, int]] | None = None
    borrowed: list[dict[str, int]] | None = None


class DocumentEncoder(Protocol):
    """Turns documents into token ids: picklable, hashable, and deterministic."""

    packs_whole: ClassVar[bool]
    """Pieces are never cut, and rows may have room left. Tokens that are context alone are complements."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it reads beyond the text: any of "spans", "docstrings", "borrowed"."""
        ...

    def encode(self, documents: list[RawDocument]) -> list[list[TokenIds]]:
        """Per document one piece or several; each begins with <BOS> and is packed as a document."""
        ...


@lru_cache(maxsize=4)
def load_tokenizer(path: str, tokenizer_hash: str) -> Tokenizer:
    """The tokenizer of that path or name, loaded once per process.

    Raises:
        UserError: as `Tokenizer.load`, or it is no longer the one that the hash names.
    """
    tokenizer = Tokenizer.load(path)
    if tokenizer.hash != tokenizer_hash:
        raise UserError(
            f"{path} was replaced by another tokenizer ({tokenizer.hash[:12]}, not {tokenizer_hash[:12]})",
            fix="Put the first one back, or start a new run.",
        )
    return tokenizer


@dataclass(frozen=True)
class PlainEncoder:
    """Documents as they are, each piece with <BOS> before it; see `borrowed` for what is left out.

    Attributes:
        tokenizer: path of the file, or the name of a published tokenizer.
        tokenizer_hash: `Tokenizer.hash` of it.
        seq_len: tokens of a row.
        threads: that encode at the same time; workers are many already and need one each.
    """

    tokenizer: str
    tokenizer_hash: str
    seq_len: int
    threads: int = 1
    columns: ClassVar[tuple[str, ...]] = (BORROWED_COLUMN,)
    packs_whole: ClassVar[bool] = False

    def encode(self, documents: list[RawDocument]) -> list[list[TokenIds]]:
        """Per document the pieces to train on, in order."""
        tokenizer = load_tokenizer(self.tokenizer, self.tokenizer_hash)
        rows = tokenizer.encode_batch([document.text for document in documents], threads=self.threads)
        return [
            self.pieces(np.array(row, dtype=np.int32), document.borrowed)
            for row, document in zip(rows, documents, strict=True)
        ]

    def pieces(self, ids: TokenIds, borrowed: list[dict[str, int]] | None) -> list[TokenIds]:
        """The pieces of a document, given all its tokens."""
        edges = token_edges(load_tokenizer(self.tokenizer, self.tokenizer_hash), ids)
        stretches = training_stretches(borrowed or [], edges, self.seq_len)
        return [with_bos(ids[first:last]) for first, last in stretches]


def token_edges(tokenizer: Tokenizer, ids: TokenIds) -> npt.NDArray[np.int64]:
    """The offsets between tokens, in bytes: 0 and the end included, shape (tokens + 1,)."""
    return np.concatenate([[0], np.cumsum(tokenizer.token_bytes[ids])])


def with_bos(ids: TokenIds) -> TokenIds:
    """<BOS> and these tokens."""
    return np.concatenate([np.array([BOS], dtype=np.int32), ids])
