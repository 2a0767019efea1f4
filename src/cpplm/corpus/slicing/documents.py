"""A unit to documents that never exceed the budget.

    compilable   the files of a unit with what they need of the rest of the project, in the order of the
                 compiler; a part of a unit too long for one document has with it all that it needs
    inlined      a unit with all that it includes, expanded in place: `mode="inlined"`, in the budget
    file         a file as it is: `mode="file"`, or its brackets or conditionals do not add up
    chunk        a piece that cannot stand alone: what it needs does not fit beside it, so that the includes
                 of its file stay; or one item was cut

The ladder: everything in full; borrowed items without comments; only the nearest with bodies; none with them;
without the member functions that nobody names; as names only where that is enough; the unit in parts; chunks.
Every item of the unit is written at least once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from cpplm.corpus.document import Document
from cpplm.corpus.settings import Mode
from cpplm.corpus.slicing.bottom_up import callees_first
from cpplm.corpus.slicing.callees import find_callees
from cpplm.corpus.slicing.chunks import can_be_sliced, chunks, whole_file
from cpplm.corpus.slicing.closure import Closure
from cpplm.corpus.slicing.expand_unit import closed_world_expansion, expand_unit
from cpplm.corpus.slicing.expansion import Expander, Expansion, Place, main_file
from cpplm.corpus.slicing.lookup import NameLookup
from cpplm.corpus.slicing.measure import Measure
from cpplm.corpus.slicing.project_index import Key, ProjectIndex
from cpplm.corpus.slicing.provenance import document_of
from cpplm.corpus.slicing.references import Parse, ReferenceLookup
from cpplm.corpus.slicing.rendering import Rendered, render
from cpplm.corpus.slicing.shortening import Detail, Shortener
from cpplm.corpus.slicing.tables import table_pieces
from cpplm.corpus.slicing.units import Unit
from cpplm.corpus.slicing.unnamed import UnnamedItems
from cpplm.cpp.file_suffixes import is_source
from cpplm.cpp.items import ItemKind

# Of what costs more than this times the unit itself, less is borrowed.
_GENEROUS = 2.0
# But this share of the budget may always be filled.
_ALWAYS = 1 / 8
# A part of a unit is not worth repeating more than this of what it needs: the share that is its own.
_LEAST_OWN = 0.05
# After so many items in a row that cannot stand with what they need, the rest of a unit is not tried.
_MOST_FAILURES = 8
# And up to this share it gets more of the unit by borrowing in less detail.
_ENOUGH_OWN = 0.3
# The sum over items is a little less than what their document takes.
_SURELY_FITS = 0.95
_SURELY_TOO_LONG = 1.1
# How many items of a part fit is not told by the length of a text that is longer than this many budgets.
_NO_ESTIMATE = 4


@dataclass(frozen=True)
class SliceOptions:
    """All that building one unit depends on, besides the unit and its project."""

    budget: int
    measure: Measure
    mode: Mode = "compilable"
    cross_file_depth: int = 3  # of calls into other source files that --mode cross-file follows


def build_unit(
    unit: Unit, index: ProjectIndex, shortener: Shortener, options: SliceOptions, parse: Parse | None = None
) -> list[Document]:
    """The documents of a unit; `parse` asks a compiler what names mean and which text is read."""
    parts = [index.read(file.name).source for file in unit.files]
    if options.mode == "file" or not can_be_sliced(parts):
        documents: list[Document] = []
        for file, part in zip(unit.files, parts, strict=True):
            documents += whole_file(file.name, part, options.budget, options.measure)
        return documents
    shortener.begin_unit()
    slicer = _Slicer(unit, index, shortener, options, parse)
    document = None
    if options.mode == "inlined":
        document = slicer.inlined()
    elif options.mode == "cross-file":
        document = _with_callees(slicer)
    return slicer.documents() if document is None else [document]


def _with_callees(slicer: _Slicer) -> Document | None:
    """A unit with the bodies of what it calls in other source files; None where none fits beside it."""
    items = [slicer.expansion.item(place) for place in slicer.own]
    before: list[Key] = []
    for depth in range(slicer.options.cross_file_depth, 0, -1):
        callees = find_callees(items, slicer.expansion, depth)
        if not callees:
            return None
        if callees != before:
            before = callees
            document = slicer.beside(callees).whole()
            if document is not None:
                return document
    return None


def own_places(expansion: Expansion) -> list[Place]:
    """The items of a unit's own files that say something, in the order in which they are read."""
    places = [
        (number, item)
        for number, visit in enumerate(expansion.visits)
        if visit.own
        for item in range(len(visit.file.items))
        if visit.gone.get(item, b" ")
    ]
    return sorted(places, key=expansion.rank)


