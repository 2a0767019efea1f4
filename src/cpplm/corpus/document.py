"""One training document with its provenance, and documents that are just a piece of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cpplm.core.spans import pack_spans
from cpplm.cpp.doc_comments import shift_pairs
from cpplm.cpp.items import Syntax, read_syntax
from cpplm.cpp.lexer import lex
from cpplm.cpp.parser import grammar, language_of
from cpplm.cpp.syntax_spans import join_spans, whole_groups

DocumentKind = Literal["compilable", "inlined", "file", "chunk"]


class SourceLines(NamedTuple):
    """Lines of a file, both counted from 1 and included, and why they are in a document.

    `reason` is empty for lines that the document was built for; else it ends with the place (file:line) of
    what needs them.
    """

    file: str
    first: int
    last: int
    reason: str = ""


@dataclass(frozen=True)
class Document:
    """One training document; `size` is in the unit of the budget, `functions` counts those of its own files.

    `files` names those that the document was built for before those it borrows from; `sources` the lines that
    its text was taken from, by file; `borrowed` the ranges of bytes that it has for what they declare alone.
    """

    text: str
    kind: DocumentKind
    files: tuple[str, ...]
    size: int
    functions: int
    sources: tuple[SourceLines, ...] = ()
    spans: bytes = b""  # as the column keeps them, as are `docstrings`
    docstrings: tuple[dict[str, int], ...] = ()
    borrowed: tuple[dict[str, int], ...] = ()


def sources_of(lines: Iterable[SourceLines]) -> tuple[SourceLines, ...]:
    """Line ranges sorted by file, those of one reason that touch joined."""
    joined: list[SourceLines] = []
    for each in sorted(lines):
        last = joined[-1] if joined else each
        if joined and (last.file, last.reason) == (each.file, each.reason) and each.first <= last.last + 1:
            joined[-1] = last._replace(last=max(last.last, each.last))
        else:
            joined.append(each)
    return tuple(joined)


def annotations_of(parts: Sequence[tuple[Syntax, int]]) -> tuple[bytes, tuple[dict[str, int], ...]]:
    """The spans and docstrings of a document's parts, each given with its offset in the document."""
    spans = pack_spans(join_spans((syntax.spans, start) for syntax, start in parts))
    return spans, tuple(shift_pairs((syntax.pairs, start) for syntax, start in parts))


def chunk_documents(
    text: str, source: SourceLines, line: int, budget: int, count: Callable[[str], int]
) -> list[Document]:
    """Text that cannot stand alone as documents within the budget.

    Args:
        text: of these lines, possibly with scopes opened before and closed after it.
        source: where it comes from.
        line: that the text begins at, counting back from its end.
        budget: the most that one document may have, in the unit of `count`.
        count: the length of a text.
    """
    documents: list[Document] = []
    first = source.first
    for piece in split_text(text, budget, count):
        line += piece.count("\n")
        last = min(max(first, line - piece.endswith("\n")), source.last)
        if piece.strip():
            documents.append(_chunk(piece, SourceLines(source.file, first, last), count))
        first = min(max(first, line), source.last)
    return documents


def _chunk(text: str, source: SourceLines, count: Callable[[str], int]) -> Document:
    lexed = lex(text.encode())
    rules = grammar(language_of(source.file, project_is_c=False))
    whole = whole_groups(lexed.directives, 0)
    syntax = read_syntax(rules.parse(lexed.plain), rules, lexed.data, lexed.plain, whole)
    places = annotations_of([(syntax, 0)])
    return Document(text, "chunk", (source.file,), count(text), syntax.functions, (source,), *places)


def split_text(text: str, budget: int, count: Callable[[str], int]) -> list[str]:
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
