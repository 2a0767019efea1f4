"""Ordered items to documents within the budget: one when they fit, otherwise parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpplm.corpus.document import (
    Document,
    DocumentKind,
    SourceLines,
    annotations_of,
    chunk_documents,
    sources_of,
)
from cpplm.corpus.slicing.ordering import PREAMBLE, Graph, each_bit
from cpplm.corpus.slicing.placing import order
from cpplm.corpus.slicing.resolving import Resolver
from cpplm.corpus.slicing.writer import render
from cpplm.cpp.items import Item, ItemKind, Syntax
from cpplm.cpp.segments import Frame, Scope

# The share of a part that may be there for the other items only, and how much of a part may be preamble.
_REPEATED_SHARE = 0.75
_PREAMBLE_SHARE = 0.25
_SHORT_MACRO = 120
# A part is filled with what fits from the rest of its unit; after this many items that do not, it is closed.
_MOST_MISSED = 64


@dataclass
class Measure:
    """Lengths in the unit of the budget; those of items are remembered, since parts and units share them."""

    exact: Callable[[str], int]
    most_bytes: int = 1  # that one unit can stand for
    _items: dict[bytes, int] = field(default_factory=dict)

    def item(self, text: bytes) -> int:
        """The length of one item's text with the blank line after it."""
        size = self._items.get(text)
        if size is None:
            size = self._items[text] = self.exact(text.decode()) + 2
        return size

    def scopes(self, stack: tuple[Frame, ...]) -> int:
        """The length of opening and closing these scopes and conditions."""
        frames = [f.opener + f.closer if isinstance(f, Scope) else b"#endif".join(f.lines) for f in stack]
        return self.item(b"".join(frames)) + 12 * len(stack)


@dataclass(frozen=True)
class Bundle:
    """Items that make one document or several.

    `items` are in source order; `roots` are the indices that have to be written, the others only as far as
    these need them; `names` are those of the files that `Item.file` counts; `brief` shortens what only other
    items of a part need; `resolver` tells what names mean, where libclang was asked.
    """

    items: list[Item]
    roots: set[int]
    names: Sequence[str]
    brief: Callable[[Item], Item]
    resolver: Resolver | None = None


