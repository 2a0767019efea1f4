"""Branches of one file's `#if`s: which are read, which macros a build has to define, what an item keeps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cpplm.corpus.slicing.include_resolver import IncludeResolver
from cpplm.corpus.slicing.outlines import without_spans
from cpplm.corpus.slicing.project_index import ParsedFile
from cpplm.cpp.conditions import IF_NOT_DEFINED, Macro, MacroState, is_elsewhere
from cpplm.cpp.items import Item, ItemKind, conditions_in
from cpplm.cpp.lexer import (
    ELSE_KEYWORDS,
    IDENTIFIER,
    IF_KEYWORDS,
    INCLUDE_KEYWORDS,
    Directive,
    conditional_groups,
    inner_first,
)
from cpplm.cpp.segments import Condition

_HAS_INCLUDE = re.compile(rb"__has_include\s*\(\s*(\"[^\"]*\"|<[^>]*>)\s*\)")
_BEGINS_GROUP = re.compile(rb"(?:\s++|//[^\n]*+|/\*.*?\*/)*+#", re.DOTALL)
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
        keys = [(frame.group, number) for number in range(len(frame.lines))]
        for key, line in zip(keys, frame.lines, strict=True):
            if key not in self.values:
                self.values[key] = self._holds(line)
        *before, value = map(self.values.__getitem__, keys)
        if True in before or value is False:
            return False
        return None if None in before or value is None else True


def decide_conditions(
    file: ParsedFile, state: MacroState, branches: Branches, includes: IncludeResolver
) -> Conditions:
    """The branches of a file, with answers to `__has_include` as far as the project can give them."""

    def has_include(match: re.Match[bytes]) -> bytes:
        argument = match.group(1).decode("utf-8", "replace")
        if includes.resolve(file.name, argument) is not None:
            return b"1"
        return b"0" if includes.is_build_written(argument) else match.group()

    def holds(line: bytes) -> bool | None:
        return state.holds(_HAS_INCLUDE.sub(has_include, line) if b"__has_" in line else line)

    return Conditions(holds, branches)


class BuildMacros(NamedTuple):
    """Macros that a build may define, at a place of a file.

    Attributes:
        file: which is read.
        state: the macros there.
        likely: the same where all that the project leaves open is not defined.
        definition: the value of a macro that a build defines.
    """

    file: ParsedFile
    state: MacroState
    likely: MacroState
    definition: Callable[[bytes], bytes]

    def avoiding(self, condition: Condition) -> bytes | None:
        """The first macro with whose definition a branch is not read, if there is one.

        Not a macro that the file defines itself, but for one that the branch has a default for; where the
        branch is for when none of several branches defined it, a macro with which one of them does.
        """
        known = self._defined_outside(condition)
        for name in self._open_names(condition.lines):
            *before, chosen = self._hold_with(name, condition.lines)
            if name not in known and (True in before or chosen is False):
                return name
        is_negative = IF_NOT_DEFINED.fullmatch(condition.lines[-1]) is not None
        wanted = known.intersection(IDENTIFIER.findall(condition.lines[-1]) if is_negative else ())
        for number, item in enumerate(self.file.items if wanted else ()):
            for directive, inner in nested_directives(self.file, number):
                around = [*conditions_in(item.stack), *inner][-1:]
                if directive.keyword == b"define" and directive.macro in wanted and around:
                    line = around[0].lines[-1:]
                    names = (each for each in self._open_names(line) if each not in known)
                    found = next((each for each in names if self._hold_with(each, line) == [True]), None)
                    if found is not None:
                        return found
        return None

    def _defined_outside(self, condition: Condition) -> set[bytes]:
        """The macros that the file defines, but for those in the group of a condition."""
        groups = inner_first(self.file.parsed.lexed.groups)
        start, end = next(((g.start, g.end) for g in groups if g.start == condition.group), (0, 0))
        directives = [directive for item in self.file.items for directive in item.directives]
        defined = (d for d in directives if d.keyword == b"define" and not start <= d.start < end)
        included = (each.argument for each in directives if each.keyword in INCLUDE_KEYWORDS)
        return {each.macro for each in defined}.union(included)

    def _open_names(self, lines: Sequence[bytes]) -> list[bytes]:
        """The macros of conditions that are not known there."""
        names = dict.fromkeys(name for line in lines for name in IDENTIFIER.findall(line)[1:])
        known = self.state.macros.keys() | {b"defined"}
        return [name for name in names if name not in known and not is_elsewhere(name)]

    def _hold_with(self, name: bytes, lines: Sequence[bytes]) -> list[bool | None]:
        """True for each condition that holds where a macro is defined, None where that is open."""
        macros = {**self.likely.macros, name: Macro(self.definition(name))}
        return list(map(replace(self.likely, macros=macros).holds, lines))


def choose_header(
    item: Item, conditions: Conditions, is_there: Callable[[str], bool], holds: Callable[[bytes], bool | None]
) -> bool:
    """Decide between headers that a build chooses from: that of the `#else`, or else the first one.

    `#if A`, `#include "a.h"`, `#elif B`, `#include "b.h"`, where nothing in the project defines A or B.

    Args:
        item: of these directives.
        conditions: of its file; the branches of the group are decided in it.
        is_there: whether the project has what the argument of an include names.
        holds: what is known of a condition.

    Returns:
        Whether the group is one of these, and was not decided.
    """
    if len(item.directives) < 5:  # `#if`, an include, `#else`, an include, `#endif`
        return False
    group: Condition | None = None
    headers: dict[tuple[bytes, ...], list[bool | None]] = {}  # None: of the system or a library
    for directive in item.directives:
        if directive.keyword in IF_KEYWORDS:
            if group is not None:
                return False  # groups within groups decide otherwise
            group = Condition((directive.line,), directive.start)
        elif directive.keyword in ELSE_KEYWORDS and directive.keyword != b"endif" and group is not None:
            group = Condition((*group.lines, directive.line), group.group)
        elif directive.keyword in INCLUDE_KEYWORDS and group is not None:
            argument = directive.argument.decode("utf-8", "replace")
            there = is_there(argument)
            headers.setdefault(group.lines, []).append(there if argument.startswith('"') else there or None)
        elif directive.keyword not in INCLUDE_KEYWORDS and directive.keyword != b"endif":
            return False
    found = [lines for lines, there in headers.items() if True in there and False not in there]
    if (group is None or len(headers) < 2 or not found) or any(
        conditions.values.get((group.group, number)) for number in range(len(group.lines))
    ):
        return False
    values = [holds(line) for line in group.lines]
    if not all(value is None or line == b"#else" for value, line in zip(values, group.lines, strict=True)):
        return False
    chosen = len(found[-1] if found[-1][-1] == b"#else" else found[0]) - 1
    conditions.values |= {(group.group, n): n == chosen for n in range(len(group.lines))}
    return True


def is_one_group(item: Item) -> bool:
    """True if an item is one `#if` with its branches, and nothing else."""
    if not item.directives or not _BEGINS_GROUP.match(item.text):
        return False
    groups, _ = conditional_groups(item.directives)
    last = item.directives[-1].end
    rest = item.text[len(item.text) + last - item.end :]
    return [group.end for group in groups] == [last] and not rest.strip()


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


def written_includes(includes: Sequence[tuple[tuple[Condition, ...], bytes]]) -> bytes:
    """Includes with the conditions around them, those of equal conditions together."""
    lines: list[bytes] = []
    for conditions, group in itertools.groupby(includes, key=lambda each: each[0]):
        lines += [condition.opener for condition in conditions]
        lines += [line for _, line in group]
        lines += [b"#endif"] * len(conditions)
    return b"\n".join(lines)


def without_directives(item: Item, removed: Sequence[Directive]) -> bytes:
    """An item's text without some of its lines, in order; nothing where no line says anything then."""
    if item.kind == ItemKind.INCLUDE and all(
        each in removed or each.keyword in IF_KEYWORDS | ELSE_KEYWORDS for each in item.directives
    ):
        return b""
    shift = len(item.text) - item.end  # from offsets in the file
    return without_spans(item.text, [(each.start + shift, each.end + 1 + shift) for each in removed])
