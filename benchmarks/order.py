"""The order of a corpus's documents: are callees before callers, types before their uses?

    python benchmarks/order.py CORPUS [--sample 40] [--headers FOLDER...]

Of each project up to so many documents are read by libclang, which had no part in ordering them (documents of
a corpus built with --semantic: in deciding what is called what). A document is a list of declarations at
namespace scope; counted are

    calls   by the body of a function there, of another function of the document that has a body there
    uses    by any declaration, of a class or enumeration that the document defines: of its members, or of it
            as a base or by value
    names   all mentions of such a type, pointers to it, too: a declaration ahead is enough for those. That in
            `typedef struct name name;` is one and does not count

An edge is in order when what it leads to stands first. Within a cycle no order is right, so those edges count
apart: those whose end leads back to their beginning.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from clang import cindex
from measuring import command_line, progress, publish, refusals

from cpplm.core.shards import ShardReader
from cpplm.corpus.clang.flags import builtin_headers
from cpplm.corpus.compile.compiler import main_source
from cpplm.corpus.reports.compile_rate import read_projects
from cpplm.corpus.reports.sample import sample_documents
from cpplm.cpp.parser import language_of

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

_BY_VALUE = frozenset({_KINDS.FIELD_DECL, _KINDS.VAR_DECL, _KINDS.CXX_BASE_SPECIFIER})
_VALUES = frozenset({cindex.TypeKind.RECORD, cindex.TypeKind.ENUM})


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
    """Counts of one document or several; `examples` names some edges that are out of order."""

    calls: Share = Share()
    uses: Share = Share()
    names: Share = Share()
    examples: list[str] = field(default_factory=list)

    def add(self, other: Order) -> None:
        """Count another document, too."""
        self.calls += other.calls
        self.uses += other.uses
        self.names += other.names
        self.examples += other.examples

    def figures(self) -> dict[str, Any]:
        """For the last line of the output."""
        shares = {"calls": self.calls, "uses": self.uses, "names": self.names}
        return {name: {**asdict(each), "share": round(each.share, 5)} for name, each in shares.items()}

    def __str__(self) -> str:
        shares = f"calls {self.calls.share:7.2%}  uses {self.uses.share:7.2%}  names {self.names.share:7.2%}"
        return f"{shares}  {'; '.join(self.examples[:3])}"


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

    def __init__(self, headers: Sequence[str] = ()) -> None:
        """Choose the compiler's own headers, which libclang's wheel lacks; third-party ones after them."""
        self.index = cindex.Index.create()
        system = [word for folder in headers for word in ("-isystem", folder)]
        self.flags = [*next(iter(builtin_headers()), []), *system]

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
    names: dict[int, set[int]] = defaultdict(set)
    for place, declaration in enumerate(found):
        for cursor in declaration.cursor.walk_preorder():
            referenced = _type_by_value(cursor) or cursor.referenced
            if referenced is None or referenced == cursor:
                continue
            target = place_of(referenced.get_definition())
            if target is None or declaration.start <= found[target].start < declaration.end:
                continue  # itself, or the type in its `typedef struct name { ... } name;`
            if referenced.kind in _FUNCTIONS and found[target].is_function:
                if declaration.is_function:
                    calls[place].add(target)
            elif found[target].is_type and not _declares_ahead(declaration, found[target]):
                names[place].add(target)
                if _kind(cursor) in _BY_VALUE or referenced.kind not in _TYPES:
                    uses[place].add(target)
    order = Order(_share(calls), _share(uses), _share(names))
    for sort, edges in (("call", calls), ("use", uses)):
        for place, target in _out_of_order(edges):
            names = (found[each].cursor.spelling or "?" for each in (place, target))
            order.examples.append(f"{sort}: {' before '.join(names)}")
    return order


def _kind(cursor: cindex.Cursor) -> cindex.CursorKind | None:
    """None where the library of clang knows a kind that its Python bindings do not."""
    try:
        return cursor.kind
    except ValueError:
        return None


def _type_by_value(cursor: cindex.Cursor) -> cindex.Cursor | None:
    """The type of a variable or member that is no pointer, or such an array."""
    if _kind(cursor) not in (_KINDS.FIELD_DECL, _KINDS.VAR_DECL) or not cursor.is_definition():
        return None
    type_ = cursor.type.get_canonical()
    while type_.kind == cindex.TypeKind.CONSTANTARRAY:
        type_ = type_.element_type
    return type_.get_declaration() if type_.kind in _VALUES else None


def _declares_ahead(declaration: Declaration, type_: Declaration) -> bool:
    kind = declaration.cursor.kind
    return kind == _KINDS.TYPEDEF_DECL and declaration.cursor.spelling == type_.cursor.spelling


def _leads_to(edges: dict[int, set[int]], start: int) -> set[int]:
    """The declarations that can be reached from one, that one included."""
    found, waiting = {start}, [start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def _edges(edges: dict[int, set[int]]) -> Iterator[tuple[int, int, bool]]:
    """All edges in order, each with whether it lies within a cycle."""
    reached = {target: _leads_to(edges, target) for target in set().union(*edges.values())}
    for place, targets in edges.items():
        for target in sorted(targets):
            yield place, target, place in reached[target]


def _out_of_order(edges: dict[int, set[int]]) -> list[tuple[int, int]]:
    return [(place, target) for place, target, cyclic in _edges(edges) if target > place and not cyclic]


def _share(edges: dict[int, set[int]]) -> Share:
    cyclic = [cyclic for _, _, cyclic in _edges(edges)]
    wrong = len(_out_of_order(edges))
    return Share(len(cyclic) - sum(cyclic) - wrong, wrong, sum(cyclic))


def main() -> None:
    """Measure, show and publish."""
    parser = command_line(__doc__, sample=40, seed=0)
    parser.add_argument("corpus", help="folder of a corpus")
    parser.add_argument("--headers", nargs="+", default=[], help="folders of third-party headers")
    arguments = parser.parse_args()
    with refusals("order"):
        reader, clang, total = ShardReader(arguments.corpus), Reader(arguments.headers), Order()
        projects: dict[str, Any] = {}
        for name, project in sorted(read_projects(reader).items()):
            if "compilable" not in project.figures["kinds"]:
                continue
            rows = sample_documents(
                reader, project=name, kind="compilable", num=arguments.sample, seed=arguments.seed
            )
            order = Order()
            for row in rows:
                order.add(clang.order_of(row["text"], language_of(main_source(row["files"]), project.is_c)))
            projects[name] = {"documents": len(rows), **order.figures()}
            progress(f"{name:24} {len(rows):4} documents  {order}")
            total.add(order)
    progress(f"{'all':24} {sum(each['documents'] for each in projects.values()):4} documents  {total}")
    publish("order", {"corpus": arguments.corpus, "all": total.figures(), "projects": projects})


if __name__ == "__main__":
    main()