class Packer:
    """The documents of one bundle."""

    def __init__(self, bundle: Bundle, budget: int, measure: Measure) -> None:
        self.items = bundle.items
        self.roots = bundle.roots
        self.names = bundle.names
        self.budget = budget
        self.measure = measure
        self.graph = Graph(self.items, bundle.resolver)
        self.order = order(self.graph)
        self.root_order = [index for index in self.order if index in self.roots]
        self.rank = {index: rank for rank, index in enumerate(self.order)}
        self._shorten = bundle.brief
        self._resolver = bundle.resolver
        self._frugal = False
        self._preambles: dict[bool, int] = {}
        self._scope_sizes: dict[tuple[Frame, ...], int] = {}

    @cached_property
    def brief(self) -> list[Item]:
        """All items, shortened."""
        return [self._shorten(item) for item in self.items]

    @cached_property
    def brief_graph(self) -> Graph:
        """The edges of the shortened items."""
        return Graph(self.brief, self._resolver)

    def whole(self) -> Document | None:
        """Everything in one document; None when that is over the budget."""
        document = self._document(self.order, set(self.order), "compilable")
        return document if document.size <= self.budget else None

    def parts(self) -> tuple[list[Document], list[int]]:
        """The roots that can stand alone with what they need, in as many parts as it takes; and the rest."""
        documents: list[Document] = []
        waiting = self.root_order
        alone: list[int] = []
        while waiting:
            chosen, document = self._closed_part(waiting)
            if document is None:
                alone.append(waiting[0])
            else:
                documents.append(document)
            taken = set(chosen or waiting[:1])
            waiting = [index for index in waiting if index not in taken]
        return documents, alone

    def chunks(self, roots: Collection[int] | None = None) -> list[Document]:
        """These roots, or all, without what they need."""
        roots = [index for index in self.root_order if roots is None or index in roots]
        documents: list[Document] = []
        while roots:
            chosen, made = self._chunk(roots)
            documents += made
            roots = roots[len(chosen) :]
        return documents

    def _closed_part(self, waiting: list[int]) -> tuple[list[int], Document | None]:
        """A document with the first of these roots and what it needs, and further ones; None if too long."""
        for self._frugal in (False, True):
            chosen, members = self._fill(waiting)
            while chosen:
                document = self._part(members, chosen, "compilable")
                if document.size <= self.budget:
                    return chosen, document
                chosen = chosen[: len(chosen) * 9 // 10]
                members = self._preamble()
                for index in chosen:
                    members |= 1 << index | self._needs(index)
        return [], None

    def _fill(self, waiting: list[int]) -> tuple[list[int], int]:
        """The first of the roots and further ones that fit beside it; they with all they need as bits."""
        members = self._preamble()
        repeated = used = self._sum(members)
        chosen: list[int] = []
        missed = 0
        for index in waiting:
            needs = self._needs(index) & ~members
            again = self._sum(needs)
            cost = again + self._size(index)
            much = again > 0 and repeated + again > _REPEATED_SHARE * self.budget
            if used + cost > self.budget or much:
                missed += 1
                if not chosen or missed > _MOST_MISSED:
                    break
                continue
            members |= needs | 1 << index
            used += cost
            repeated += again
            chosen.append(index)
        return chosen, members

    def _chunk(self, waiting: list[int]) -> tuple[list[int], list[Document]]:
        """As many of these roots as fit, with the macros they need; a single one that does not fit is cut."""
        own = sum(1 << index for index in self.roots)
        macros = sum(1 << index for index, item in enumerate(self.items) if item.kind == ItemKind.MACRO)
        preamble = self._preamble()
        # A macro may need more of them than there is room for.
        for start, beside in ((preamble, macros), (preamble, macros & own), (preamble, 0), (0, 0)):
            members, used = start, self._sum(start)
            chosen: list[int] = []
            for index in waiting:
                needs = self._needs(index) & beside & ~members
                used += self._size(index) + self._sum(needs)
                if used > self.budget:
                    break
                members |= needs | 1 << index
                chosen.append(index)
            while chosen:
                document = self._part(members, chosen, "chunk")
                if document.size <= self.budget:
                    return chosen, [document]
                chosen = chosen[: len(chosen) * 9 // 10]
                members = start
                for index in chosen:
                    members |= self._needs(index) & beside | 1 << index
        item = self.items[waiting[0]]
        data, (start,) = render([item])
        source = SourceLines(self.names[item.file], item.line + 1, item.last_line + 1)
        # Between its comments and the item itself there may be lines that are not in the text.
        line = source.last - item.text.strip(b"\n").count(b"\n") - data.count(b"\n", 0, start)
        return waiting[:1], chunk_documents(data.decode(), source, line, self.budget, self.measure.exact)

    def _part(self, members: int, chosen: list[int], kind: DocumentKind) -> Document:
        return self._document(sorted(each_bit(members), key=self.rank.__getitem__), set(chosen), kind)

    def _needs(self, index: int) -> int:
        return self.graph.needs(index, self.brief_graph, frugal=self._frugal)

    def _preamble(self) -> int:
        """The includes and usings that every part repeats, as far as they are small."""
        if self._frugal not in self._preambles:
            starts = [index for index in self.order if self._is_preamble(index)]
            late = sum(1 << index for index, phase in enumerate(self.graph.phase) if phase != PREAMBLE)
            plain = [index for index in starts if not self._needs(index) & late]
            includes = [index for index in plain if self.items[index].kind == ItemKind.INCLUDE]
            bits = 0
            for chosen in (starts, plain, includes):
                bits = 0
                for index in chosen:
                    bits |= 1 << index | self._needs(index)
                if self._sum(bits) <= _PREAMBLE_SHARE * self.budget:
                    break
            self._preambles[self._frugal] = bits
        return self._preambles[self._frugal]

    @cached_property
    def _last_include(self) -> int:
        includes = (i for i, item in enumerate(self.items) if item.kind == ItemKind.INCLUDE)
        return max((i for i in includes if self.graph.phase[i] == PREAMBLE), default=0)

    def _is_preamble(self, index: int) -> bool:
        item = self.items[index]
        if self.graph.phase[index] != PREAMBLE:
            return False
        if item.kind == ItemKind.MACRO:  # a short one before an include may be meant for that header
            return index in self.roots and index < self._last_include and len(item.text) < _SHORT_MACRO
        return item.kind in (ItemKind.INCLUDE, ItemKind.USING, ItemKind.PRAGMA)

    def _sum(self, bits: int) -> int:
        """The estimated size of shortened items, scopes included."""
        sizes = self._brief_sizes
        flags = np.unpackbits(
            np.frombuffer(bits.to_bytes((len(sizes) + 7) // 8, "little"), np.uint8), bitorder="little"
        )
        return int(flags[: len(sizes)] @ sizes)

    @cached_property
    def _brief_sizes(self) -> NDArray[np.int64]:
        """The length of each shortened item; where a new scope begins, with that scope."""
        sizes = np.zeros(len(self.items), np.int64)
        stack: tuple[Frame, ...] = ()
        for index in self.order:
            item = self.brief[index]
            sizes[index] = self.measure.item(item.text)
            if item.stack != stack:
                stack = item.stack
                sizes[index] += self._scopes(stack)
        return sizes

    def _scopes(self, stack: tuple[Frame, ...]) -> int:
        size = self._scope_sizes.get(stack)
        if size is None:
            size = self._scope_sizes[stack] = self.measure.scopes(stack)
        return size

    def _size(self, index: int) -> int:
        """The estimated size of an item in full."""
        item = self.items[index]
        return self.measure.item(item.text) + self._scopes(item.stack)

    def _document(self, indices: Sequence[int], chosen: set[int], kind: DocumentKind) -> Document:
        """The items in this order, those that are not chosen shortened."""
        members = [self.items[index] if index in chosen else self.brief[index] for index in indices]
        data, starts = render(members)
        text = data.decode()
        own = {self.items[index].file for index in self.roots}
        files = sorted({item.file for item in members}, key=lambda file: (file not in own, file))
        found = [
            (item, start - (len(item.text) - len(item.text.lstrip(b"\n"))))
            for item, start in zip(members, starts, strict=True)
        ]
        return Document(
            text=text,
            kind=kind,
            files=tuple(self.names[number] for number in files),
            size=self.measure.exact(text),
            functions=sum(item.functions for item in members),
            sources=sources_of(
                (self.names[item.file], item.line + 1, item.last_line + 1) for item in members
            ),
            **annotations_of([(Syntax(item.spans, item.pairs), start) for item, start in found]),
        )
