"""Files that are pieces of others: entries of an enumeration, rows of a table, calls of a macro.

Their text takes the place of the include, so that whoever reads the file sees whole declarations with all
their names. As often as it is included: the macros in it may mean something else each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from cpplm.cpp.file_suffixes import FRAGMENT_SUFFIXES
from cpplm.cpp.items import Item, ItemKind, conditions_in
from cpplm.cpp.lexer import INCLUDE_KEYWORDS, lex

_DECLARATIONS = (
    ItemKind.TYPE,
    ItemKind.ALIAS,
    ItemKind.VARIABLE,
    ItemKind.FUNCTION,
    ItemKind.CALL,
    ItemKind.OTHER,
)
# Of text that is put into one file, and of one piece that stands between declarations.
_MOST_BYTES = 500_000
_MOST_BETWEEN = 50_000


class Splice(NamedTuple):
    """Lines of another file in a text: the number of the first one there, counted from 0, and how many."""

    first: int
    length: int
    file: str


def splice(
    data: bytes, items: Iterable[Item], find: Callable[[str], str | None], read: Callable[[str], bytes]
) -> tuple[bytes, list[Splice]]:
    """A file's text with the pieces that it includes, and where these stand.

    What is included in the midst of a declaration is a piece; between declarations see `_stands_between`.
    `find` leads from the argument of an include to the name of a file.
    """
    parts: list[bytes] = []
    splices: list[Splice] = []
    position = line = room = 0
    for item, directive in ((owner, each) for owner in items for each in owner.directives):
        name = find(directive.target) if directive.target else None
        is_inside = item.kind in _DECLARATIONS
        if name is None or not (is_inside or _stands_between(item, name)):
            continue
        text = read(name)
        if room + len(text) > _MOST_BYTES or not (is_inside or _is_piece(text)):
            continue
        if item.kind == ItemKind.OTHER and lex(text).guard:  # a header amid what no tree was made of
            continue
        text = text.rstrip(b"\n")
        before = data[position : directive.start]
        parts += [before, text]
        line += before.count(b"\n")
        splices.append(Splice(line, text.count(b"\n") + 1, name))
        line += text.count(b"\n")
        room += len(text)
        position = directive.end
    return b"".join([*parts, data[position:]]), splices


def _stands_between(item: Item, name: str) -> bool:
    """True if a file that is included between declarations may be a piece."""
    return item.kind == ItemKind.REGION or (
        item.kind == ItemKind.INCLUDE
        and len(item.directives) == 1
        and not conditions_in(item.stack)
        and PurePosixPath(name).suffix.lower() in FRAGMENT_SUFFIXES
    )


def _is_piece(text: bytes) -> bool:
    """True if a file may be included again."""
    if len(text) > _MOST_BETWEEN:
        return False
    lexed = lex(text)
    return not lexed.is_read_once and all(each.keyword not in INCLUDE_KEYWORDS for each in lexed.directives)


def source_lines(name: str, splices: Sequence[Splice], first: int, last: int) -> list[tuple[str, int, int]]:
    """The sources of lines of a text: (file, first, last), counted from 1; those of the text are from 0."""
    found: list[tuple[str, int, int]] = []
    shift = 1  # from numbers in the text to those in the file
    for each in splices:
        end = each.first + each.length
        if each.first > last:
            break
        if end > first:
            if first <= each.first:  # with the include itself
                found.append((name, first + shift, each.first + shift))
            inside = max(first, each.first)
            found.append((each.file, inside - each.first + 1, min(last + 1, end) - each.first))
            first = end
        shift -= each.length - 1
    return [*found, (name, first + shift, last + shift)] if first <= last else found
