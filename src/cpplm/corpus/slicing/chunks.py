"""Text without what it needs: files as they are, and pieces with the includes of their file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cpplm.corpus.document import Document, SourceLines, annotations_of, chunk_documents, sources_of
from cpplm.corpus.slicing.expansion import Expansion, Place
from cpplm.corpus.slicing.measure import Measure
from cpplm.corpus.slicing.provenance import document_of
from cpplm.corpus.slicing.rendering import render
from cpplm.cpp.items import FileItems, ItemKind, Syntax

# Above this share of unreadable bytes the order of items means little.
_MOST_ERRORS = 0.2


def chunks(expansion: Expansion, alone: Sequence[Place], budget: int, measure: Measure) -> list[Document]:
    """Own items with the includes of their files instead of what they need."""
    return [
        document
        for number in sorted({visit for visit, _ in alone})
        for document in _chunks_of(
            expansion.bare(number), [item for visit, item in alone if visit == number], budget, measure
        )
    ]


def _chunks_of(bare: Expansion, mine: Sequence[int], budget: int, measure: Measure) -> list[Document]:
    items = bare.visits[0].file.items
    includes = [n for n, item in enumerate(items) if item.kind == ItemKind.INCLUDE and not item.stack]
    documents: list[Document] = []
    waiting = list(mine)
    while waiting:
        size = sum(measure.item(items[n].text) for n in includes)
        taken: list[int] = []
        for item in waiting:
            size += measure.item(items[item].text)
            if size > budget:
                break
            taken.append(item)
        while taken:
            places = sorted({*includes, *taken})
            rendered = render(bare, [((0, n), items[n]) for n in places])
            size = measure.text(rendered.text)
            if size <= budget:
                documents.append(document_of(bare, rendered, "chunk", size))
                break
            taken = taken[: len(taken) * 9 // 10]
        if not taken:
            documents += _cut(bare, waiting[0], budget, measure)
            taken = waiting[:1]
        waiting = waiting[len(taken) :]
    return documents


def _cut(bare: Expansion, number: int, budget: int, measure: Measure) -> list[Document]:
    """One item that is too long, in pieces."""
    item = bare.item((0, number))
    rendered = render(bare, [((0, number), item)])
    data = rendered.text
    file = bare.visits[0].file
    lines = file.lines(item.line, item.last_line)
    name, first, _ = lines[0]
    source = SourceLines(name, first, max(line[2] for line in lines if line[0] == name))
    start = max(0, rendered.items[0].offset)
    line = source.last - item.text.strip(b"\n").count(b"\n") - data.count(b"\n", 0, start)
    pieces = chunk_documents(data.decode(), source, line, budget, measure.exact)
    if len(lines) == 1:
        return pieces
    # Which piece has which lines of a file that was put into the item is not known.
    files = tuple(dict.fromkeys(name for name, _, _ in lines))
    sources = sources_of(SourceLines(*each) for each in lines)
    return [replace(piece, files=files, sources=sources) for piece in pieces]


def _parts_of(part: FileItems, blank: int) -> list[tuple[Syntax, int]]:
    """The syntax of a file's items with the place of each in the file without its first `blank` bytes."""
    if not part.sound:
        return [(part.syntax, -blank)]
    found = []
    for item in part.items:
        together = part.lexed.data.startswith(item.text, item.origin)
        found.append((Syntax(item.spans, item.pairs if together else b""), item.origin - blank))
    return found


def whole_file(name: str, part: FileItems, budget: int, measure: Measure) -> list[Document]:
    """A file as it is, or in pieces cut between its items."""
    data = part.lexed.data
    count = measure.exact
    blank = len(data) - len(data.lstrip(b"\n"))
    text = data.decode().strip("\n") + "\n"
    if not text.strip():
        return []
    size = count(text)
    if size <= budget:
        source = SourceLines(name, blank + 1, blank + text.count("\n"))
        places = annotations_of(_parts_of(part, blank))
        return [Document(text, "file", (name,), size, part.functions, (source,), *places)]
    lines = [line + "\n" for line in text[:-1].split("\n")]  # a form feed ends no line
    ends = [item.last_line + 1 - blank for item in part.items] if part.sound else []
    found: list[Document] = []
    first = 0

    def cut_before(end: int) -> None:
        source = SourceLines(name, first + blank + 1, end + blank)
        found.extend(chunk_documents("".join(lines[first:end]), source, source.first, budget, count))

    previous = 0
    for end in [*ends, len(lines)]:
        if previous > first and count("".join(lines[first:end])) > budget:
            cut_before(previous)
            first = previous
        previous = max(previous, end)
    cut_before(len(lines))
    return found


def can_be_sliced(parts: Sequence[FileItems]) -> bool:
    """True if files can be taken apart."""
    size = sum(len(part.lexed.data) for part in parts)
    return (
        all(part.sound for part in parts) and sum(part.error_bytes for part in parts) <= _MOST_ERRORS * size
    )
