"""Share of a project's text in lines that many of its documents have: what they borrow again and again."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field

DOCUMENTS = 5  # in so many a line counts as shared
# Of all lines one in so many is counted, chosen by its content, so that memory stays small.
_ONE_IN = 8
_LEAST_LINE = 12


@dataclass
class RepeatedLines:
    """Counts lines of documents as they come."""

    _documents: Counter[bytes] = field(default_factory=Counter)  # that have a line

    def add(self, text: str) -> None:
        """Count the lines of one more document."""
        for line in set(text.encode().split(b"\n")):
            if len(line) >= _LEAST_LINE and zlib.crc32(line) % _ONE_IN == 0:
                self._documents[line] += 1

    def shared_and_counted_bytes(self) -> tuple[int, int]:
        """Bytes of the lines that are counted: of those in `DOCUMENTS` documents or more, and of all."""
        sizes = {line: len(line) * count for line, count in self._documents.items()}
        shared = sum(size for line, size in sizes.items() if self._documents[line] >= DOCUMENTS)
        return shared, sum(sizes.values())
