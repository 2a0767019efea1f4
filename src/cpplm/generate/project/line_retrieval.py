"""Lines at a cursor, taken from the project: code repeats itself, often with other names.

Where lines like those above the cursor or below it stand elsewhere in the project or in the file, what stands
between them there, or beside one of them, is a candidate. Lines are alike if their patterns are equal
(`line_index.py`); names that differ are replaced in the candidate, too. A softmax over the candidates and
"none of them" gives each the probability of being exactly what belongs there, from a few features with fitted
weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cpplm.generate.project.files import ProjectFile
from cpplm.generate.project.line_index import MAX_LINE, LineIndex, is_replaceable, line_tokens

_NEAR = 6  # lines above and below that are compared
_MAX_PLACES = 100  # of a line, in a file
_MAX_ALL_PLACES = 400
_MAX_LINES = 8  # of an answer
# By `python benchmarks/completion.py --fit --files FOLDER --holes 700`, FOLDER with the sets dev and known of
# recipes/debian_corpus.sh.
WEIGHTS = (-7.91, 0.81, 0.82, 0.17, 0.06, 2.27, -0.89, -0.84, 0.6, 2.51, 0.89, -0.13, -0.87)

MODEL_ADVANTAGE = 2.0
"""Odds at which a model's text is preferred to lines of the project: models are surer of what they write than
they are right (LOG.md, 2026-11-29)."""


class RetrievedLines(NamedTuple):
    """A line that may belong at a cursor, or several; `text` goes on from what is typed of the first."""

    text: str
    probability: float

    def is_preferred(self, written: Iterable[tuple[str, float]]) -> bool:
        """True unless as many lines that a model writes are `MODEL_ADVANTAGE` times as likely.

        Args:
            written: by the model, the text of each token and its log-probability.
        """
        lines, logprob = self.text.count("\n") + 1, 0.0
        for text, own in written:
            logprob += own
            lines -= text.count("\n")
            if lines <= 0:
                break
        return self.probability * MODEL_ADVANTAGE > math.exp(logprob)


@dataclass
class Candidate:
    """One line or several, and how the text around the place they are from is like that around the cursor."""

    text: str
    above: int = 0
    """Equal lines in front of it."""
    below: int = 0
    """Equal lines behind it."""
    patterns_above: int = 0
    """Lines of equal pattern in front of it."""
    patterns_below: int = 0
    """Lines of equal pattern behind it."""
    conflicts: int = 0
    """Lines by which a name would have two other names."""
    unknown: int = 0
    """Its names, numbers and strings that do not stand in those lines."""
    is_changed: bool = False
    """Some of its names are replaced."""
    is_here: bool = False
    """It is from the file with the cursor."""
    count: int = 1
    """Places that give it."""

    @property
    def features(self) -> tuple[float, ...]:
        """Values that the weights multiply."""
        return (
            1.0, self.above, self.below, self.patterns_above, self.patterns_below,
            float(self.patterns_above > 0 and self.patterns_below > 0), min(self.conflicts, 3),
            min(self.unknown, 3), float(self.is_changed), float(self.is_here), math.log1p(self.count),
            min(len(self.text.strip()), 60) / 20, min(self.text.count("\n"), 4),
        )  # fmt: skip

    @property
    def score(self) -> float:
        """Log of its odds against no candidate at all."""
        return sum(weight * value for weight, value in zip(WEIGHTS, self.features, strict=True))


@dataclass(frozen=True)
class _Place:
    """A line of a text that is somewhere in the project."""

    index: LineIndex
    line: int
    is_here: bool


@dataclass(frozen=True)
class _Cursor:
    """The text around a cursor, line by line."""

    before: LineIndex
    after: LineIndex
    typed: str
    """Of the cursor's line, in front of it."""
    rest: str
    """Of the cursor's line, behind it, without white space at its end."""


def retrieve_lines(
    files: Mapping[str, ProjectFile], name: str, prefix: str, suffix: str
) -> RetrievedLines | None:
    """The likeliest lines at a cursor; None where nothing in the project is like the lines around it.

    Args:
        files: of the project, by their names.
        name: of the file with the cursor, whose saved text is not looked at; "" if it is none of them.
        prefix: the file in front of the cursor.
        suffix: the file behind it.
    """
    found = retrieve_candidates(files, name, prefix, suffix)
    if not found:
        return None
    typed = prefix.rpartition("\n")[2]
    rest = suffix.partition("\n")[0].rstrip()
    odds = [math.exp(candidate.score) for candidate in found]
    best = max(range(len(found)), key=odds.__getitem__)
    text = found[best].text
    return RetrievedLines(text[len(typed) : len(text) - len(rest)], odds[best] / (1 + sum(odds)))


def retrieve_candidates(
    files: Mapping[str, ProjectFile], name: str, prefix: str, suffix: str
) -> list[Candidate]:
    """All that could stand at a cursor, as whole lines: with what is typed of them, and what is behind."""
    before, _, typed = prefix.rpartition("\n")
    rest, _, after = suffix.partition("\n")
    cursor = _Cursor(LineIndex(before), LineIndex(after), typed, rest.rstrip())
    found: dict[str, Candidate] = {}
    for place in _places(files, name, cursor):
        for candidate in _candidates(place, cursor):
            known = found.get(candidate.text, candidate)
            count = known.count + (known is not candidate)
            known.count = candidate.count = count  # the best of its places counts, and how many there are
            found[candidate.text] = max(candidate, known, key=lambda each: each.score)
    return list(found.values())


