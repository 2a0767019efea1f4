"""Pieces of a file, each with the namespaces and `#if` conditions around it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from cpplm.cpp.lexer import Directive

SegmentCategory = Literal["code", "directive", "region"]
# `BEGIN_NAMESPACE`, `NAMESPACE_BEGIN(detail)`
_MACRO = re.compile(rb"(\w+)\s*((?:\([^()]*\))?)")


@dataclass(slots=True, unsafe_hash=True)
class Scope:
    """A namespace, an `extern "C"` block or a macro that opens one; equal when opened by the same words."""

    opener: bytes = field(compare=False)
    closer: bytes = field(default=b"}", compare=False)
    key: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.key = b" ".join(self.opener.split())

    @property
    def macros(self) -> tuple[bytes, ...]:
        """The macros that open and close it, where macros do, and those that name it."""
        found = [match for text in (self.opener, self.closer) if (match := _MACRO.fullmatch(text))]
        arguments = (
            name for match in found for name in re.findall(rb"\w+", match.group(2)) if name.isupper()
        )
        return (*(match.group(1) for match in found), *arguments)


@dataclass(frozen=True, slots=True)
class Condition:
    """A branch of an `#if` group: the directive lines from its `#if` to the branch's own.

    `group` is the offset of the `#if` in its file; conditions of equal lines are equal wherever they stand.
    """

    lines: tuple[bytes, ...]
    group: int = field(default=-1, compare=False)

    @property
    def opener(self) -> bytes:
        """An `#if` that holds exactly where the branch does."""
        if len(self.lines) == 1:
            return self.lines[0]
        if len(self.lines) == 2 and self.lines[1] == b"#else":
            keyword, _, name = self.lines[0].partition(b" ")
            swapped = {b"#ifdef": b"#ifndef ", b"#ifndef": b"#ifdef "}.get(keyword)
            if swapped:
                return swapped + name
        terms = [b"!(" + _expression(line) + b")" for line in self.lines[:-1]]
        if self.lines[-1] != b"#else":
            terms.append(b"(" + _expression(self.lines[-1]) + b")")
        return b"#if " + b" && ".join(terms)


def _expression(line: bytes) -> bytes:
    """The condition of a directive as an `#if` expression."""
    keyword, _, rest = line.partition(b" ")
    if keyword in (b"#ifdef", b"#elifdef"):
        return b"defined(" + rest.strip() + b")"
    if keyword in (b"#ifndef", b"#elifndef"):
        return b"!defined(" + rest.strip() + b")"
    return rest.strip()


Frame = Scope | Condition


@dataclass(slots=True)
class SourceSegment:
    """One top-level declaration or directive: `data[start:end]`, with the comments before it in `leading`.

    Blank lines, scopes and directives may lie between those: they begin at `leading_start`.
    """

    start: int
    end: int
    leading: bytes
    leading_start: int
    stack: tuple[Frame, ...]
    sort: SegmentCategory
    directives: tuple[Directive, ...] = ()
    leading_names: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class SegmentedFile:
    """The pieces of a file in order; `sound` is False when brackets or conditionals do not add up."""

    pieces: list[SourceSegment]
    code: bytes
    plain: bytes
    header_comment: bytes
    sound: bool
    passed: frozenset[int]  # offsets of directives that stand in no piece: guards
