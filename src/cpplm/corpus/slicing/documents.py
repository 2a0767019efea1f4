"""A unit to documents that never exceed the budget.

    compilable   header, second half and source merged and ordered, with what they need from the rest of the
                 project; a part of a unit too long for one document has with it all that it needs
    inlined      a unit with all that it includes, expanded in place: `mode="inlined"`, in the budget
    file         a file as it is: asked for (`mode="file"`), or its brackets or conditionals do not add up
    chunk        a piece that cannot stand alone: what it needs does not fit beside it, so that the includes
                 of its files stay; or one item was cut

The ladder: everything in full, the functions that it calls in other source files included (if asked for);
without these; borrowed items without comments; borrowed items as declarations; the unit in parts; chunks.
Every item of the unit is written at least once. The budget is what `count` says, of the final text.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from cpplm.corpus.document import Document, SourceLines, annotations_of, chunk_documents
from cpplm.corpus.ingest.discovery import read_source
from cpplm.corpus.slicing import merging
from cpplm.corpus.slicing.asked import NOTHING, Asked
from cpplm.corpus.slicing.callees import Callees, Room
from cpplm.corpus.slicing.closure import ANY_SIZE, Index
from cpplm.corpus.slicing.inlining import inline
from cpplm.corpus.slicing.packing import Bundle, Measure, Packer
from cpplm.corpus.slicing.shortening import Detail
from cpplm.corpus.slicing.units import Unit
from cpplm.cpp.items import FileItems, Item, ItemKind, Syntax

# Above this share of unreadable bytes the order of items means little.
_MOST_ERRORS = 0.2
# Tokens may span two items, so the lengths of items add up to slightly more than that of their document.
_SURELY_TOO_LONG = 1.1
# Of what costs more than this times the unit itself, only skeletons are borrowed.
_GENEROUS = 2.0


@dataclass(frozen=True)
class Options:
    """What building one unit depends on, besides the unit and its project."""

    budget: int
    measure: Measure
    ordered: bool
    closed: bool = True
    apart: bool = False  # without what the rest of the project declares
    asked: Asked = NOTHING
    inlined: bool = False
    callees: Callees | None = None


def build_unit(unit: Unit, index: Index, options: Options) -> tuple[list[Document], int]:
    """The documents of a unit and its guests, and the number of function definitions in their files."""
    units = [unit, *unit.guests]
    functions = sum(index.read(file.name).functions for each in units for file in each.files)
    documents: list[Document] = []
    covered: set[str] = set()
    for each in units:
        if covered.issuperset(file.name for file in each.files):
            continue
        inside = inline(each, index, options.budget, options.measure) if options.inlined else None
        if inside is None:
            documents += _by_itself(each, index, options)
        else:
            documents.append(inside.document)
            covered |= inside.files
    return documents, functions


def _by_itself(unit: Unit, index: Index, options: Options) -> list[Document]:
    """The documents of a unit with what it needs, or file by file."""
    parts = [index.read(file.name) for file in unit.files]
    if options.ordered and _can_be_ordered(parts):
        return _ordered(unit, parts, index, options)
    documents: list[Document] = []
    for file, part in zip(unit.files, parts, strict=True):
        documents += _whole_file(file.name, read_source(file), part, options)
    return documents


def _can_be_ordered(parts: Sequence[FileItems]) -> bool:
    size = sum(len(part.lexed.data) for part in parts)
    return (
        all(part.sound for part in parts) and sum(part.error_bytes for part in parts) <= _MOST_ERRORS * size
    )


def _ordered(unit: Unit, parts: Sequence[FileItems], index: Index, options: Options) -> list[Document]:
    """Down the ladder until the unit fits into one document, or into parts."""
    if options.apart or not options.closed:
        bundle = merging.kept(unit, parts, index)
        if _says_nothing(bundle):
            return []
        packer = Packer(bundle, options.budget, options.measure)
        whole = None if options.apart else packer.whole()
        if whole is not None:
            return [whole]
        documents, alone = ([], None) if options.apart else packer.parts()
        return documents + packer.chunks(alone)
    own = sum(len(item.text) for part in parts for item in part.items)
    most = min(options.measure.most_bytes * options.budget, int(_GENEROUS * own))
    rungs = [(detail, None) for detail in Detail]
    for detail, callees in [(Detail.FULL, options.callees), *rungs] if options.callees else rungs:
        last = detail == max(Detail)
        limit = ANY_SIZE if last else most
        room = Room(options.budget, options.measure, most)
        more = functools.partial(callees.find, room=room) if callees else None
        closed = merging.closed(unit, parts, index, detail, limit, asked=options.asked, more=more)
        if closed is None:
            continue
        if _says_nothing(closed):
            return []
        size = sum(options.measure.item(item.text) for item in closed.items)
        if size <= _SURELY_TOO_LONG * options.budget or last:
            packer = Packer(closed, options.budget, options.measure)
            whole = packer.whole()
            if whole is not None:
                return [whole]
    documents, alone = packer.parts()
    return documents + _chunks(unit, parts, index, [packer.items[number] for number in alone], options)


def _chunks(
    unit: Unit, parts: Sequence[FileItems], index: Index, items: list[Item], options: Options
) -> list[Document]:
    """Items whose needs do not fit beside them: with the includes of their files instead."""
    if not items:
        return []
    bundle = merging.kept(unit, parts, index)
    wanted = {(index.names[item.file], item.line, item.text) for item in items}
    numbers = {
        number
        for number, item in enumerate(bundle.items)
        if (bundle.names[item.file], item.line, item.text) in wanted
    }
    return Packer(bundle, options.budget, options.measure).chunks(numbers)


def _says_nothing(bundle: Bundle) -> bool:
    """Whether there is no code to write, only what files say about themselves."""
    return all(bundle.items[number].kind == ItemKind.COMMENT for number in bundle.roots)


def _parts_of(data: bytes, part: FileItems) -> list[tuple[Syntax, int]]:
    """The syntax of a file's items with the place of each in the file's document."""
    blank = len(data) - len(data.lstrip(b"\n"))
    if not part.sound:
        return [(part.syntax, -blank)]
    found = []
    for item in part.items:
        together = data.startswith(item.text, item.origin) if item.origin >= 0 else False
        found.append((Syntax(item.spans, item.pairs if together else b""), item.origin - blank))
    return found


def _whole_file(name: str, data: bytes, part: FileItems, options: Options) -> list[Document]:
    """A file as it is, or in pieces cut between its items."""
    count = options.measure.exact
    blank = len(data) - len(data.lstrip(b"\n"))
    text = data.decode().strip("\n") + "\n"
    if not text.strip():
        return []
    size = count(text)
    if size <= options.budget:
        source = SourceLines(name, blank + 1, blank + text.count("\n"))
        places = annotations_of(_parts_of(data, part))
        return [Document(text, "file", (name,), size, part.functions, (source,), **places)]
    lines = [line + "\n" for line in text[:-1].split("\n")]  # a form feed ends no line
    ends = [item.last_line + 1 - blank for item in part.items] if part.sound else []
    found: list[Document] = []
    first = 0

    def cut_before(end: int) -> None:
        source = SourceLines(name, first + blank + 1, end + blank)
        found.extend(chunk_documents("".join(lines[first:end]), source, source.first, options.budget, count))

    previous = 0
    for end in [*ends, len(lines)]:
        if previous > first and count("".join(lines[first:end])) > options.budget:
            cut_before(previous)
            first = previous
        previous = max(previous, end)
    cut_before(len(lines))
    return found