def _places(files: Mapping[str, ProjectFile], name: str, cursor: _Cursor) -> Iterator[_Place]:
    """Places behind a line like the one above the cursor, and in front of one like the one below."""
    elsewhere = [file.index for other, file in files.items() if other != name]
    seen: set[tuple[int, int]] = set()
    for is_text in (True, False):
        for near, at, step in ((cursor.before, -1, 1), (cursor.after, 0, -1)):
            if not near.lines:
                continue
            key = near.stripped[at] if is_text else near.patterns[at]
            tables = [(index, index.by_text if is_text else index.by_pattern, False) for index in elsewhere]
            for index in (cursor.before, cursor.after):
                tables.append((index, index.by_text if is_text else index.by_pattern, True))
            all_places = (
                _Place(index, line + step, is_here)
                for index, table, is_here in tables
                for line in table.get(key, ())[-_MAX_PLACES:]
            )
            for place in itertools.islice(all_places, _MAX_ALL_PLACES):
                mark = id(place.index), place.line
                if 0 <= place.line < len(place.index.lines) and mark not in seen:
                    seen.add(mark)
                    yield place


def _candidates(place: _Place, cursor: _Cursor) -> Iterator[Candidate]:
    """The lines at a place, with the cursor's names and as they stand, if they fit what is typed."""
    index, first = place.index, place.line
    names: dict[str, str] = {}
    above, patterns_above, conflicts = _compare(
        ((index.stripped[n], index.patterns[n]) for n in range(first - 1, -1, -1)),
        zip(
            reversed(cursor.before.stripped[-_NEAR:]), reversed(cursor.before.patterns[-_NEAR:]), strict=True
        ),
        names,
    )
    end = _end(index, first, cursor) if patterns_above else first + 1
    below, patterns_below, more_conflicts = _compare(
        ((index.stripped[n], index.patterns[n]) for n in range(end, len(index.lines))),
        zip(cursor.after.stripped[:_NEAR], cursor.after.patterns[:_NEAR], strict=True),
        names,
    )
    original = tuple(index.stripped[first:end])
    if not any(map(str.isalnum, "".join(original))) or max(map(len, original)) > MAX_LINE:
        return
    tokens = [line_tokens(line) for line in original]
    unknown = sum(is_replaceable(token) and token not in names for line in tokens for token in line)
    renamed = tuple("".join(names.get(token, token) for token in line) for line in tokens)
    indentations = [_indentation(index, line, first - 1, cursor) for line in range(first, end)]
    for lines, is_changed in {original: False, renamed: renamed != original}.items():
        whole = _fitted(lines, indentations, cursor)
        if whole is not None:
            yield Candidate(
                whole, above, below, patterns_above, patterns_below, conflicts + more_conflicts, unknown,
                is_changed, place.is_here,
            )  # fmt: skip


def _end(index: LineIndex, first: int, cursor: _Cursor) -> int:
    """The line soon behind the first that is like the one below the cursor; without, the next one."""
    for lines, below in (
        (index.stripped, cursor.after.stripped[:1]), (index.patterns, cursor.after.patterns[:1]),
    ):  # fmt: skip
        for end in range(first + 1, min(first + 1 + _MAX_LINES, len(lines))):
            if lines[end : end + 1] == below:
                return end
    return first + 1


def _compare(
    there: Iterator[tuple[str, str]], here: Iterator[tuple[str, str]], names: dict[str, str]
) -> tuple[int, int, int]:
    """Equal lines, and lines of equal pattern up to the first that is not; of these, those that contradict.

    `names` gets what each name there is called here; a line that has another name for it contradicts.
    """
    equal = alike = conflicts = 0
    for (text, pattern), (own_text, own_pattern) in zip(there, here, strict=False):
        if pattern != own_pattern:
            break
        equal += text == own_text and equal == alike
        alike += 1
        conflicts += not _learn_names(text, own_text, names)
    return equal, alike, conflicts


def _learn_names(there: str, here: str, names: dict[str, str]) -> bool:
    """Learn what the names of a line are called in another one; False if that contradicts `names`."""
    agrees = True
    words = ([token for token in line_tokens(line) if not token.isspace()] for line in (there, here))
    for word, own in zip(*words, strict=False):
        if is_replaceable(word):
            agrees &= names.setdefault(word, own) == own
    return agrees


def _indentation(index: LineIndex, line: int, reference: int, cursor: _Cursor) -> str:
    """The indentation of a line beside a reference line, applied to the line above the cursor."""

    def of(text: str) -> str:
        return text[: len(text) - len(text.lstrip())]

    own = of(index.lines[line])
    if reference < 0 or not cursor.before.lines:
        return own
    there, here = of(index.lines[reference]), of(cursor.before.lines[-1])
    if own.startswith(there):
        return here + own[len(there) :]
    less = there[len(own) :]
    is_less = there.startswith(own) and here.endswith(less)
    return here[: len(here) - len(less)] if is_less else own


def _fitted(lines: Sequence[str], indentations: Sequence[str], cursor: _Cursor) -> str | None:
    """Whole lines that begin with what is typed and end with what stands behind the cursor, or None."""
    begun, text = cursor.typed.lstrip(), lines[0]
    fits = text.startswith(begun) and lines[-1].endswith(cursor.rest)
    if not fits or (len(lines) == 1 and len(begun + cursor.rest) >= len(text)):
        return None
    first = cursor.typed + text[len(begun) :] if cursor.typed else indentations[0] + text
    return "\n".join([first, *map("".join, zip(indentations[1:], lines[1:], strict=True))])
