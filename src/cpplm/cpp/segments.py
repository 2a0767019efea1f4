"""Pieces of a file, each with the namespaces and `#if` conditions around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cpplm.cpp.lexer import Directive

SegmentCategory = Literal["code", "directive", "directives", "region"]


class Scope:
    """A namespace, an `extern "C"` block or a macro that opens one; equal when opened by the same words."""

    __slots__ = ("closer", "key", "opener")

    def __init__(self, opener: bytes, closer: bytes = b"}") -> None:
        self.opener = opener
        self.closer = closer
        self.key = b" ".join(opener.split())

    @property
    def macros(self) -> tuple[bytes, ...]:
        """The macros that open and close it, where macros do."""
        return tuple(text for text in (self.opener, self.closer) if text.replace(b"_", b"a").isalnum())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scope) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class Condition:
    """A branch of an `#if` group: the directive lines from its `#if` to the branch's own."""

    lines: tuple[bytes, ...]


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
