"""A document of what was written: its files, its lines with their reasons, spans, documented functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from cpplm.corpus.document import Document, DocumentKind, SourceLines, annotations_of, sources_of
from cpplm.corpus.ingest.discovery import is_template
from cpplm.corpus.slicing.closure import Reason
from cpplm.corpus.slicing.expansion import Expansion, Place
from cpplm.corpus.slicing.rendering import PlacedItem, Rendered
from cpplm.cpp.items import Syntax


def document_of(
    expansion: Expansion,
    rendered: Rendered,
    kind: DocumentKind,
    size: int,
    reasons: Mapping[Place, Reason] = MappingProxyType({}),
) -> Document:
    """The document of what was written; its own files come first.

    Args:
        size: of its text, in the unit of the budget.
        reasons: why borrowed items are there.
    """
    sources = [source for each in rendered.items for source in _sources(expansion, each, reasons)]
    sources += [SourceLines(*lines) for lines in rendered.lines]
    files = list(dict.fromkeys(source.file for source in sources))
    spans, docstrings = annotations_of(list(_syntax(expansion, rendered)))
    own = {name: number for number, name in enumerate(expansion.own)}
    files.sort(key=lambda name: (own.get(name, len(own)), expansion.index.number[name]))

    def is_own(each: PlacedItem) -> bool:
        return expansion.visits[each.place[0]].own and each.place not in reasons

    return Document(
        text=rendered.text.decode(),
        kind=kind,
        files=tuple(files),
        size=size,
        functions=sum(each.item.functions for each in rendered.items if is_own(each)),
        sources=sources_of(sources),
        spans=spans,
        docstrings=docstrings,
        borrowed=tuple(_borrowed(rendered, is_own)),
    )


def _borrowed(rendered: Rendered, is_own: Callable[[PlacedItem], bool]) -> Iterator[dict[str, int]]:
    """The ranges of the text that stand there for what they declare, those that touch as one."""
    groups = [(own, max(next(each).offset, 0)) for own, each in itertools.groupby(rendered.items, is_own)]
    for (own, start), (_, end) in itertools.pairwise([*groups, (True, len(rendered.text))]):
        if not own:
            yield {"start": start, "end": end}


def _sources(
    expansion: Expansion, placed: PlacedItem, reasons: Mapping[Place, Reason]
) -> Iterator[SourceLines]:
    visit = expansion.visits[placed.place[0]]
    reason = reasons.get(placed.place)
    text = "" if visit.own else "read before it"
    if reason is not None:
        line = expansion.item(reason.place).last_line
        file, _, last = expansion.visits[reason.place[0]].file.lines(line, line)[-1]
        text = f"{reason.name.decode()} in {file}:{last}"
    if is_template(visit.file.name):
        text = f"configured, {text}"
    for lines in visit.file.lines(placed.item.line, placed.item.last_line):
        yield SourceLines(*lines, text)


def _syntax(expansion: Expansion, rendered: Rendered) -> Iterator[tuple[Syntax, int]]:
    for each in rendered.items:
        item = each.item
        visit = expansion.visits[each.place[0]]
        together = not each.complete or visit.file.data.startswith(item.text, item.origin)
        if each.place[1] not in visit.gone:
            yield Syntax(item.spans, item.pairs if together else b""), each.offset
