"""C++ that can still be completed: tokens which break its syntax are drawn again.

    request = engine.request(prefix, suffix, valid=True)

Unlike a grammar (`grammar.py`) this looks at the one token that was drawn, and only where it ends a statement
or block, or closes a bracket: the text up to there, all open brackets closed, must have no more errors for
tree-sitter than the prompt had. Where a hole ends, prefix, middle and suffix together must have no more than
with nothing, or a name, in it. A prompt whose brackets do not match is not watched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tree_sitter

from cpplm.cpp.parser import grammar

_TOKEN = re.compile(
    rb"""
    (?P<blank>\s+|//[^\n]*|/\*.*?(?:\*/|\Z)|\#(?:\\\r?\n|[^\n])*)
  | (?:u8|[uUL])?R"(?P<mark>[^\s()\\"]{0,16})\(.*?(?:\)(?P=mark)"|\Z)
  | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*(?:"|(?=\n)|\Z)
  | (?:u8|[uUL])?'(?:\\.|[^'\\\n])*(?:'|(?=\n)|\Z)
  | [0-9](?:'?\w)*
  | [A-Za-z_]\w*
  | .
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSING = {b"(": b")", b"[": b"]", b"{": b"}"}
_BEHIND = {b"do": b"} while (0)", b"try": b"} catch (...) {}"}
"""End of a block by the word in front of it, where that is not a brace."""
_BEFORE_LIST = (b"=", b",", b"(", b"[", b"return")
"""Tokens behind which a brace begins a list of values."""
_LIST = (b"{", b"=")  # an open one
_WATCHED = re.compile(rb"[;{})\]]")
_MOST_REJECTED_ENDS = 24
"""Ends of one hole that are refused; then it ends as it will."""


@dataclass(frozen=True)
class CppContext:
    """The text around what is written."""

    before: bytes
    after: bytes | None = None
    """None where the text goes on at its end."""


def cpp_context(before: str | bytes, after: str | bytes | None) -> CppContext:
    """The text around what is written, as bytes."""
    before = before.encode("utf-8", "replace") if isinstance(before, str) else before
    return CppContext(before, after.encode("utf-8", "replace") if isinstance(after, str) else after)


@dataclass(frozen=True)
class _Place:
    """The end of a statement or block, and what is open there: brackets, each with the word before it."""

    end: int = 0
    open: tuple[tuple[bytes, bytes], ...] = ()
    needs_semicolon: bool = False
    """True behind a brace, which may belong to a class or a value."""


class CppSyntax:
    """The syntax of one text while it is written."""

    def __init__(self, context: CppContext) -> None:
        self._parser = tree_sitter.Parser(grammar("c++").loaded)
        self._text, self._after = context.before, context.after
        self._tree, self._parsed, self._same = self._parser.parse(b""), b"", 0
        self._place = _Place()
        place = self._scan(self._text)
        self._watches = place is not None
        self._place = place or self._place
        self._errors = self._closed_errors(self._text, self._place)
        self._ends = 0
        holes = () if self._after is None else (b"", b"x")
        self._whole_errors = min(
            (self._count(self._text + hole, self._after or b"") for hole in holes), default=0
        )

    def accepts(self, data: bytes, *, ends: bool) -> bool:
        """True if the text may go on with these bytes, or end with them."""
        if not self._watches:
            return True
        text = self._text + data
        if ends and self._after is not None:
            self._ends += 1
            fits = self._count(text, self._after) <= self._whole_errors
            return fits or self._ends > _MOST_REJECTED_ENDS
        if not _WATCHED.search(data):
            return True
        place = self._scan(text)
        if place is None:
            return False
        return place == self._place or self._closed_errors(text, place) <= self._errors

    def append(self, data: bytes) -> None:
        """Go on with these bytes."""
        self._text += data
        if self._watches and _WATCHED.search(data):
            self._place = self._scan(self._text) or self._place

    def _scan(self, text: bytes) -> _Place | None:
        """The last place in a text at which a statement or block ends; None if a bracket does not match."""
        place, open_, word = self._place, list(self._place.open), b""
        for match in _TOKEN.finditer(text, self._place.end):
            token, ends = match[0], False
            if match["blank"] is not None:
                continue
            if token in _CLOSING:
                is_list = word in _BEFORE_LIST or (word == b"{" and open_[-1:] == [_LIST])
                open_.append(_LIST if token == b"{" and is_list else (token, word))
                ends = token == b"{"
            elif token in (b")", b"]", b"}"):
                if not open_ or _CLOSING[open_[-1][0]] != token:
                    return None
                closed = open_.pop()
                ends = token == b"}" and closed != _LIST and closed[1] not in _BEHIND and _in_block(open_)
            elif token == b";":
                ends = _in_block(open_)
                if not ends and open_[-1] != (b"(", b"for"):
                    return None
            if ends:
                place = _Place(match.end(), tuple(open_), token == b"}")
            word = token
        return place

    def _closed_errors(self, text: bytes, place: _Place) -> int:
        """Errors in a text up to a place, all that is open closed."""
        closing = [b";"] if place.needs_semicolon else []
        for depth in range(len(place.open) - 1, -1, -1):
            bracket, word = place.open[depth]
            closing.append(_BEHIND.get(word, b"}") if bracket == b"{" else _CLOSING[bracket])
            if _in_block(place.open[:depth]):
                closing.append(b";")
        return self._count(text[: place.end], b"".join(closing))

    def _count(self, text: bytes, behind: bytes) -> int:
        """Errors in a text with something behind it; what of it was parsed before is not parsed again."""
        whole, old = text + behind, self._parsed
        same = min(self._same, len(text))
        places = _point(whole, same), _point(old, len(old)), _point(whole, len(whole))
        self._tree.edit(same, len(old), len(whole), *places)
        self._tree, self._parsed = self._parser.parse(whole, self._tree), whole
        self._same = min(len(text), len(self._text))  # behind it stands what may be drawn again
        return count_errors(self._tree.root_node)


def _in_block(open_: Sequence[tuple[bytes, bytes]]) -> bool:
    """True if statements stand inside what is open."""
    return not open_ or (open_[-1][0] == b"{" and open_[-1] != _LIST)


def count_errors(root: tree_sitter.Node) -> int:
    """Nodes of a tree that are errors, or missing."""
    errors, pending = 0, [root]
    while pending:
        node = pending.pop()
        errors += node.is_error or node.is_missing
        if node.has_error:
            pending += node.children
    return errors


def _point(text: bytes, end: int) -> tuple[int, int]:
    """Line and column of a place."""
    return text.count(b"\n", 0, end), end - text.rfind(b"\n", 0, end) - 1
