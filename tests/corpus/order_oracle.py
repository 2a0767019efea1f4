"""The order of a document's declarations as libclang sees it, which had no part in ordering them.

A document is a list of declarations at namespace scope; counted are

    calls   by the body of a function there, of another function of the document that has a body there
    uses    by any declaration, of a class or enumeration that the document defines; that in
            `typedef struct name name;` declares it ahead and is none

An edge is in order when what it leads to stands first. Within a cycle no order is right, so those edges count
apart: a cycle is a strongly connected component (Tarjan 1972) of the calls, or of the uses.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from clang import cindex

from cpplm.corpus.clang.flags import builtin_headers
from cpplm.corpus.ingest.discovery import Project, find_files
from cpplm.corpus.project import BuildPlan, DiscoveredProject, build_project
from cpplm.corpus.slicing.placing import components
from cpplm.cpp.parser import is_c_project, language_of

_KEEP_GOING = 0x200  # CXTranslationUnit_KeepGoing: what comes after a missing header is read
_KINDS = cindex.CursorKind
_CONTAINERS = frozenset({_KINDS.NAMESPACE, _KINDS.LINKAGE_SPEC, _KINDS.UNEXPOSED_DECL})
_FUNCTIONS = frozenset(
    {
        *(_KINDS.FUNCTION_DECL, _KINDS.FUNCTION_TEMPLATE, _KINDS.CXX_METHOD, _KINDS.CONSTRUCTOR),
        *(_KINDS.DESTRUCTOR, _KINDS.CONVERSION_FUNCTION),
    }
)
_TYPES = frozenset(
    {
        *(_KINDS.STRUCT_DECL, _KINDS.CLASS_DECL, _KINDS.UNION_DECL, _KINDS.ENUM_DECL, _KINDS.CLASS_TEMPLATE),
        _KINDS.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION,
    }
)


@dataclass(frozen=True)
class Share:
    """Edges of one sort: those in order, those out of order, those within a cycle."""

    in_order: int = 0
    out_of_order: int = 0
    in_cycles: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def share(self) -> float:
        """Of the edges outside cycles, those in order; 1 where there is none."""
        return self.in_order / max(1, self.in_order + self.out_of_order) if self.out_of_order else 1.0


@dataclass
class Order:
    """What was counted in one document or several; `examples` names some edges that are out of order."""

    calls: Share = Share()
    uses: Share = Share()
    examples: list[str] = field(default_factory=list)

    def add(self, other: Order) -> None:
        """Count another document, too."""
        self.calls += other.calls
        self.uses += other.uses
        self.examples += other.examples


@dataclass(frozen=True)
class Declaration:
    """One at namespace scope: where it begins and ends in the text, and what it is."""

    start: int
    end: int
    cursor: cindex.Cursor
    is_function: bool
    is_type: bool


class Reader:
    """Asks libclang about one document after the other."""

    def __init__(self) -> None:
        """Choose the compiler's own headers, which libclang's wheel lacks."""
        self.index = cindex.Index.create()
        self.flags = next(iter(builtin_headers()), [])

    def order_of(self, text: str, language: str = "c++") -> Order:
        """Count the edges of one document.

        Args:
            text: the document.
            language: "c" or "c++".
        """
        standard = "-std=gnu11" if language == "c" else "-std=gnu++17"
        name = "document.c" if language == "c" else "document.cc"
        unit = self.index.parse(
            name, ["-w", "-ferror-limit=0", standard, *self.flags], [(name, text)], options=_KEEP_GOING
        )
        found = sorted(_declarations(unit.cursor, name), key=lambda each: each.start)
        return _count(found, name)


def _declarations(parent: cindex.Cursor, name: str) -> Iterator[Declaration]:
    """The declarations of the document at namespace scope; what several macros make at one place is one."""
    for cursor in parent.get_children():
        extent = cursor.extent
        if extent.start.file is None or extent.start.file.name != name:
            continue
        if cursor.kind in _CONTAINERS:
            yield from _declarations(cursor, name)
            continue
        defines = cursor.is_definition()
        yield Declaration(
            extent.start.offset,
            extent.end.offset,
            cursor,
            is_function=defines and cursor.kind in _FUNCTIONS,
            is_type=defines and cursor.kind in _TYPES,
        )


def _count(found: Sequence[Declaration], name: str) -> Order:
    starts = [each.start for each in found]

    def place_of(cursor: cindex.Cursor | None) -> int | None:
        """The declaration that a definition is, or lies in."""
        if cursor is None or cursor.extent.start.file is None or cursor.extent.start.file.name != name:
            return None
        offset = cursor.extent.start.offset
        place = bisect.bisect_right(starts, offset) - 1
        return place if place >= 0 and offset < found[place].end else None

    calls: dict[int, set[int]] = defaultdict(set)
    uses: dict[int, set[int]] = defaultdict(set)
    for place, declaration in enumerate(found):
        for cursor in declaration.cursor.walk_preorder():
            referenced = cursor.referenced
            if referenced is None or referenced == cursor:
                continue
            target = place_of(referenced.get_definition())
            if target is None or target == place:
                continue
            if referenced.kind in _FUNCTIONS and found[target].is_function:
                if declaration.is_function:
                    calls[place].add(target)
            elif found[target].is_type and not _declares_ahead(declaration, found[target]):
                uses[place].add(target)
    order = Order(_share(calls, len(found)), _share(uses, len(found)))
    for sort, edges in (("call", calls), ("use", uses)):
        for place, target in _out_of_order(edges, len(found)):
            names = (found[each].cursor.spelling or "?" for each in (place, target))
            order.examples.append(f"{sort}: {' before '.join(names)}")
    return order


def _declares_ahead(declaration: Declaration, type_: Declaration) -> bool:
    kind = declaration.cursor.kind
    return kind == _KINDS.TYPEDEF_DECL and declaration.cursor.spelling == type_.cursor.spelling


def _cycles(edges: dict[int, set[int]], count: int) -> dict[int, int]:
    """For each declaration the number of its component."""
    targets = {place: sorted(edges.get(place, ())) for place in range(count)}
    found = components(list(range(count)), targets)
    return {place: number for number, members in enumerate(found) for place in members}


def _out_of_order(edges: dict[int, set[int]], count: int) -> list[tuple[int, int]]:
    cycle = _cycles(edges, count)
    pairs = [(place, target) for place, targets in edges.items() for target in sorted(targets)]
    return [(place, target) for place, target in pairs if target > place and cycle[place] != cycle[target]]


def _share(edges: dict[int, set[int]], count: int) -> Share:
    cycle = _cycles(edges, count)
    pairs = [(place, target) for place, targets in edges.items() for target in targets]
    within = sum(cycle[place] == cycle[target] for place, target in pairs)
    wrong = len(_out_of_order(edges, count))
    return Share(len(pairs) - within - wrong, wrong, within)


def rows_of(project: Project, plan: BuildPlan) -> list[dict[str, Any]]:
    """The documents of a project, built in this process."""
    files, skips = find_files(project)
    found = DiscoveredProject(project, tuple(files), skips)
    return [row for rows, _ in build_project(found, plan, map, {}) for row in rows]


def measure(project: Project, plan: BuildPlan, sample: int, reader: Reader) -> tuple[Order, int]:
    """The order of up to `sample` documents of a project, spread evenly, and how many those are."""
    rows = [row for row in rows_of(project, plan) if row["kind"] == "compilable"]
    step = max(1, len(rows) // sample)
    is_c = is_c_project(row["files"][0] for row in rows)
    order = Order()
    chosen = rows[::step][:sample]
    for row in chosen:
        names = [name for name in row["files"] if not name.endswith(".h")] or row["files"]
        order.add(reader.order_of(row["text"], language_of(names[0], is_c)))
    return order, len(chosen)
