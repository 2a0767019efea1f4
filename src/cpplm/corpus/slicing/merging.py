"""The items of a unit's files as one list in source order, without the includes that this makes superfluous.

`closed` brings what other files of the project declare, so that no include of the project is left. `kept`
leaves those includes in place, where the compiler finds them by itself: the headers of a system.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from cpplm.corpus.slicing.asked import NOTHING, Asked
from cpplm.corpus.slicing.closure import Index, without_includes
from cpplm.corpus.slicing.packing import Bundle
from cpplm.corpus.slicing.shortening import Detail
from cpplm.corpus.slicing.units import Unit
from cpplm.cpp.items import FileItems, Item, ItemKind, condition_names
from cpplm.cpp.lexer import Directive


def closed(
    unit: Unit,
    parts: Sequence[FileItems],
    index: Index,
    detail: Detail,
    limit: int,
    *,
    asked: Asked = NOTHING,
    more: Callable[[list[Item], list[Item]], list[Item]] | None = None,
) -> Bundle | None:
    """All items of a unit and what they need; None when they need more than `limit` bytes.

    `more` adds to these two.
    """
    gone = [index.answered(file.name) | asked.without for file in unit.files]
    first = _comments(parts, [index.number[file.name] for file in unit.files])
    first += asked.directives(index.number[unit.name])
    own: list[Item] = []
    for part, arguments in zip(reversed(parts), reversed(gone), strict=True):
        before = _before_own_include(part.items, {argument.encode() for argument in unit.own_includes})
        first += without_includes(before, arguments)
        own += without_includes(part.items[len(before) :], arguments)
        _place_freely(part.items)
    borrowed = index.close(unit, [*first, *own], detail, limit, asked=asked)
    if borrowed is None:
        return None
    if more is not None:
        borrowed += more([*first, *own], borrowed)
    files = {index.number[file.name] for file in unit.files}
    decisive = frozenset().union(*(condition_names(item.stack) for item in borrowed))
    early = [
        item
        for item in own
        if item.kind == ItemKind.MACRO and _is_asked(item, decisive) and index.before_include(item)
    ]
    first += early
    own = [item for item in own if not any(item is other for other in early)]
    items = first + _placed([*own, *borrowed], index, unit, asked)
    roots = {number for number, item in enumerate(items) if item.file in files}

    def brief(item: Item) -> Item:
        """What is borrowed is short already."""
        return index.shortener.shorten(item, Detail.DECLARATIONS) if item.file in files else item

    return Bundle(items, roots, index.names, brief, index.resolver)


def kept(unit: Unit, parts: Sequence[FileItems], index: Index) -> Bundle:
    """All items of a unit, `Item.file` counting its own files; includes of other files stay."""
    numbered = [[replace(item, file=number) for item in part.items] for number, part in enumerate(parts)]
    merged = _comments(parts, range(len(parts)))
    for guard in unit.guards:
        define = Directive(0, 0, b"define", guard)
        merged.append(
            Item(ItemKind.MACRO, b"#define " + guard, (), frozenset({guard}), 0, 0, 0, directives=(define,))
        )
    own, local, late = (
        {argument.encode() for argument in arguments}
        for arguments in (unit.own_includes, unit.local_includes, unit.late_includes)
    )
    for items in reversed(numbered):  # what a source defines before it includes its header comes before that
        before = _before_own_include(items, own)
        merged += without_includes(before, own)
        del items[: len(before)]
    first = len(merged)
    for items in numbered:
        merged += without_includes(items, own)
    for number, item in enumerate(merged):
        arguments = {directive.argument for directive in item.directives}
        item.local = item.local or bool(arguments & local)
        item.late = item.file > 0 and number >= first and bool(arguments & late)
    names = [file.name for file in unit.files]
    return Bundle(
        merged,
        set(range(len(merged))),
        names,
        lambda item: index.shortener.shorten(item, Detail.DECLARATIONS),
    )


def _placed(items: list[Item], index: Index, unit: Unit, asked: Asked) -> list[Item]:
    """The items in the order of the project; what no include brings stands before the first that needs it."""
    placed = sorted(items, key=index.place)
    if not asked.files:
        return placed
    taken = {index.number[name] for name in index.includes.visible([file.name for file in unit.files])}
    groups: list[list[Item]] = []
    for name in sorted(asked.files):
        files = {index.number[other] for other in index.includes.visible([name])} - taken
        groups.append([item for item in placed if item.file in files])
        taken |= files
    added = _by_need(groups)
    ours = {id(item) for item in added}
    others = [item for item in placed if id(item) not in ours]
    first = next((number for number, item in enumerate(others) if asked.names & item.mentions), 0)
    return [*others[:first], *added, *others[first:]]


def _by_need(groups: list[list[Item]]) -> list[Item]:
    """Items group by group, each after those that declare what it mentions; a cycle is entered once."""
    declared = [
        {name for item in group for name in (*item.names, *(d.macro for d in item.directives))}
        for group in groups
    ]
    found: list[Item] = []
    seen: set[int] = set()

    def add(number: int) -> None:
        seen.add(number)
        mentioned = set().union(*(item.mentions for item in groups[number])) - declared[number]
        for other, names in enumerate(declared):
            if other not in seen and not mentioned.isdisjoint(names):
                add(other)
        found.extend(groups[number])

    for number in range(len(groups)):
        if number not in seen:
            add(number)
    return found


def _place_freely(items: Sequence[Item]) -> None:
    """Includes at the head of a file may stand anywhere at the head of a document."""
    for item in itertools.takewhile(lambda item: item.kind <= ItemKind.FORWARD, items):
        item.local = False


def _is_asked(item: Item, asked: frozenset[bytes]) -> bool:
    """Whether a plain definition decides conditions of what is included after it."""
    return not item.stack and any(d.keyword == b"define" and d.macro in asked for d in item.directives)


def _comments(parts: Sequence[FileItems], numbers: Sequence[int]) -> list[Item]:
    """What the files say about themselves at their heads, each text once."""
    texts = {
        part.header_comment: (number, part.lexed.data)
        for part, number in zip(parts, numbers, strict=True)
        if part.header_comment
    }
    found: list[Item] = []
    for text, (number, data) in texts.items():
        line = data.count(b"\n", 0, data.index(text))
        found.append(Item(ItemKind.COMMENT, text, (), frozenset(), number, line, line + text.count(b"\n")))
    return found


def _before_own_include(items: list[Item], own: set[bytes]) -> list[Item]:
    """The directives of a source before it includes its own header; none when code comes first."""
    for number, item in enumerate(items):
        if item.kind == ItemKind.INCLUDE and len(item.directives) == 1 and item.directives[0].argument in own:
            return items[:number]
        if item.kind not in (ItemKind.INCLUDE, ItemKind.MACRO, ItemKind.PRAGMA):
            break
    return []
