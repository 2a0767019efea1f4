"""Units with the project's includes expanded in place (`expanding`) as documents for long contexts.

Before each stretch of another file stands a comment with its path. Guards of files that are there once are
dropped. `assign_guests` decides, before anything is expanded, which unit's document has to cover a header
that has no source file of its own: the smallest one that includes it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cpplm.core.spans import SpanTable
from cpplm.corpus.document import Annotations, Document, annotations_of, sources_of
from cpplm.corpus.ingest.discovery import SourceFile
from cpplm.corpus.slicing.closure import Index
from cpplm.corpus.slicing.expanding import OPENING, Expansion, Stretch, TooMuchError, says_once
from cpplm.corpus.slicing.ordering import each_bit
from cpplm.corpus.slicing.packing import Measure
from cpplm.corpus.slicing.placing import components
from cpplm.corpus.slicing.units import Includes, Unit
from cpplm.cpp.doc_comments import DocPair
from cpplm.cpp.file_suffixes import is_source
from cpplm.cpp.items import FileItems, Syntax
from cpplm.cpp.lexer import IDENTIFIER
from cpplm.cpp.syntax_spans import cut_spans, join_spans

_LEAVES_A_GROUP = re.compile(rb"(?:[ \t]*#[ \t]*(?:else|elif|endif)[^\n]*\n?|\s)*")
PairTable = npt.NDArray[np.int32]  # rows in the order of `DocPair`


@dataclass(frozen=True)
class Inlined:
    """A document and the names of the files that are in it, whole."""

    document: Document
    files: frozenset[str]


def inline(unit: Unit, index: Index, budget: int, measure: Measure) -> Inlined | None:
    """A unit's files with everything of the project that they include.

    Args:
        unit: its guests are not looked at.
        index: of the project.
        budget: the longest document, in the unit that `measure` counts.
        measure: counts.

    Returns:
        None when that is over the budget, when the conditionals of a file do not add up, or when a file
        includes itself without a guard.
    """
    own = [file.name for file in unit.files]
    root = _root(own)
    reached = index.includes.reachable([root])
    expansion = Expansion(index, budget, measure)
    try:
        for name in [*(name for name in own if name not in reached), root]:
            expansion.add(name)
        for name in own:  # reached on a path that was not taken
            if name not in expansion.times:
                expansion.add(name)
    except TooMuchError:
        return None
    document = _document(expansion, own, root, measure)
    return Inlined(document, frozenset(expansion.times)) if document.size <= budget else None


def _root(names: Sequence[str]) -> str:
    """The file of a unit that includes the others."""
    return next((name for name in names if is_source(name)), names[0])


def _document(expansion: Expansion, own: Sequence[str], root: str, measure: Measure) -> Document:
    """The text of an expansion with its provenance, spans and documented functions."""
    index = expansion.index
    written: list[bytes] = []
    placed: list[tuple[Stretch, int]] = []
    size = 0
    current = root
    gap = False  # whether a blank line comes next
    for stretch, literal in _written(expansion):
        data = literal or index.read(stretch.file).lexed.data[stretch.start : stretch.end]
        text = data.strip(b"\n")
        if not text.strip():
            gap = True
            continue
        before = b""
        if stretch.file != current and not literal and not _LEAVES_A_GROUP.fullmatch(text):
            current = stretch.file
            before = b"\n// " + _printable(current) + b"\n"
        elif gap or data.startswith(b"\n"):
            before = b"\n"
        before = before if written else before.lstrip()
        if not literal:
            start = stretch.start + data.index(text)
            placed.append((replace(stretch, start=start, end=start + len(text)), size + len(before)))
        written += [before, text, b"\n"]
        size += len(before) + len(text) + 1
        gap = data.endswith(b"\n\n")
    final = b"".join(written).decode()
    return Document(
        text=final,
        kind="inlined",
        files=tuple(sorted(expansion.times, key=lambda name: (name not in own, index.number[name]))),
        size=measure.exact(final),
        functions=sum(index.read(name).functions * times for name, times in expansion.times.items()),
        sources=sources_of(_lines(stretch, index) for stretch, _ in placed),
        **_places(placed, index),
    )


def _printable(name: str) -> bytes:
    """A path that stays on its line."""
    return "".join(c if c.isprintable() and c != "\\" else "_" for c in name).encode()


def _lines(stretch: Stretch, index: Index) -> tuple[str, int, int]:
    data = index.read(stretch.file).lexed.data
    first = data.count(b"\n", 0, stretch.start) + 1
    return stretch.file, first, first + data.count(b"\n", stretch.start, stretch.end)


def _written(expansion: Expansion) -> Iterator[tuple[Stretch, bytes]]:
    """The stretches of text, neighbours joined, and text that is written in the place of others."""
    guards = _Guards(expansion)
    last: Stretch | None = None
    for stretch in expansion.stretches:
        stays, literal = guards.written(stretch)
        if stays and last is not None and (last.file, last.end) == (stretch.file, stretch.start):
            last = replace(last, end=stretch.end)
        elif stays or literal:
            if last is not None:
                yield last, b""
            last = stretch if stays else None
            if literal:
                yield stretch, literal
    if last is not None:
        yield last, b""


class _Guards:
    """Which lines against being read twice are still needed."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self._asked: set[bytes] = set()  # the macros in all conditions
        for name in expansion.times:
            lexed = expansion.index.read(name).lexed
            for directive in lexed.directives:
                if directive.keyword in (*OPENING, b"elif") and directive.start not in lexed.guard_directives:
                    self._asked.update(IDENTIFIER.findall(directive.argument))

    def written(self, stretch: Stretch) -> tuple[bool, bytes]:
        """Whether a stretch is written, or what is in its place."""
        if stretch.role == "text":
            return True, b""
        lexed = self._expansion.index.read(stretch.file).lexed
        again = self._expansion.times[stretch.file] > 1
        if lexed.guard:
            kept = again or lexed.guard in self._expansion.undefined
            asked = stretch.role == "define" and lexed.guard in self._asked
            return stretch.role in ("guard", "define") and (kept or asked), b""
        if not again or not says_once(lexed):
            return False, b""
        macro = re.sub(rb"\W", b"_", stretch.file.encode()).upper() + b"_"
        if stretch.role == "once":
            return False, b"#ifndef " + macro + b"\n#define " + macro + b"\n"
        return False, b"#endif  // " + macro + b"\n"


