"""Cuts of fill-in-the-middle: a document into segments that fit a row, and a hole into a segment.

Offsets are bytes of the document's UTF-8 text; a `ByteRange` is from `start` to `end` (exclusive). No cut
lies inside a character, whatever the characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cpplm.core.spans import SpanTable

# Ranks of a place to cut at; below them, the number of spans around it.
_NO_LINE_END, _INSIDE_CHARACTER = 2**32, 2**33
_LINE = re.compile(rb"[^\n]*[^\W_][^\n]*")  # one that has a letter or a digit
_ONE_LINE = 0.75  # share of line holes that end in the line that they begin in
MAX_HOLE_LINES = 8


class ByteRange(NamedTuple):
    """Bytes of a document."""

    start: int
    end: int


def cut_segments(data: bytes, edges: npt.NDArray[np.int64], spans: SpanTable, max_tokens: int) -> list[int]:
    """Cut a document into segments of about equal length.

    Each cut is looked for in the last eighth of `max_tokens` before its even place: at a line end inside as
    few syntax spans as possible, or, where no line ends, behind such a token.

    Args:
        data: the document.
        edges: offsets between its tokens, 0 and the end included, shape (tokens + 1,).
        spans: its syntax spans; may be empty.
        max_tokens: of a segment, at least 32.

    Returns:
        Positions in `edges`, the first and last included. A segment is longer than `max_tokens` only where
        an eighth of that many tokens in a row end inside a character.
    """
    total = len(edges) - 1
    if total <= max_tokens:
        return [0, total]
    window = max_tokens // 8
    count = -(-total // (max_tokens - window))
    places = np.arange(1, count) * total // count
    candidates = places[:, None] - np.arange(window)  # the latest first
    offsets = edges[candidates]
    characters = np.frombuffer(data, dtype=np.uint8)
    depths = np.searchsorted(spans[:, 0], offsets)
    depths -= np.searchsorted(np.sort(spans[:, 1]), offsets, side="right")
    ranks = depths + _NO_LINE_END * (characters[offsets - 1] != ord("\n"))
    ranks[characters[offsets] & 0xC0 == 0x80] = _INSIDE_CHARACTER
    best = np.argmin(ranks, axis=1)[:, None]
    cuts = np.take_along_axis(candidates, best, axis=1)
    return [0, *cuts[np.take_along_axis(ranks, best, axis=1) < _INSIDE_CHARACTER].tolist(), total]


def random_hole(data: bytes, segment: ByteRange, rng: np.random.Generator) -> ByteRange:
    """Between two places that are drawn evenly (Bavarian et al. 2022, character level)."""
    first, second = sorted(rng.integers(segment.start, segment.end, size=2, endpoint=True).tolist())
    return ByteRange(_character_start(data, first), _character_start(data, second))


def _character_start(data: bytes, offset: int) -> int:
    while offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset


def line_hole(data: bytes, segment: ByteRange, rng: np.random.Generator) -> ByteRange | None:
    """A line, or the rest of one, and sometimes lines behind it; None if no line has a letter or a digit.

    What an editor asks for: half begin with the line and its indentation, half anywhere in it. The line break
    at the end belongs to the suffix.
    """
    lines = [match.span() for match in _LINE.finditer(data, segment.start, segment.end)]
    if not lines:
        return None
    first = int(rng.integers(len(lines)))
    last = min(first + int(rng.geometric(_ONE_LINE)), len(lines), first + MAX_HOLE_LINES) - 1
    start, end = lines[first]
    if rng.random() < 0.5:
        start = _character_start(data, int(rng.integers(start, end)))
    return ByteRange(start, lines[last][1])


def syntax_hole(spans: SpanTable, segment: ByteRange, rng: np.random.Generator) -> ByteRange | None:
    """A whole statement, block, body, function, argument list or condition; None if the segment has none.

    The kind is drawn first: statements are many times more numerous than the others.
    """
    inside = spans[(spans[:, 0] >= segment.start) & (spans[:, 1] <= segment.end)]
    if not len(inside):
        return None
    of_kind = inside[inside[:, 2] == rng.choice(np.unique(inside[:, 2]))]
    start, end, _ = of_kind[rng.integers(len(of_kind))].tolist()
    return ByteRange(start, end)


def body_hole(
    pairs: Sequence[Mapping[str, int]], segment: ByteRange, rng: np.random.Generator
) -> ByteRange | None:
    """The text between the braces of a documented function; None if the segment holds none whole.

    Args:
        pairs: column `docstrings` of a corpus; offsets of comment, signature and body.
        segment: has to hold all three.
        rng: draws the pair.
    """
    inside = [p for p in pairs if p["doc_start"] >= segment.start and p["body_end"] <= segment.end]
    if not inside:
        return None
    pair = inside[rng.integers(len(inside))]
    return ByteRange(pair["body_start"] + 1, pair["body_end"] - 1)
