"""Lines of code by their text and by their pattern: what is left without names, numbers and strings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

from cpplm.cpp.keywords import KEYWORDS

_TOKEN = re.compile(r'[^\W\d]\w*|\d[\w.]*|"(?:[^"\\]|\\.)*"|\s+|.')
_CACHED_LINES = 1 << 18
MAX_LINE = 500  # characters; of longer ones only the beginning is compared


@lru_cache(_CACHED_LINES)
def line_tokens(line: str) -> tuple[str, ...]:
    """The words, numbers, strings and signs of a line, and the white space between them."""
    return tuple(_TOKEN.findall(line[:MAX_LINE]))


def is_replaceable(token: str) -> bool:
    """True for what may have another name elsewhere: a name, a number, a string."""
    return (token[0].isalnum() or token[0] in '_"') and token not in KEYWORDS


@lru_cache(_CACHED_LINES)
def line_pattern(line: str) -> str:
    """A line with a sign in place of each name, number and string, and without white space."""
    return "".join(
        "$" if is_replaceable(token) else token for token in line_tokens(line) if not token.isspace()
    )


class LineIndex:
    """The lines of a text that are not blank, and where each of them stands."""

    def __init__(self, text: str) -> None:
        """Nothing is computed before it is asked for."""
        self._text = text

    @cached_property
    def lines(self) -> list[str]:
        """With their indentation."""
        return [line.rstrip() for line in self._text.split("\n") if line.strip()]

    @cached_property
    def stripped(self) -> list[str]:
        """Without white space around them."""
        return [line.strip() for line in self.lines]

    @cached_property
    def patterns(self) -> list[str]:
        """Of each line."""
        return [line_pattern(line) for line in self.stripped]

    @cached_property
    def by_text(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the lines that have a text."""
        return places(self.stripped)

    @cached_property
    def by_pattern(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the lines that have a pattern."""
        return places(self.patterns)


def places(keys: Sequence[str]) -> dict[str, list[int]]:
    """The numbers at which each key stands."""
    found: dict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        found[key].append(number)
    return dict(found)
