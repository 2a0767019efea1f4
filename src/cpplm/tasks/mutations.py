"""Ways to break a line of code so that it does not compile, as people do.

The kinds (punctuation, identifiers, keywords) are those of Yasunaga & Liang 2020, "Graph-based,
Self-Supervised Program Repair from Diagnostic Feedback" (arXiv 2005.10636).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from cpplm.cpp.keywords import KEYWORDS
from cpplm.judge.scoring import LAYOUT, TOKEN

_PUNCTUATION = frozenset(";(){}[],")
_MIN_IDENTIFIER = 4


def line_tokens(line: str) -> list[str]:
    """The tokens of a line, without space and comments."""
    return [token.group() for token in TOKEN.finditer(line) if token.lastgroup not in LAYOUT]


def words_of(line: str) -> list[str]:
    """Tokens that are no punctuation: names, numbers, texts."""
    return [token for token in line_tokens(line) if re.match(r"[\w\"']|[uUL]", token)]


def mutate(line: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Kind of a mutation and the broken line, one of each kind at most, in random order."""
    tokens = [token for token in TOKEN.finditer(line) if token.lastgroup not in LAYOUT]
    marks = [token for token in tokens if token.group() in _PUNCTUATION]
    names = [token for token in tokens if token.lastgroup == "word" and len(token.group()) >= _MIN_IDENTIFIER]
    keywords = [token for token in names if token.group() in KEYWORDS]
    identifiers = [token for token in names if token not in keywords]
    qualifiers = list(re.finditer(r"\bstd::", line))
    made: list[tuple[str, str]] = []

    def replace(kind: str, token: re.Match[str], text: str) -> None:
        made.append((kind, line[: token.start()] + text + line[token.end() :]))

    if marks:
        replace("dropped punctuation", rng.choice(marks), "")
        doubled = rng.choice(marks)
        replace("doubled punctuation", doubled, 2 * doubled.group())
    if identifiers:
        token = rng.choice(identifiers)
        replace("misspelt name", token, _misspell(token.group(), rng))
    if keywords:
        token = rng.choice(keywords)
        replace("misspelt keyword", token, _misspell(token.group(), rng))
    if qualifiers:
        replace("missing std::", rng.choice(qualifiers), "")
    rng.shuffle(made)
    yield from made


def _misspell(name: str, rng: random.Random) -> str:
    """A name with two letters swapped, one doubled, or one left out; never at its beginning."""
    place = rng.randrange(1, len(name) - 1)
    swapped = name[:place] + name[place + 1] + name[place] + name[place + 2 :]
    choices = [swapped, name[:place] + name[place] + name[place:], name[:place] + name[place + 1 :]]
    return rng.choice([each for each in choices if each != name])
