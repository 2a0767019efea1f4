"""The end of an item at namespace scope, by its brackets, not by a grammar."""

from __future__ import annotations

import re

from cpplm.cpp.dead_branches import CLOSE, OPEN
from cpplm.cpp.macros import MacroTable, closing
from cpplm.cpp.old_style_parameters import declares_parameter

NONBLANK = re.compile(rb"\S")
_BRACKET = re.compile(rb"[{}()\[\];\x02]")
_CALL = re.compile(rb"([A-Za-z_]\w*)\s*\(")
_LONE_WORD = re.compile(rb"[A-Za-z_]\w*+(?=\s*+(?:\Z|[\w}\x01\x02]))")  # `USING_LIBRARY_NAMESPACE`
_CLASS_HEAD = re.compile(rb"\btypedef\b|\b(?:class|struct|union|enum)\b[^()=;]*\Z")
_REQUIRES = re.compile(rb"\brequires\s*(?:\([^{}]*\))?\s*\Z")
_DECLARATION = re.compile(
    rb"(?:class|struct|union|enum|template|namespace|static|inline|using|typedef|extern|constexpr|explicit|const|"
    rb"void|bool|char|int|long|short|unsigned|signed|float|double|auto|virtual|std|[A-Z][A-Z0-9_]+\s*\()\b"
)


class UnsoundError(Exception):
    """Brackets and conditionals do not nest."""


def bracket_end(code: bytes, start: int, table: MacroTable) -> int:
    """Offset after the item that starts at `start`, by its brackets.

    Raises:
        UnsoundError: they do not nest.
    """
    statement_end = _statement_macro_end(code, start, table)
    if statement_end is not None:
        return statement_end
    depth = 0
    requires = False
    for match in _BRACKET.finditer(code, start):
        byte = match.group()
        if byte in b"{([":
            if depth == 0 and byte == b"{":
                # Looked for as a word first: a list of a thousand braces is one item.
                requires = code.find(b"requires", start, match.start()) >= 0 and bool(
                    _REQUIRES.search(code, start, match.start())
                )
            depth += 1
        elif byte == b";":
            if depth == 0 and not declares_parameter(code, start, match.start()):
                return match.end()
        elif depth == 0:  # the closer of the scope around the item, which has no semicolon
            if match.start() == start:
                raise UnsoundError
            return match.start()
        else:
            depth -= 1
            if depth == 0 and byte == b"}" and not requires:
                end = _end_after_brace(code, start, match.end())
                if end is not None:
                    return end
    if depth:
        raise UnsoundError
    return len(code.rstrip())


def _end_after_brace(code: bytes, start: int, after: int) -> int | None:
    """The end of the item when a brace at its own level closed before `after`; None when it goes on."""
    following = NONBLANK.search(code, after)
    if following is None:
        return after
    position = following.start()
    byte = following.group()
    head = code[start : code.index(b"{", start)]
    if byte == b";":
        return position + 1
    goes_on = byte in b",{" or code.startswith(b"catch", position)
    if goes_on or (byte in b"=(.[|&?:+-*/<>)" and not head.rstrip().endswith(b")")):
        return None
    return None if _CLASS_HEAD.search(head) and byte not in b"}" + OPEN + CLOSE else after


def _statement_macro_end(code: bytes, start: int, table: MacroTable) -> int | None:
    """A call of a statement macro without a semicolon ends at its parenthesis, or behind its name."""
    match = _CALL.match(code, start)
    if not match:
        word = _LONE_WORD.match(code, start)
        return word.end() if word and table.mask_of(word.group()) == "statement" else None
    name = match.group(1)
    known = table.mask_of(name) == "statement"
    if not known and not name.isupper():
        return None
    position = closing(code, match.end() - 1)
    following = NONBLANK.search(code, position)
    if following is None or following.group() in b"}" + CLOSE:
        return position
    if following.group() in b";{:=,(":
        return None
    on_new_line = b"\n" in code[position : following.start()]
    if known or (on_new_line and _DECLARATION.match(code, following.start())):
        return position
    return None
