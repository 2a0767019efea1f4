"""The branches of one file's `#if`s: which of them are read, and which are open behind each directive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cpplm.corpus.slicing.project_index import ParsedFile
from cpplm.cpp.lexer import ELSE_KEYWORDS, IF_KEYWORDS, Directive
from cpplm.cpp.segments import Condition

Branches = Mapping[tuple[int, int], bool]  # by the offset of an `#if` and a branch's number: is it read?


class Conditions:
    """The branches of one file, each decided where it is met first."""

    def __init__(self, holds: Callable[[bytes], bool | None], known: Branches) -> None:
        self._holds = holds
        self.values: dict[tuple[int, int], bool | None] = dict(known)
        self._branches: dict[tuple[int, int], bool | None] = {}  # by group and number of lines

    def live(self, stack: Sequence[Condition]) -> bool | None:
        """True if text in all of these branches is read."""
        known: bool | None = True
        for frame in stack:
            key = (frame.group, len(frame.lines))
            if key not in self._branches:
                self._branches[key] = self._branch(frame)
            value = self._branches[key]
            if value is False:
                return False
            known = known and value if value is not None else None
        return known

    def _branch(self, frame: Condition) -> bool | None:
        before: bool | None = False  # whether an earlier branch is read
        for number, line in enumerate(frame.lines):
            key = (frame.group, number)
            if key not in self.values:
                self.values[key] = self._holds(line)
            value = self.values[key]
            if number == len(frame.lines) - 1:
                if before is True or value is False:
                    return False
                return None if before is None or value is None else True
            if value is True:
                before = True
            elif value is None and before is False:
                before = None
        return before


def nested_directives(file: ParsedFile, number: int) -> list[tuple[Directive, list[Condition]]]:
    """The directives of an item with the branches within it that are open behind each."""
    if number not in file.nested:
        inner: list[Condition] = []
        file.nested[number] = []
        for directive in file.items[number].directives:
            if directive.keyword in IF_KEYWORDS:
                inner = [*inner, Condition((directive.line,), directive.start)]
            elif directive.keyword in ELSE_KEYWORDS and inner:
                *inner, last = inner
                if directive.keyword != b"endif":
                    inner.append(Condition((*last.lines, directive.line), last.group))
            file.nested[number].append((directive, inner))
    return file.nested[number]
