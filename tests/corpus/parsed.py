"""Sources taken apart and parsed the way the corpus does it, for tests of what is read off the trees."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cpplm.cpp.doc_comments import DocPair, find_doc_pairs
from cpplm.cpp.lexer import lex
from cpplm.cpp.macros import MacroTable, macro_bodies
from cpplm.cpp.parser import Language, grammar
from cpplm.cpp.segmenter import segment_file
from cpplm.cpp.syntax_spans import PackedSpans, find_spans, whole_groups


@dataclass
class Parsed:
    """One piece: the item's text, and what was found in it by offsets in that text."""

    text: bytes
    spans: PackedSpans
    pairs: list[DocPair]
    functions: int

    def triples(self) -> list[tuple[int, int, int]]:
        return [tuple(row) for row in np.frombuffer(self.spans, dtype=np.int32).reshape(-1, 3).tolist()]

    def texts(self, kind: int) -> list[str]:
        """The texts of the spans of a kind, in order."""
        return [self.text[start:end].decode() for start, end, k in sorted(self.triples()) if k == kind]


def parsed(source: bytes, language: Language = "c++") -> Iterator[Parsed]:
    """Every piece of code of a source."""
    lexed = lex(source)
    parts = segment_file(lexed, MacroTable.from_bodies(macro_bodies(lexed.directives)))
    assert parts.sound
    rules = grammar(language)
    for piece in parts.pieces:
        if piece.sort != "code":
            continue
        plain = parts.plain[piece.start : piece.end]
        text = piece.leading + lexed.data[piece.start : piece.end]
        shift = len(piece.leading)
        whole = whole_groups(piece.directives, piece.start)
        spans, functions = find_spans(rules.parse(plain), rules, shift=shift, whole=whole)
        found = find_doc_pairs(functions, text, plain, shift=shift, whole=whole)
        pairs = [DocPair(*row) for row in np.frombuffer(found, dtype=np.int32).reshape(-1, 6).tolist()]
        yield Parsed(text, spans, pairs, len(functions))


def only(source: str, language: Language = "c++") -> Parsed:
    """The last piece of a source: what stands before it is there to define macros."""
    return list(parsed(source.encode(), language))[-1]
