"""Borrowed items, shorter: without comments, without the bodies of functions that nobody has to read.

A body that the compiler needs stays: `constexpr`, a deduced return type, a default member initialiser. What
is shortened mentions less, so less has to stand before it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import IntEnum

import tree_sitter

from cpplm.corpus.items import CPP, Item, Kind, condition_names, mentioned_in
from cpplm.corpus.lexing import lex
from cpplm.corpus.masking import MacroTable, mask

_BODIES = tree_sitter.Query(CPP, "(function_definition body: (compound_statement)) @function")
_CONSTANT = re.compile(rb"\b(?:constexpr|consteval|auto|decltype)\b")
_BLANK_LINES = re.compile(rb"\n(?:[ \t]*\n)+")
_TRAILING = re.compile(rb"[ \t]+$", re.MULTILINE)
_parser = tree_sitter.Parser(CPP)


class Detail(IntEnum):
    """How much of a borrowed item is written."""

    FULL = 0
    NO_COMMENTS = 1
    DECLARATIONS = 2


def shorten(item: Item, detail: Detail, macros: MacroTable) -> Item:
    """The item with that much detail; itself where nothing can go."""
    if detail == Detail.FULL or item.kind in (Kind.INCLUDE, Kind.COMMENT):
        return item
    text = without_comments(item.text)
    if detail == Detail.NO_COMMENTS or item.kind not in (Kind.TYPE, Kind.FUNCTION) or b"{" not in text:
        return replace(item, text=text)
    if item.kind == Kind.FUNCTION and (item.evaluated or item.qualifier or item.callable.isupper()):
        return replace(item, text=text)
    short = without_bodies(text, macros)
    if short == text:
        return replace(item, text=text)
    mentions = item.mentions & (mentioned_in(short) | condition_names(item.stack))
    kind = Kind.PROTOTYPE if item.kind == Kind.FUNCTION and b"{" not in short else item.kind
    return replace(item, text=short, mentions=mentions, kind=kind, callable=b"", functions=0)


def without_comments(text: bytes) -> bytes:
    """The text without comments and without the lines that only held one."""
    lexed = lex(text)
    kept: list[bytes] = []
    position = 0
    for start, end in lexed.comments:
        kept.append(text[position:start])
        position = end
    kept.append(text[position:])
    return _BLANK_LINES.sub(b"\n", _TRAILING.sub(b"", b"".join(kept))).strip(b"\n") + b"\n"


def without_bodies(text: bytes, macros: MacroTable) -> bytes:
    """Function bodies, with the initialisers of constructors, replaced by a semicolon."""
    lexed = lex(text)
    if lexed.directives:
        return text
    code, plain = mask(lexed, macros)
    root = _parser.parse(plain).root_node
    functions = tree_sitter.QueryCursor(_BODIES).captures(root).get("function", [])
    kept: list[bytes] = []
    position = 0
    for node in sorted(functions, key=lambda node: node.start_byte):
        body = node.child_by_field_name("body")
        if body is None or node.start_byte < position or node.has_error:
            continue
        initialisers = next(
            (child for child in node.children if child.type == "field_initializer_list"), None
        )
        start = initialisers.start_byte if initialisers is not None else body.start_byte
        head = code[node.start_byte : start]
        if b"(" not in head or _CONSTANT.search(head):
            continue
        kept.append(text[position:start].rstrip() + b";")
        position = body.end_byte
    return b"".join([*kept, text[position:]])
