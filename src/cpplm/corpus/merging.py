"""The items of a unit's files as one list in source order, without the includes that this makes superfluous.

`closed` brings what other files of the project declare, so that no include of the project is left. `kept`
leaves those includes in place, where the compiler finds them by itself: the headers of a system.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from cpplm.corpus.closure import Index
from cpplm.corpus.items import FileItems, Item, Kind
from cpplm.corpus.lexing import Directive
from cpplm.corpus.shortening import Detail
from cpplm.corpus.units import Unit


def closed(unit: Unit, parts: Sequence[FileItems], index: Index, detail: Detail) -> tuple[list[Item], set[int]]:
    """All items of a unit and what they need; the numbers of the unit's own."""
    gone = [{argument.encode() for argument in index.includes.edges[file.name]} for file in unit.files]
    first = _comments(parts, [index.number[file.name] for file in unit.files])
    own: list[Item] = []
    for part, arguments in zip(reversed(parts), reversed(gone), strict=True):
        before = _before_own_include(part.items, {argument.encode() for argument in unit.own_includes})
        first += _without_includes(before, arguments)
        own += _without_includes(part.items[len(before) :], arguments)
    borrowed = index.close(unit, [*first, *own], detail)
    files = {index.number[file.name] for file in unit.files}
    items = first + sorted([*own, *borrowed], key=index.place)
    return items, {number for number, item in enumerate(items) if item.file in files}


def kept(unit: Unit, parts: Sequence[FileItems]) -> list[Item]:
    """All items of a unit, `Item.file` counting its own files; includes of other files stay."""
    numbered = [[replace(item, file=number) for item in part.items] for number, part in enumerate(parts)]
    merged = _comments(parts, range(len(parts)))
    for guard in unit.guards:
        define = Directive(0, 0, b"define", guard)
        merged.append(
            Item(Kind.MACRO, b"#define " + guard, (), frozenset({guard}), 0, 0, 0, directives=(define,))
        )
    own, local, late = (
        {argument.encode() for argument in arguments}
        for arguments in (unit.own_includes, unit.local_includes, unit.late_includes)
    )
    for items in reversed(numbered):  # what a source defines before it includes its header comes before that
        before = _before_own_include(items, own)
        merged += _without_includes(before, own)
        del items[: len(before)]
    first = len(merged)
    for items in numbered:
        merged += _without_includes(items, own)
    for number, item in enumerate(merged):
        arguments = {directive.argument for directive in item.directives}
        item.local = item.local or bool(arguments & local)
        item.late = item.file > 0 and number >= first and bool(arguments & late)
    return merged


def _comments(parts: Sequence[FileItems], numbers: Sequence[int]) -> list[Item]:
    """What the files say about themselves at their heads, each text once."""
    texts = {part.header_comment: number for part, number in zip(parts, numbers, strict=True) if part.header_comment}
    return [Item(Kind.COMMENT, text, (), frozenset(), number, 0, 0) for text, number in texts.items()]


def _before_own_include(items: list[Item], own: set[bytes]) -> list[Item]:
    """The directives of a source before it includes its own header; none when code comes first."""
    for number, item in enumerate(items):
        if item.kind == Kind.INCLUDE and len(item.directives) == 1 and item.directives[0].argument in own:
            return items[:number]
        if item.kind not in (Kind.INCLUDE, Kind.MACRO, Kind.PRAGMA):
            break
    return []


def _without_includes(items: Sequence[Item], arguments: set[bytes]) -> list[Item]:
    """The items without the includes that have one of these arguments."""
    rest: list[Item] = []
    for item in items:
        if item.kind != Kind.INCLUDE or not any(directive.argument in arguments for directive in item.directives):
            rest.append(item)
        elif len(item.directives) > 1:
            text = item.text
            for argument in arguments:
                line = rb"(?m)^[ \t]*#[ \t]*include[ \t]*" + re.escape(argument) + rb"[^\n]*\n"
                text = re.sub(line, b"", text)
            rest.append(replace(item, text=text))
    return rest
