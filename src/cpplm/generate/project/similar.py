"""Code of a project that goes on from the lines above a cursor: what was written there was likely alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cpplm.generate.project.files import ProjectFile, stripped_lines

LINES_AFTER = 40
_LINES_BEFORE = 3  # of the match itself, which show what the lines behind it follow
_BACK = 3  # the lines above the cursor of which one has to stand elsewhere
_MOST_EQUAL = 10  # more lines above say no more
_SUFFIX_LINES, _SUFFIX_REACH = 3, 10
_MOST_PLACES = 200  # of one line in one file


class Match(NamedTuple):
    """A line that stands above the cursor, too, and how many around it do."""

    score: float
    file: str
    line: int


def find_similar(files: Mapping[str, ProjectFile], name: str, prefix: str, suffix: str, visible: int) -> str:
    """The lines behind the longest match of the lines above a cursor; "" where there is none.

    Args:
        files: of the project; that with the cursor is not looked at, but what is not in view of its prefix.
        name: of the file with the cursor.
        prefix: in front of the cursor.
        suffix: behind it.
        visible: characters of the prefix that the model sees anyway.
    """
    *above, partial = stripped_lines(prefix)
    above = [line for line in above if line]
    below = [line for line in stripped_lines(suffix[:2000])[1:] if line][:_SUFFIX_LINES]
    own = prefix[: max(0, len(prefix) - visible)].split("\n")[:-1]
    own_stripped = [line.strip() for line in own]
    best: Match | None = None
    for back in range(min(_BACK, len(above))):
        key, before = above[len(above) - 1 - back], above[: len(above) - 1 - back]
        if not any(map(str.isalnum, key)):
            continue
        matches = [
            Match(_score(lines, number, before, below, partial) - back / 2, other, number)
            for other, lines, places in _places(files, name, own_stripped, key)
            for number in places[:_MOST_PLACES]
        ]
        best = max(matches, key=lambda each: (each.score, each.file == name, -each.line), default=None)
        if best is not None:
            break
    if best is None:
        return ""
    text = own if best.file == name else files[best.file].text.split("\n")
    return "\n".join(text[max(0, best.line - _LINES_BEFORE) : best.line + LINES_AFTER]) + "\n"


def _places(
    files: Mapping[str, ProjectFile], name: str, own: Sequence[str], key: str
) -> Iterator[tuple[str, Sequence[str], Sequence[int]]]:
    """Files with a line, their lines, and the numbers of that one."""
    for other, file in files.items():
        if other != name and (places := file.places.get(key)):
            yield other, file.lines, places
    yield name, own, [number for number, line in enumerate(own) if line == key]


def _score(
    lines: Sequence[str], number: int, before: Sequence[str], below: Sequence[str], partial: str
) -> float:
    """Likeness of the text around a line to that around the cursor: above, below, and its own line."""
    equal, at = 1, len(before) - 1
    for place in range(number - 1, -1, -1):
        if not lines[place]:
            continue
        if at < 0 or lines[place] != before[at] or equal == _MOST_EQUAL:
            break
        equal, at = equal + 1, at - 1
    following = lines[number + 1 : number + _SUFFIX_REACH]
    same_below = sum(line in following for line in below)
    begins_alike = bool(partial) and any(line.startswith(partial) for line in following[:2])
    return equal + same_below * 2 / 3 + 2 * begins_alike
