"""Pieces to items: what each top-level piece is, what it declares and what it mentions.

tree-sitter reads each piece by itself, with directives and macros masked. Names are plain identifiers:
resolving them further is not needed to find a safe order, since a name that means something else only adds an
edge between items that keep their source order.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tree_sitter

from cpplm.cpp.declarations import Item, ItemKind, read_declaration
from cpplm.cpp.doc_comments import PackedPairs, find_doc_pairs
from cpplm.cpp.lexer import IDENTIFIER, INCLUDE_KEYWORDS, LexedSource, blank, lex, names_in
from cpplm.cpp.macros import MacroTable
from cpplm.cpp.parser import Grammar, Language, grammar
from cpplm.cpp.segmenter import segment_file
from cpplm.cpp.segments import Condition, Frame, Scope, SegmentedFile, SourceSegment
from cpplm.cpp.syntax_spans import PackedSpans, SpanPredicate, find_spans, whole_groups

# Each alternative begins with a byte of its own, so that the engine skips what begins with none of them.
_PREFIXED = re.compile(rb"(\.[A-Za-z_]\w*|->[A-Za-z_]\w*|>::[A-Za-z_]\w*|s(?<!\ws)td::[A-Za-z_]\w*)")

# Tables of data longer than this are not parsed; nor is there anything else than data in them.
_LONG_TABLE = 10_000
_NO_DATA = re.compile(rb"[(;]")
_NAMED_BY_CALL = re.compile(rb"\b((?:struct|union|enum)\s++\w++)(\s*+\([\w\s,]*+\))(?=\s*+\{)")
_USED_OPERATOR = re.compile(rb"\busing\s*::\s*operator\s*([^\s\w;]+)")
# `auto f() ->Name {`: not a member of what is called.
_TRAILING_TYPE = re.compile(rb"\)[\s\w]*->([A-Za-z_]\w*)\s*[{;<:&*]")


class Syntax(NamedTuple):
    """Spans and documented functions of one tree (`syntax_spans`, `doc_comments`)."""

    spans: PackedSpans = b""
    pairs: PackedPairs = b""
    functions: int = 0


@dataclass(slots=True)
class FileItems:
    """All items of one file; `sound` is False when it could not be taken apart."""

    items: list[Item]
    lexed: LexedSource
    sound: bool
    header_comment: bytes
    error_bytes: int
    functions: int
    syntax: Syntax  # of a file that is not sound
    passed: frozenset[int]  # offsets of directives that stand in no item: guards


def read_items(
    data: bytes, table: MacroTable, *, language: Language = "c++", defines_std: bool = False
) -> FileItems:
    """Take one file (LF line ends) apart.

    Args:
        data: the file's bytes.
        table: the project's macros.
        language: of the file, see `language_of`.
        defines_std: whether `std::name` may be a name of the project.
    """
    lexed = lex(data)
    parts = segment_file(lexed, table)
    rules = grammar(language)
    syntax = Syntax()
    items: list[Item] = []
    error_bytes = 0
    if parts.sound:
        line = counted = 0
        for piece in parts.pieces:
            line += data.count(b"\n", counted, piece.leading_start)
            counted = piece.leading_start
            item, errors = _item(piece, line, lexed, parts, table=table, rules=rules)
            if defines_std:
                item.mentions |= {name.removeprefix(b"std::") for name in item.mentions}
            items.append(item)
            error_bytes += errors
        functions = sum(item.functions for item in items)
    else:
        root = rules.parse(parts.plain)
        syntax = read_syntax(root, rules, data, parts.plain, whole_groups(lexed.directives, 0))
        functions = syntax.functions
    return FileItems(
        items, lexed, parts.sound, parts.header_comment, error_bytes, functions, syntax, parts.passed
    )


def read_syntax(
    root: tree_sitter.Node,
    rules: Grammar,
    text: bytes,
    plain: bytes,
    whole: SpanPredicate | None,
    *,
    shift: int = 0,
) -> Syntax:
    """Spans, documented functions and the number of functions of a parsed piece.

    Args:
        text: the comments before the piece, of length `shift`, then the piece.
        plain: the piece as it was parsed.
        whole: from `whole_groups`.
    """
    spans, functions = find_spans(root, rules, shift=shift, whole=whole)
    return Syntax(spans, find_doc_pairs(functions, text, plain, shift=shift, whole=whole), len(functions))


def share_names(items: Iterable[Item], shared: dict[Any, Any]) -> None:
    """Have one object for each name, set and stack: most of an item would be its own copies of them.

    `shared` are the names and sets of all files so far; those of these items are added.
    """

    def share_set(names: frozenset[bytes]) -> frozenset[bytes]:
        found = shared.get(names)
        if found is None:
            found = frozenset(map(shared.setdefault, names, names))
            shared[found] = found
        return found

    stacks: dict[tuple[int, ...], tuple[Frame, ...]] = {}
    for item in items:
        item.stack = stacks.setdefault(tuple(map(id, item.stack)), item.stack)
        item.mentions, item.accesses = share_set(item.mentions), share_set(item.accesses)


def _item(
    piece: SourceSegment,
    line: int,
    lexed: LexedSource,
    parts: SegmentedFile,
    *,
    table: MacroTable,
    rules: Grammar,
) -> tuple[Item, int]:
    """One piece, which begins on `line`, as an item, and how many of its bytes the parser could not read."""
    data = lexed.data
    # `struct NAME(entry) {`, which macros name, is a structure for the parser without the argument.
    code, plain = (
        _NAMED_BY_CALL.sub(
            lambda named: named.group(1) + blank(named.group(2)), part[piece.start : piece.end]
        )
        for part in (parts.code, parts.plain)
    )
    mentions, accesses = _mentioned(lexed.names[piece.start : piece.end])
    mentions |= condition_names(piece.stack) | scope_macros(piece.stack) | piece.leading_names
    for directive in piece.directives:
        mentions |= directive.mentions
    mentions |= accesses & table.names
    if b"operator" in mentions:  # `using ::operator<<;` in a function, which nothing else asks for
        mentions.update(b"operator" + name for name in _USED_OPERATOR.findall(code))
    pasted = table.pasted(frozenset(mentions), data[piece.start : piece.end])
    mentions |= pasted
    item = Item(
        kind=ItemKind.OTHER,
        text=piece.leading + data[piece.start : piece.end],
        stack=piece.stack,
        mentions=frozenset(mentions),
        line=line,
        last_line=line + data.count(b"\n", piece.leading_start, piece.end),
        accesses=accesses,
        origin=piece.start - len(piece.leading),
        directives=piece.directives,
        start=piece.start,
        end=piece.end,
        leading_start=piece.leading_start,
    )
    if piece.sort == "directive":
        keywords = {directive.keyword for directive in piece.directives}
        other = ItemKind.MACRO if keywords & {b"define", b"undef"} else ItemKind.PRAGMA
        item.kind = ItemKind.INCLUDE if keywords & INCLUDE_KEYWORDS else other
        return item, 0
    if piece.sort == "region":
        item.kind = ItemKind.REGION
        _add_syntax(item, rules.parse(plain), rules, piece, plain)
        inside = read_items(code, table).items  # of all branches
        item.names = tuple(name for part in inside for name in (*part.names, part.function_name) if name)
        return item, 0
    errors = _code_item(item, code, plain, piece, rules)
    if pasted and _is_call(item, code, table):
        item.kind = ItemKind.CALL
    if item.kind == ItemKind.CALL:
        item.names = tuple(sorted(pasted))
    return item, errors


def _is_call(item: Item, code: bytes, table: MacroTable) -> bool:
    """True for `COMPARE(LE, <=)`, in which the parser sees no call; `EVENT_BEGIN(a) int n; EVENT_END(a)`."""
    first = IDENTIFIER.match(item.text, len(item.text) - (item.end - item.start))
    is_struct = first is not None and table.mask_of(first.group()) == "struct"
    return is_struct or any(name in table.pastes and code.startswith(name) for name in item.names)


def _mentioned(names: bytes) -> tuple[set[bytes], frozenset[bytes]]:
    """Identifiers that stand alone or in `std`, and those that name a member of what stands before them."""
    parts = _PREFIXED.split(names)
    prefixed = set(parts[1::2])
    accesses = {name for name in prefixed if name[:1] in b".->"}
    alone = set(IDENTIFIER.findall(b" ".join(parts[::2])))
    if accesses:
        alone.update(_TRAILING_TYPE.findall(names))
    return alone | (prefixed - accesses), frozenset(name.lstrip(b".->:") for name in accesses)


def conditions_in(stack: tuple[Frame, ...]) -> list[Condition]:
    """The branches of `#if`s around an item."""
    return [frame for frame in stack if isinstance(frame, Condition)]


def condition_names(stack: tuple[Frame, ...]) -> set[bytes]:
    """The macros that the conditions around an item ask for."""
    lines = (line for frame in conditions_in(stack) for line in frame.lines)
    return set().union(*map(names_in, lines))


def scope_macros(stack: tuple[Frame, ...]) -> set[bytes]:
    """The macros that open, close and name the scopes around an item."""
    return {name for frame in stack if isinstance(frame, Scope) for name in frame.macros}


@functools.lru_cache(maxsize=2_048)
def mentioned_in(text: bytes) -> frozenset[bytes]:
    """The identifiers of a piece of code that stand alone, and those in its directives."""
    lexed = lex(text)
    names = _mentioned(lexed.names)[0]
    return frozenset(names.union(*(directive.mentions for directive in lexed.directives)))


def _add_syntax(
    item: Item, root: tree_sitter.Node, rules: Grammar, piece: SourceSegment, plain: bytes
) -> None:
    whole = whole_groups(piece.directives, piece.start)
    syntax = read_syntax(root, rules, item.text, plain, whole, shift=len(piece.leading))
    item.spans, item.pairs, item.functions = syntax


def _code_item(item: Item, code: bytes, plain: bytes, piece: SourceSegment, rules: Grammar) -> int:
    """Fill in kind and names; returns the number of bytes that the parser could not read."""
    if not plain.strip():  # an empty scope opened and closed by macros
        item.kind = ItemKind.FORWARD
        return 0
    root = rules.parse(_without_data(plain, code))
    read_declaration(item, root, code)
    functions = item.functions
    _add_syntax(item, root, rules, piece, plain)
    if item.kind not in (ItemKind.TYPE, ItemKind.OTHER):
        item.functions = functions  # one that is a function counts as one, whatever is in it
    return _error_bytes(root) if root.has_error else 0


def _without_data(plain: bytes, code: bytes) -> bytes:
    """A long table without its rows: no syntax is in them, and a tree takes many times their size."""
    start, end = code.find(b"{") + 1, code.rfind(b"}")
    is_table = (
        end - start > _LONG_TABLE
        and code[: start - 1].rstrip().endswith((b"=", b"]"))
        and code[end + 1 :].strip() == b";"
        and not _NO_DATA.search(code, start, end)
    )
    return plain[:start] + plain[end:] if is_table else plain


def _error_bytes(node: tree_sitter.Node) -> int:
    """Bytes inside the outermost nodes that the parser could not read."""
    waiting, total = [node], 0
    while waiting:  # not by recursion: parentheses may be nested a thousand deep
        node = waiting.pop()
        if node.type == "ERROR":
            total += node.end_byte - node.start_byte
        else:
            waiting += [child for child in node.children if child.has_error]
    return total


__all__ = ["FileItems", "Item", "ItemKind", "Syntax", "read_items", "read_syntax"]