class _Slicer:
    """The documents of one unit."""

    def __init__(
        self,
        unit: Unit,
        index: ProjectIndex,
        shortener: Shortener,
        options: SliceOptions,
        parse: Parse | None,
        callees: Sequence[Key] = (),
    ) -> None:
        self.unit = unit
        self.parse = parse
        self.callees = callees  # definitions in other source files that stay whole
        self.index = index
        self.shortener = shortener
        self.options = options
        self.measure = options.measure
        self.budget = options.budget
        self.too_long: set[Place] = set()  # borrowed items that need more than fits into a document
        self.examined: set[Place] = set()
        self.fit: dict[Place, bool] = {}  # of own items, whether they fit into a document with what they need
        self.own_names = [file.name for file in unit.files]
        self.expansion = expand_unit(self.own_names, index, callees)
        self.lookup = NameLookup(self.expansion)
        references = parse(main_file(self.expansion.roots), self.expansion.defined) if parse else None
        if references is not None:
            expander = Expander(index, self.own_names, references.decided, self.expansion.defined)
            self.expansion = expander.expand(self.expansion.roots)
            self.lookup = ReferenceLookup(self.expansion, references)
        self.unnamed = UnnamedItems(self.expansion)
        self.own = own_places(self.expansion)

    def _assume_closed_world(self, own: Sequence[Place]) -> list[Place]:
        """Read borrowed files without what nothing defines; these own items then, none where one is lost."""
        keys = set(map(self.expansion.key, own))
        expansion = closed_world_expansion(self.expansion)
        every = own_places(expansion)
        places = [place for place in every if expansion.key(place) in keys]
        if len(places) != len(own):
            return []
        self.expansion, self.own = expansion, every
        self.lookup, self.unnamed = NameLookup(expansion), UnnamedItems(expansion)
        self.too_long, self.examined, self.fit = set(), set(), {}
        return places

    def beside(self, callees: Sequence[Key]) -> _Slicer:
        """One that keeps these definitions whole."""
        return _Slicer(self.unit, self.index, self.shortener, self.options, self.parse, callees)

    def documents(self) -> list[Document]:
        """Down the ladder until the unit fits into one document, or into parts."""
        if not self.own:
            return []
        document = self.whole()
        if document is not None:
            return [document]
        documents, alone = self._parts(self.own)
        if alone and self.parse is None and (places := self._assume_closed_world(alone)):
            more, alone = self._parts(places)
            documents += more
        for place in list(alone):
            pieces = self._pieces(place)
            if pieces:
                documents += pieces
                alone.remove(place)
        return documents + chunks(self.expansion, alone, self.budget, self.measure)

    def _pieces(self, place: Place) -> list[Document]:
        """A table or an enumeration in pieces with what they need; nothing where that does not fit."""
        item = self.expansion.item(place)
        count = 2 * self.measure.item(item.text) // self.budget
        if item.kind not in (ItemKind.VARIABLE, ItemKind.TYPE) or not count:
            return []
        for number in (count + 1, 2 * count + 2):
            documents: list[Document] = []
            pieces = table_pieces(item, number)
            for piece in pieces:
                closure = self._closure(Detail.BARE)
                if not closure.add([place], self.budget, piece):
                    break
                rendered = self._render(closure, [place], _SURELY_TOO_LONG * self.budget)
                size = self.measure.text(rendered.text) if rendered is not None else 0
                if rendered is None or size > self.budget:
                    break
                documents.append(self._document(closure, rendered, size))
            if documents and len(documents) == len(pieces):
                return documents
        return []

    def whole(self) -> Document | None:
        """The unit in one document, with as much of what it borrows as the budget allows."""
        own_size = sum(self.measure.item(self.expansion.item(place).text) for place in self.own)
        if own_size > _SURELY_TOO_LONG * self.budget:
            return None
        least = self.budget if self.callees else self.budget * _ALWAYS
        generous = min(max(own_size * (1 + _GENEROUS), least), self.budget)
        document = self._on_rung(generous, Detail.FULL)
        declared = None if document else self._on_rung(generous, Detail.DECLARATIONS)
        if declared:  # otherwise more is too long, too
            document = self._on_rung(generous, Detail.NO_COMMENTS)
            document = document or self._on_rung(generous, Detail.DECLARATIONS, 1) or declared
        document = document or self._on_rung(generous, Detail.SKELETON)
        return (
            document or self._on_rung(self.budget, Detail.FORWARD) or self._on_rung(self.budget, Detail.BARE)
        )

    def inlined(self) -> Document | None:
        """The unit with all that it includes, nothing left out; None where that is too long."""
        last = max(map(self.expansion.rank, self.own), default=0)
        places = [
            (number, item)
            for number, visit in enumerate(self.expansion.visits)
            for item in range(len(visit.file.items))
            if visit.gone.get(item, b" ") and (visit.own or visit.live.get(item, True) is not False)
        ]
        order = sorted((p for p in places if self.expansion.rank(p) <= last), key=self.expansion.rank)
        length = sum(len(self.expansion.item(place).text) for place in order)
        if length > self.budget * self.measure.most_bytes:
            return None
        rendered = render(self.expansion, [(place, self.expansion.item(place)) for place in order])
        size = self.measure.text(rendered.text)
        return document_of(self.expansion, rendered, "inlined", size) if size <= self.budget else None

    def _on_rung(self, limit: float, detail: Detail, whole_depth: int = 0) -> Document | None:
        """The whole unit with borrowed items in this detail, if it is not too long."""
        closure = self._closure(detail, whole_depth)
        callees = [place for key in self.callees for place in self.expansion.places(key)[:1]]
        if not closure.add(self.own, _SURELY_TOO_LONG * limit) or not all(
            closure.borrow(place, _SURELY_TOO_LONG * limit, Detail.NO_COMMENTS) for place in callees
        ):
            return None
        rendered = self._render(closure, self.own, _SURELY_TOO_LONG * limit)
        size = self.measure.text(rendered.text) if rendered is not None else sys.maxsize
        return self._document(closure, rendered, size) if rendered is not None and size <= limit else None

    def _closure(self, detail: Detail, whole_depth: int = 0) -> Closure:
        return Closure(self.lookup, self.shortener, self.measure, detail, whole_depth, self.too_long)

    def _parts(self, own: Sequence[Place]) -> tuple[list[Document], list[Place]]:
        """The own items that can stand with what they need, in as many parts as it takes; and the rest."""
        documents: list[Document] = []
        alone: list[Place] = []
        waiting, failures = own, 0
        while waiting and failures < _MOST_FAILURES:
            taken, document = self._part(waiting)
            failures += 1
            if document is None or self._share(taken, document) < _LEAST_OWN:
                alone += taken
            else:
                failures = 0
                if any(self.expansion.item(place).kind != ItemKind.INCLUDE for place in taken):
                    documents.append(document)
            gone = set(taken)
            waiting = [place for place in waiting if place not in gone]
        return documents, [*alone, *waiting]

    def _share(self, own: Sequence[Place], document: Document) -> float:
        """The share of a document that is its own."""
        return sum(len(self.expansion.item(place).text) for place in own) / len(document.text)

    def _part(self, waiting: Sequence[Place]) -> tuple[Sequence[Place], Document | None]:
        """Those of these items that fit into one document with what they need, and that document, if any."""
        best: tuple[Sequence[Place], Document | None] = waiting[:1], None
        for detail in (Detail.SKELETON, Detail.FORWARD, Detail.BARE):
            if detail == Detail.FORWARD and best[1] is None and self._never_fits(waiting[0]):
                break
            taken, document = self._part_in(waiting, detail)
            if document is not None and (best[1] is None or len(taken) > len(best[0])):
                best = taken, document
            if best[1] is not None and self._share(best[0], best[1]) >= _ENOUGH_OWN:
                break
        if best[1] is None:
            self._find_too_long(waiting[0])
        return best

    def _part_in(self, waiting: Sequence[Place], detail: Detail) -> tuple[Sequence[Place], Document | None]:
        """The same, with borrowed items in this detail."""
        closure = self._closure(detail)
        taken: list[Place] = []
        closed = 0  # so many of them are closed together, as if those had been tried that surely do not fit
        for place in waiting:
            if self.fit.get(place) is False:
                continue
            if taken and self._needs_too_long(place, closure):
                closed = len(taken)
                continue
            if closure.add([place], _SURELY_FITS * self.budget):
                taken.append(place)
                continue
            closure = self._closed(taken, detail)  # without the names that were looked up
            closed = 0
            if not taken or not self._never_fits(place):
                break
        first_count = len(taken)
        if closed:
            closure = self._closed(taken[:closed], detail)
            for place in taken[closed:]:
                closure.add([place], float("inf"))
        while taken:
            most = _NO_ESTIMATE if len(taken) > 1 else _SURELY_TOO_LONG
            rendered = self._render(closure, taken, most * self.budget)
            size = self.measure.text(rendered.text) if rendered is not None else closure.size
            if rendered is not None and size <= self.budget:
                return taken, self._document(closure, rendered, size)
            if len(taken) == first_count > 1 and not self._fits(taken[:1], detail):
                break
            taken = taken[: min(len(taken) - 1, int(len(taken) * 0.95 * self.budget / size))]
            closure = self._closed(taken, detail)
        return waiting[:1], None

    def _never_fits(self, place: Place) -> bool:
        """True if an own item does not fit into a document with the least of what it needs."""
        if place not in self.fit:
            self.fit[place] = self._fits([place], Detail.BARE)
            if not self.fit[place]:
                self._find_too_long(place)
        return not self.fit[place]

    def _needs_too_long(self, place: Place, closure: Closure) -> bool:
        """True if an own item names one that is known to need too much, so that it will not fit either."""
        places = self.lookup.meanings(place, self.expansion.item(place)).places if self.too_long else ()
        if all(each == place or each in closure.chosen for each in self.too_long.intersection(places)):
            return False
        self.fit[place] = False
        return True

    def _fits(self, own: Sequence[Place], detail: Detail) -> bool:
        """True if items fit into one document with what they need."""
        closure = self._closure(detail)
        if not closure.add(own, _SURELY_FITS * self.budget):
            return False
        rendered = self._render(closure, own, _SURELY_TOO_LONG * self.budget)
        return rendered is not None and self.measure.text(rendered.text) <= self.budget

    def _find_too_long(self, place: Place) -> None:
        """Remember which of the items that this one needs is the one that needs too much."""
        if self.measure.item(self.expansion.item(place).text) > self.budget:
            return
        for found in self._closure(Detail.BARE).direct_needs(place):
            if found not in self.examined:
                self.examined.add(found)
                closure = self._closure(Detail.BARE)
                if not closure.borrow(found, self.budget, Detail.BARE):
                    self.too_long.add(found)
                    return
                self.examined |= closure.settled  # what it needs fits, too

    def _closed(self, own: Sequence[Place], detail: Detail) -> Closure:
        closure = self._closure(detail)
        closure.add(own, float("inf"))
        return closure

    def _document(self, closure: Closure, rendered: Rendered, size: int) -> Document:
        return document_of(self.expansion, rendered, "compilable", size, closure.reasons)

    def _render(self, closure: Closure, own: Sequence[Place], most: float) -> Rendered | None:
        """The chosen items as text, with what counts without being named; None where that is above `most`."""
        if not closure.take(self.unnamed.before(closure.chosen), most):
            return None
        chosen = closure.chosen
        order = sorted(chosen, key=self.expansion.rank)
        whole = len(own) == len(self.own)
        order = callees_first(order, set(own), self.expansion)
        guards = whole and len(self.own_names) == 1 and not is_source(self.own_names[0])
        return render(self.expansion, [(place, chosen[place]) for place in order], guards=guards)
