"""Documents of a corpus as rows for a model of the transformers library, by its own tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from cpplm.core.errors import UserError
from cpplm.core.spans import BORROWED_COLUMN
from cpplm.dataloader.borrowed import training_stretches
from cpplm.dataloader.encoding import RawDocument, TokenIds
from cpplm.evaluate.models.hf_tokens import HfTokens
from cpplm.post_training.hf_folder import HfFolder
from cpplm.post_training.hf_tokenizer import HfTokenizer
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class HfDocumentEncoder:
    """Documents as they are, in pieces no longer than a row (`cpplm.dataloader.encoding.DocumentEncoder`).

    Attributes:
        folder: directory of the tokenizer.
        tokenizer_hash: `HfTokens.hash` of it.
        start_id: before each piece.
        seq_len: tokens of a row.
    """

    folder: Path
    tokenizer_hash: str
    start_id: int
    seq_len: int
    columns: ClassVar[tuple[str, ...]] = (BORROWED_COLUMN,)
    packs_whole: ClassVar[bool] = True

    def encode(self, documents: list[RawDocument]) -> list[list[TokenIds]]:
        """Per document the pieces to train on, in order."""
        tokens, length = _load_tokens(self.folder, self.tokenizer_hash), self.seq_len - 1
        pieces = []
        for document, text in zip(documents, tokens.encode([each.text for each in documents]), strict=True):
            ids = np.array([self.start_id, *text.ids], dtype=np.int32)
            edges = np.concatenate([[0], text.ends])
            stretches = training_stretches(document.borrowed or [], edges, self.seq_len)
            pieces.append(
                [
                    np.concatenate([ids[:1], ids[1 + begin : 1 + min(begin + length, last)]])
                    for first, last in stretches
                    for begin in range(first, last, length)
                ]
            )
        return pieces


@lru_cache(maxsize=2)
def _load_tokens(folder: Path, tokenizer_hash: str) -> HfTokens:
    tokens = HfTokens(folder)
    if tokens.hash != tokenizer_hash:
        raise UserError(f"the tokenizer in {folder} was replaced by another", fix="Put the first one back.")
    return tokens


def document_tokenizer(source: HfFolder) -> Tokenizer | HfTokenizer:
    """The tokenizer of a directory that was opened for documents: ours, where it is an export of one."""
    try:
        tokenizer = Tokenizer.load(source.folder / "tokenizer.json")
    except UserError:
        return source.tokenizer()
    known = source.tokenizer().vocab_size
    if tokenizer.vocab_size > known:
        raise UserError(f"{source.folder} knows {known:,} ids, its tokenizer {tokenizer.vocab_size:,}")
    return tokenizer


def document_encoder(tokenizer: Tokenizer | HfTokenizer, seq_len: int) -> HfDocumentEncoder | None:
    """The encoder of documents for a tokenizer of a directory; None for one of ours, which has its own."""
    if isinstance(tokenizer, Tokenizer):
        return None
    return HfDocumentEncoder(tokenizer.folder, tokenizer.hash, tokenizer.start_id, seq_len)
