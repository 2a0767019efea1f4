"""Normalization of tokens for n-gram memories: tokens of the same text share an id.

Cheng et al. 2026 (arXiv 2601.07372, section 2.1) normalize tokens, so that `Size`, ` size` and `SIZE` share
their entries.
"""

from __future__ import annotations

import unicodedata

import numpy as np
from numpy.typing import NDArray

from cpplm.tokenizer.tokenizer import Tokenizer


def canonical_ids(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """For each id, the lowest id whose text is the same but for case, outer blanks and Unicode form.

    Tokens that are not UTF-8 by themselves, special ones and pure whitespace stand for themselves.
    """
    canonical = np.arange(tokenizer.vocab_size)
    first: dict[str, int] = {}
    for token in range(tokenizer.vocab_size):
        if tokenizer.token_bytes[token] == 0:
            continue
        try:
            text = tokenizer.decode_bytes([token]).decode("utf-8")
        except UnicodeDecodeError:
            continue
        text = unicodedata.normalize("NFKC", text).casefold().strip(" \t")
        if text.strip():
            canonical[token] = first.setdefault(text, token)
    return canonical
