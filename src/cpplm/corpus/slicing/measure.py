"""Lengths of texts in the unit of the budget: bytes, or tokens of the real tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

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
    _items: dict[bytes, int] = field(default_factory=dict)

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer) -> Measure:
        """In tokens."""
        lines: dict[str, int] = {}

        def count(text: str) -> int:
            return len(tokenizer.encode(text))

        def count_by_line(text: str) -> int:
            """The same, each line once: documents of one project share most of theirs."""
            if any(blank in text for blank in _OTHER_BLANKS):
                return count(text)
            if len(lines) > _MOST_LINES:
                lines.clear()
            total = 0
            for line in _LINE.findall(text):
                size = lines.get(line)
                if size is None:
                    size = lines[line] = count(line)
                total += size
            return total

        by_line = tokenizer.pattern == PATTERNS["lines"]
        return cls(count_by_line if by_line else count, _MOST_BYTES_PER_TOKEN)

    def text(self, text: bytes) -> int:
        """The length of a text."""
        return self.exact(text.decode())

    def item(self, text: bytes) -> int:
        """The length of one item's text with the line end after it."""
        size = self._items.get(text)
        if size is None:
            if len(self._items) > _MOST_TEXTS:
                self._items.clear()
            size = self._items[text] = self.text(text) + 2
        return size
