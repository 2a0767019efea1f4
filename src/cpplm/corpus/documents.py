"""A unit to documents that never exceed the budget.

    compilable   header, second half and source merged and ordered; a part of a unit too long for one document
                 has with it all that it needs
    file         a file as it is: asked for (`mode="file"`), or its brackets or conditionals do not add up
    chunk        a piece that cannot stand alone: what it needs does not fit beside it, or one item was cut

Every item is written at least once. The budget is what `count` says, of the final text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from cpplm.corpus.items import FileItems, Item, Kind, count_functions, read_items
from cpplm.corpus.lexing import Directive
from cpplm.corpus.masking import MacroTable
from cpplm.corpus.ordering import PREAMBLE, Graph, order
from cpplm.corpus.pieces import Frame, Scope
from cpplm.corpus.sources import normalise
from cpplm.corpus.units import Unit
from cpplm.corpus.writer import render

DocumentKind = Literal["compilable", "file", "chunk"]
Count = Callable[[str], int]
# Above this share of unreadable bytes the order of items means little.
_MOST_ERRORS = 0.2
# What a part of a unit may repeat from other parts, and how much of that may be its preamble.
_REPEATED_SHARE = 0.5
_PREAMBLE_SHARE = 0.25
_SHORT_MACRO = 120


@dataclass(frozen=True)
class Document:
    """One training document with its provenance; `size` is in the unit of the budget."""

    text: str
    kind: DocumentKind
    files: tuple[str, ...]
    size: int
    functions: int


@dataclass(frozen=True)
class Options:
    """What building one unit depends on, besides the unit."""

    macros: MacroTable
    budget: int
    count: Count
    ordered: bool


def build_unit(unit: Unit, options: Options) -> tuple[list[Document], int]:
    """The documents of a unit, and the number of function definitions in its files."""
    sources = [normalise(file.path.read_bytes()) for file in unit.files]
    parts = [read_items(data, options.macros, file=number) for number, data in enumerate(sources)]
    functions = sum(part.functions for part in parts)
    if options.ordered and _can_be_ordered(parts):
        return _Packer(unit, _merge(unit, parts), options).pack(), functions
    documents: list[Document] = []
    for file, data, part in zip(unit.files, sources, parts, strict=True):
        documents += _whole_file(file.name, data, part, options)
    return documents, functions


def _can_be_ordered(parts: Sequence[FileItems]) -> bool:
    size = sum(len(part.lexed.data) for part in parts)
    return (
        all(part.sound for part in parts) and sum(part.error_bytes for part in parts) <= _MOST_ERRORS * size
    )


def _merge(unit: Unit, parts: Sequence[FileItems]) -> list[Item]:
    """All items of a unit in source order, includes of its own files left out."""
    nothing: frozenset[bytes] = frozenset()
    merged: list[Item] = []
    for number, part in enumerate(parts):
        if part.header_comment and all(item.text != part.header_comment for item in merged):
            merged.append(Item(Kind.COMMENT, part.header_comment, (), nothing, number, 0, 0))
    for guard in unit.guards:
        define = Directive(0, 0, b"define", guard)
        merged.append(
            Item(Kind.MACRO, b"#define " + guard, (), frozenset({guard}), 0, 0, 0, directives=(define,))
        )
    own, local, late = (
        {argument.encode() for argument in arguments}
        for arguments in (unit.own_includes, unit.local_includes, unit.late_includes)
    )
    for part in reversed(parts):  # what a source defines before it includes its header comes before that
        merged.extend(_before_own_include(part.items, own))
    first = {id(item) for item in merged}
    for item in (item for part in parts for item in part.items if id(item) not in first):
        if _without_own_includes(item, own):
            merged.append(item)
    for item in merged:
        arguments = {directive.argument for directive in item.directives}
        item.local = item.local or bool(arguments & local)
        item.late = item.file > 0 and id(item) not in first and bool(arguments & late)
    return merged


def _before_own_include(items: list[Item], own: set[bytes]) -> list[Item]:
    """The directives of a source before it includes its own header; none when code comes first."""
    for number, item in enumerate(items):
        if item.kind == Kind.INCLUDE and len(item.directives) == 1 and item.directives[0].argument in own:
            return items[:number]
        if item.kind not in (Kind.INCLUDE, Kind.MACRO, Kind.PRAGMA):
            break
    return []


def _without_own_includes(item: Item, own: set[bytes]) -> bool:
    """Take the includes of merged files out of an item; False when nothing is left of it."""
    if item.kind != Kind.INCLUDE or not any(directive.argument in own for directive in item.directives):
        return True
    if len(item.directives) == 1:
        return False
    for argument in own:
        item.text = re.sub(
            rb"(?m)^[ \t]*#[ \t]*include[ \t]*" + re.escape(argument) + rb"[^\n]*\n", b"", item.text
        )
    return True


def _whole_file(name: str, data: bytes, part: FileItems, options: Options) -> list[Document]:
    """A file as it is, or in pieces cut between its items."""
    text = data.decode().strip("\n") + "\n"
    size = options.count(text)
    if size <= options.budget:
        return [Document(text, "file", (name,), size, part.functions)] if text.strip() else []
    lines = text.splitlines(keepends=True)
    blocks: list[str] = []
    previous = 0
    for item in part.items if part.sound else []:
        blocks.append("".join(lines[previous : item.last_line + 1]))
        previous = max(previous, item.last_line + 1)
    blocks.append("".join(lines[previous:]))
    pieces: list[str] = []
    for block in blocks:
        if pieces and options.count(pieces[-1] + block) <= options.budget:
            pieces[-1] += block
        else:
            pieces += cut(block, options.budget, options.count)
    return [_chunk(piece, (name,), options.count) for piece in pieces if piece.strip()]


def _chunk(text: str, files: tuple[str, ...], count: Count) -> Document:
    return Document(text, "chunk", files, count(text), count_functions(text.encode()))


def cut(text: str, budget: int, count: Count) -> list[str]:
    """Pieces within the budget whose concatenation is `text`: cut at line ends, else between characters."""
    pieces: list[str] = []
    while text:
        total = count(text)
        if total <= budget:
            pieces.append(text)
            break
        length = max(1, len(text) * budget // total)
        head = _prefix(text, length)
        while count(head) > budget and len(head) > 1:
            head = _prefix(head, max(1, len(head) * 9 // 10))
        pieces.append(head)
        text = text[len(head) :]
    return pieces


def _prefix(text: str, length: int) -> str:
    """At most `length` characters, ending at a line end when there is one."""
    line_end = text.rfind("\n", 0, length) + 1
    return text[: line_end or length]


class _Packer:
    """Ordered items to documents: one when they fit, otherwise parts that repeat what they need."""

    def __init__(self, unit: Unit, items: list[Item], options: Options) -> None:
        self.unit = unit
        self.items = items
        self.budget = options.budget
        self.count = options.count
        self.graph = Graph(items)
        self.order = order(self.graph)
        self.rank = {index: rank for rank, index in enumerate(self.order)}
        includes = [
            i for i, item in enumerate(items) if item.kind == Kind.INCLUDE and self.graph.phase[i] == PREAMBLE
        ]
        self.last_include = max(includes, default=0)
        self._size = lru_cache(maxsize=None)(lambda index: self.count(items[index].text.decode()) + 2)
        self._stack_size = lru_cache(maxsize=None)(self._measure_stack)

    def _measure_stack(self, stack: tuple[Frame, ...]) -> int:
        frames = [f.opener + f.closer if isinstance(f, Scope) else b"#endif".join(f.lines) for f in stack]
        return self.count(b"".join(frames).decode()) + 12 * len(stack)

    def pack(self) -> list[Document]:
        """All documents of the unit."""
        if all(item.kind == Kind.COMMENT for item in self.items):
            return []
        whole = self._document(self.order, "compilable")
        if whole.size <= self.budget:
            return [whole]
        documents: list[Document] = []
        position = 0
        while position < len(self.order):
            taken, made = self._next(position)
            documents += made
            position += taken
        return documents

    def _next(self, position: int) -> tuple[int, list[Document]]:
        """The document that starts at a position of the order: items taken, document or chunks."""
        preamble = self._preamble(position)
        for closed in (True, False):
            taken = self._fill(position, preamble, closed=closed)
            while taken:
                chosen = self.order[position : position + taken]
                extra = set(preamble)
                if closed:
                    extra |= set().union(*(self.graph.needs(index) for index in chosen))
                members = sorted(extra.union(chosen), key=self.rank.__getitem__)
                document = self._document(members, "compilable" if closed else "chunk")
                if document.size <= self.budget:
                    return taken, [document]
                taken -= 1
        text = render([self.items[self.order[position]]]).decode()
        files = (self.unit.files[self.items[self.order[position]].file].name,)
        return 1, [
            _chunk(piece, files, self.count) for piece in cut(text, self.budget, self.count) if piece.strip()
        ]

    def _preamble(self, position: int) -> list[int]:
        """The includes and usings before `position` that every part repeats, as far as they are small."""
        starts = [index for index in self.order[:position] if self._is_preamble(index)]
        plain = [i for i in starts if all(self.graph.phase[need] == PREAMBLE for need in self.graph.needs(i))]
        for chosen in (starts, plain, [i for i in starts if not self.graph.named[i]]):
            members = set(chosen).union(*(self.graph.needs(index) for index in chosen))
            ordered = sorted(members, key=self.rank.__getitem__)
            if self._sum(ordered) <= _PREAMBLE_SHARE * self.budget:
                return ordered
        return []

    def _is_preamble(self, index: int) -> bool:
        item = self.items[index]
        if self.graph.phase[index] != PREAMBLE:
            return False
        if item.kind == Kind.MACRO:  # a short one before an include may be meant for that header
            return index < self.last_include and len(item.text) < _SHORT_MACRO
        return item.kind in (Kind.INCLUDE, Kind.USING, Kind.PRAGMA)

    def _sum(self, indices: Sequence[int]) -> int:
        """The estimated size of items in this order, scopes included."""
        total = 0
        stack: tuple[Frame, ...] = ()
        for index in indices:
            total += self._size(index)
            if self.items[index].stack != stack:
                stack = self.items[index].stack
                total += self._stack_size(stack)
        return total

    def _fill(self, position: int, preamble: list[int], *, closed: bool) -> int:
        """How many items from `position` on fit together, with all they need when `closed`."""
        members = set(preamble)
        repeated = used = self._sum(preamble)
        taken = 0
        stack: tuple[Frame, ...] = ()
        for index in self.order[position:]:
            needs = self.graph.needs(index) - members if closed else set()
            own = set(self.order[position : position + taken + 1])
            again = self._sum(sorted(needs - own, key=self.rank.__getitem__))
            cost = (
                again
                + self._size(index)
                + (self._stack_size(self.items[index].stack) if self.items[index].stack != stack else 0)
            )
            if used + cost > self.budget or repeated + again > _REPEATED_SHARE * self.budget:
                break
            if not closed and taken and self._stands_alone(index, preamble):
                break
            members |= needs | {index}
            used += cost
            repeated += again
            stack = self.items[index].stack
            taken += 1
        return taken

    def _stands_alone(self, index: int, preamble: list[int]) -> bool:
        """Whether a closed part could start at this item."""
        needs = sorted(self.graph.needs(index) - set(preamble), key=self.rank.__getitem__)
        repeated = self._sum(needs) + self._sum(preamble)
        return repeated <= _REPEATED_SHARE * self.budget and repeated + self._size(index) <= self.budget

    def _document(self, indices: Sequence[int], kind: DocumentKind) -> Document:
        members = [self.items[index] for index in indices]
        text = render(members).decode()
        files = sorted({item.file for item in members})
        return Document(
            text=text,
            kind=kind,
            files=tuple(self.unit.files[number].name for number in files),
            size=self.count(text),
            functions=sum(item.functions for item in members),
        )
