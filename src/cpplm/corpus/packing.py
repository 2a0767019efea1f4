"""Ordered items to documents within the budget: one when they fit, otherwise parts that repeat what they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from cpplm.corpus.items import Item, Kind, count_functions
from cpplm.corpus.ordering import PREAMBLE, Graph, order
from cpplm.corpus.pieces import Frame, Scope
from cpplm.corpus.writer import render

DocumentKind = Literal["compilable", "file", "chunk"]
Count = Callable[[str], int]
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


class Packer:
    """The documents of one list of items.

    Args:
        items: in source order.
        roots: the indices that have to be written; the others only as far as these need them.
        names: of the files that `Item.file` counts.
        budget: longest document.
        count: measures a text in the unit of the budget.
    """

    def __init__(
        self, items: list[Item], roots: set[int], names: Sequence[str], budget: int, count: Count
    ) -> None:
        self.items = items
        self.names = names
        self.budget = budget
        self.count = count
        self.roots = roots
        self.graph = Graph(items)
        self.order = order(self.graph)
        self.root_order = [index for index in self.order if index in roots]
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

    def whole(self) -> Document | None:
        """Everything in one document; None when that is over the budget."""
        document = self._document(self.order, "compilable")
        return document if document.size <= self.budget else None

    def parts(self) -> list[Document]:
        """All roots, in as many documents as it takes."""
        documents: list[Document] = []
        position = 0
        while position < len(self.root_order):
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
                chosen = self.root_order[position : position + taken]
                extra = set(preamble)
                if closed:
                    extra |= set().union(*(self.graph.needs(index) for index in chosen))
                members = sorted(extra.union(chosen), key=self.rank.__getitem__)
                document = self._document(members, "compilable" if closed else "chunk")
                if document.size <= self.budget:
                    return taken, [document]
                taken -= 1
        item = self.items[self.root_order[position]]
        text = render([item]).decode()
        files = (self.names[item.file],)
        return 1, [chunk(piece, files, self.count) for piece in cut(text, self.budget, self.count) if piece.strip()]

    def _preamble(self, position: int) -> list[int]:
        """The includes and usings before `position` that every part repeats, as far as they are small."""
        start = self.rank[self.root_order[position]]
        starts = [index for index in self.order[:start] if self._is_preamble(index)]
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
        for index in self.root_order[position:]:
            needs = self.graph.needs(index) - members if closed else set()
            own = set(self.root_order[position : position + taken + 1])
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
        files = dict.fromkeys(item.file for item in members)
        own = {self.items[index].file for index in self.roots}
        return Document(
            text=text,
            kind=kind,
            files=tuple(self.names[number] for number in sorted(files, key=lambda f: (f not in own, f))),
            size=self.count(text),
            functions=sum(item.functions for item in members),
        )


def chunk(text: str, files: tuple[str, ...], count: Count) -> Document:
    """A piece of text that cannot stand alone."""
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
