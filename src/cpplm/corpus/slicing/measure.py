"""Lengths of texts in the unit of the budget: bytes, or tokens of the real tokenizer."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from cpplm.tokenizer.pretokenizer import PATTERNS
from cpplm.tokenizer.tokenizer import Tokenizer

# Code stays far below this; only text made of one long token again and again would not.
_MOST_BYTES_PER_TOKEN = 16
# How many texts and lines are remembered.
_MOST_TEXTS = 20_000
_MOST_LINES = 50_000
# A line with the blank ones behind it: `lines` cuts there in any case, but beside other blank characters.
_LINE = re.compile(r"[^\n]*\n(?:[ \t]*\n)*|[^\n]+")
_OTHER_BLANKS = "\f\v\r"


@dataclass
class Measure:
    """Lengths; those of items are remembered, since parts and units share them."""

    exact: Callable[[str], int]
    most_bytes: int = 1  # that one unit can stand for

    def __post_init__(self) -> None:
        # The length of one item's text with the line end after it.
        self.item = functools.lru_cache(_MOST_TEXTS)(lambda text: self.text(text) + 2)

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer) -> Measure:
        """In tokens."""

        def count(text: str) -> int:
            return len(tokenizer.encode(text))

        count_line = functools.lru_cache(_MOST_LINES)(count)

        def count_by_line(text: str) -> int:
            """The same, each line once: documents of one project share most of theirs."""
            if any(blank in text for blank in _OTHER_BLANKS):
                return count(text)
            return sum(map(count_line, _LINE.findall(text)))

        by_line = tokenizer.pattern == PATTERNS["lines"]
        return cls(count_by_line if by_line else count, _MOST_BYTES_PER_TOKEN)

    def text(self, text: bytes) -> int:
        """The length of a text."""
        return self.exact(text.decode())