def _places(placed: Sequence[tuple[Stretch, int]], index: Index) -> Annotations:
    """The spans and documented functions that lie in one stretch each."""
    by_file: dict[str, tuple[SpanTable, PairTable]] = {}
    parts: list[tuple[Syntax, int]] = []
    for stretch, offset in placed:
        if stretch.file not in by_file:
            by_file[stretch.file] = _syntax(index.read(stretch.file))
        spans, pairs = by_file[stretch.file]
        inside = pairs[(pairs[:, 0] >= stretch.start) & (pairs[:, -1] <= stretch.end)] - stretch.start
        parts.append(
            (Syntax(cut_spans(spans, stretch.start, stretch.end).tobytes(), inside.tobytes()), offset)
        )
    return annotations_of(parts)


def _syntax(part: FileItems) -> tuple[SpanTable, PairTable]:
    """The spans and documented functions of a file, as offsets in it."""
    if not part.sound:
        return join_spans([(part.syntax.spans, 0)]), _pairs([(part.syntax.pairs, 0)])
    together = [
        item for item in part.items if item.pairs and part.lexed.data.startswith(item.text, item.origin)
    ]
    return (
        join_spans((item.spans, item.origin) for item in part.items),
        _pairs([(item.pairs, item.origin) for item in together]),
    )


def _pairs(parts: Sequence[tuple[bytes, int]]) -> PairTable:
    width = len(DocPair._fields)
    tables = [np.frombuffer(pairs, dtype=np.int32).reshape(-1, width) + origin for pairs, origin in parts]
    return np.concatenate([np.empty((0, width), dtype=np.int32), *tables]).astype(np.int32)


def assign_guests(units: Sequence[Unit], includes: Includes, files: Mapping[str, SourceFile]) -> list[Unit]:
    """The units that are expanded, in their order, each with the header-only units that it has to cover.

    A header that only headers include is covered by one that nothing else of the project brings in. Nothing
    is expanded for this: when a unit turns out too long, its guests are documents of their own.

    Args:
        units: all of the project.
        includes: the include graph.
        files: by name, all that are in the graph.
    """
    closures = _closures(includes, files)
    number = {name: count for count, name in enumerate(includes.scans)}
    sizes = [files[name].size for name in includes.scans]
    brings = [_union(closures[number[file.name]] for file in unit.files) for unit in units]
    own = [_union(1 << number[file.name] for file in unit.files) for unit in units]
    size = [sum(sizes[bit] for bit in each_bit(bits)) for bits in brings]

    has_source = [any(is_source(file.name) for file in unit.files) for unit in units]
    owners = [position for position in range(len(units)) if has_source[position]]
    covered = _union(brings[position] for position in owners)
    loose = [position for position in range(len(units)) if not has_source[position]]
    loose.sort(key=lambda position: (-size[position], position))
    for position in loose:  # what brings in more comes first, so that it is never brought in by a later one
        if own[position] & ~covered:
            owners.append(position)
            covered |= brings[position]

    waiting = set(loose).difference(owners)
    by_file: dict[int, int] = {bit: position for position in waiting for bit in each_bit(own[position])}
    open_bits = _union(own[position] for position in waiting)
    guests: dict[int, list[int]] = defaultdict(list)
    for owner in sorted(owners, key=lambda position: (size[position], position)):
        for position in sorted({by_file[bit] for bit in each_bit(brings[owner] & open_bits)}):
            if not own[position] & ~brings[owner]:
                guests[owner].append(position)
                open_bits &= ~own[position]
                waiting.discard(position)
    return [
        replace(
            units[owner],
            guests=tuple(units[guest] for guest in sorted(guests[owner], key=lambda p: (-size[p], p))),
        )
        for owner in sorted([*owners, *waiting])
    ]


def _union(sets: Iterator[int]) -> int:
    joint = 0
    for bits in sets:
        joint |= bits
    return joint


def _closures(includes: Includes, files: Mapping[str, SourceFile]) -> dict[int, int]:
    """For each file, by its number in the graph, those that it brings in, itself among them, as bits."""
    number = {name: count for count, name in enumerate(includes.scans)}
    edges = {
        number[name]: sorted({number[target] for target in targets.values() if files[target].may_be_borrowed})
        for name, targets in includes.edges.items()
    }
    found: dict[int, int] = {}
    for component in components(list(number.values()), edges):
        joint = _union(1 << member for member in component)
        for member in component:
            joint |= _union(found.get(target, 0) for target in edges[member])
        found.update(dict.fromkeys(component, joint))
    return found
