"""Pieces to items: what each top-level piece is, what it declares and what it mentions.

tree-sitter reads each piece by itself, with directives and macros masked. Where it reports an error, the
shape of the text decides. Names are plain identifiers: resolving them further is not needed to find a safe
order, since a name that means something else only adds an edge between items that keep their source order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import tree_sitter

from cpplm.corpus.docstrings import PiecePairs, find_pairs
from cpplm.corpus.grammar import Grammar, Language, grammar
from cpplm.corpus.lexing import IDENTIFIER, Directive, Lexed, lex
from cpplm.corpus.masking import MacroTable
from cpplm.corpus.pieces import Condition, Frame, Piece, Scope, Split
from cpplm.corpus.spans import PieceSpans, Whole, find_spans, whole_groups
from cpplm.corpus.splitting import split

_CLASS_TYPES = ("class_specifier", "struct_specifier", "union_specifier", "enum_specifier")
_DECORATIONS = ("template_parameter_list", "string_literal", "requires_clause", "ERROR", "comment")
_NAMES = ("identifier", "type_identifier", "qualified_identifier", "template_function")
_MENTION = re.compile(rb"(?:\.|->|\bstd::)?[A-Za-z_]\w*")
_TEMPLATE_ARGUMENTS = re.compile(rb"<[^<>]*>")
_OPERATOR = re.compile(rb"operator\s*(?:\(\s*\)|\[\s*\]|[^\s\w(]+)")
_CLASS_HEAD = re.compile(rb"(?:^|[>\s])(?:class|struct|union|enum)\b[^()=;]*\{")
_CONVERSION = re.compile(rb"(?:.*::)?\s*(\w*)(?:<.*>)?::\s*operator\s+[^()]*\(\s*\)", re.DOTALL)
_INSTANTIATION = re.compile(rb"\s*(?:extern\s+)?template\s+(?!\s*<)")
_CONSTANT = re.compile(rb"\b(?:constexpr|consteval|auto)\b")


class Kind(IntEnum):
    """What an item is, in the order in which documents present them."""

    COMMENT = 0
    INCLUDE = 1
    MACRO = 2
    PRAGMA = 3
    USING = 4
    FORWARD = 5
    TYPE = 6
    ALIAS = 7
    VARIABLE = 8
    PROTOTYPE = 9
    FUNCTION = 10
    OTHER = 11
    CALL = 12  # a macro invoked at namespace scope: it may declare anything
    REGION = 13  # an `#if` group that changes its own condition: kept as one block


@dataclass(slots=True)
class Item:
    """One top-level declaration or directive of a unit.

    `text` is exact, with its leading comments; `names` are what it declares for plain lookup; `callable` is
    the name of a function and `qualifier` its class when it is defined out of it; `mentions` are all
    identifiers in it and in the conditions around it but for those behind `.` or `->`, which are `accesses`;
    `evaluated`: users need its body (constexpr, auto).
    """

    kind: Kind
    text: bytes
    stack: tuple[Frame, ...]
    mentions: frozenset[bytes]
    file: int
    line: int
    last_line: int
    accesses: frozenset[bytes] = frozenset()
    names: tuple[bytes, ...] = ()
    qualifier: bytes = b""
    callable: bytes = b""
    evaluated: bool = False
    functions: int = 0
    spans: PieceSpans = b""  # by offsets in `text`, as are `pairs`, the documented functions
    pairs: PiecePairs = b""
    origin: int = 0  # where `text` would begin in the file if its comments stood directly before it
    directives: tuple[Directive, ...] = ()
    local: bool = False  # an include that may need what stands before it: of the project, or quoted
    late: bool = False  # an include that does need what the files before its own declare


class Syntax(NamedTuple):
    """What one tree says beside declarations: see `spans` and `docstrings`."""

    spans: PieceSpans = b""
    pairs: PiecePairs = b""
    functions: int = 0


@dataclass(slots=True)
class FileItems:
    """All items of one file; `sound` is False when it could not be taken apart."""

    items: list[Item]
    lexed: Lexed
    sound: bool
    header_comment: bytes
    error_bytes: int
    functions: int
    syntax: Syntax  # of a file that is not sound


def read_items(
    data: bytes,
    table: MacroTable,
    *,
    file: int = 0,
    language: Language = "c++",
    defines_std: bool = False,
) -> FileItems:
    """Take one file (LF line ends) apart.

    Args:
        data: the file's bytes.
        table: the project's macros.
        file: number of the file in its unit, stored in each item.
        language: of the file, see `language_of`.
        defines_std: whether `std::name` may be a name of the project.
    """
    lexed = lex(data)
    parts = split(lexed, table)
    rules = grammar(language)
    syntax = Syntax()
    items: list[Item] = []
    error_bytes = 0
    if parts.sound:
        for piece in parts.pieces:
            item, errors = _item(piece, lexed, parts, file, table=table, rules=rules)
            if defines_std:
                item.mentions |= {name.removeprefix(b"std::") for name in item.mentions}
            items.append(item)
            error_bytes += errors
        functions = sum(item.functions for item in items)
    else:
        root = rules.parse(parts.plain)
        syntax = read_syntax(root, rules, data, parts.plain, whole_groups(lexed.directives, 0))
        functions = syntax.functions
    return FileItems(items, lexed, parts.sound, parts.header_comment, error_bytes, functions, syntax)


def read_syntax(
    root: tree_sitter.Node, rules: Grammar, text: bytes, plain: bytes, whole: Whole | None, *, shift: int = 0
) -> Syntax:
    """Spans, documented functions and the number of functions of a parsed piece.

    Args:
        root: of the tree of `plain`.
        rules: the grammar of the tree.
        text: the comments before the piece, of length `shift`, then the piece.
        plain: the piece as it was parsed.
        whole: from `whole_groups`.
        shift: see `text`.
    """
    spans, functions = find_spans(root, rules, shift=shift, whole=whole)
    return Syntax(spans, find_pairs(functions, text, plain, shift=shift, whole=whole), len(functions))


def _item(
    piece: Piece, lexed: Lexed, parts: Split, file: int, *, table: MacroTable, rules: Grammar
) -> tuple[Item, int]:
    """One piece as an item, and how many of its bytes the parser could not read."""
    data = lexed.data
    code, plain = parts.code[piece.start : piece.end], parts.plain[piece.start : piece.end]
    mentions, accesses = _mentioned(set(_MENTION.findall(lexed.names, piece.start, piece.end)))
    mentions |= condition_names(piece.stack) | piece.leading_names
    mentions.update(name for frame in piece.stack if isinstance(frame, Scope) for name in frame.macros)
    mentions.update(name for d in piece.directives for name in IDENTIFIER.findall(d.argument))
    line = data.count(b"\n", 0, piece.leading_start)
    mentions |= accesses & table.names
    pasted = table.pasted(frozenset(mentions), data[piece.start : piece.end])
    mentions |= pasted
    item = Item(
        kind=Kind.OTHER,
        text=piece.leading + data[piece.start : piece.end],
        stack=piece.stack,
        mentions=frozenset(mentions),
        file=file,
        line=line,
        last_line=line + data.count(b"\n", piece.leading_start, piece.end),
        accesses=accesses,
        origin=piece.start - len(piece.leading),
        directives=piece.directives,
    )
    if piece.sort in ("directive", "directives"):
        _directive_item(item)
        return item, 0
    if piece.sort == "region":
        item.kind = Kind.REGION
        _add_syntax(item, rules.parse(plain), rules, piece, plain)
        inner = data[piece.directives[0].end : piece.directives[-1].start]
        inside = read_items(inner, table).items
        item.names = tuple(name for part in inside for name in (*part.names, part.callable) if name)
        return item, 0
    errors = _code_item(item, code, plain, piece, rules)
    if item.kind == Kind.CALL:
        item.names = tuple(sorted(pasted))
    return item, errors


def _mentioned(found: set[bytes]) -> tuple[set[bytes], frozenset[bytes]]:
    """Identifiers that stand alone or in `std`, and those that name a member of what stands before them."""
    accesses = {name for name in found if name[:1] in b".-"}
    return found - accesses, frozenset(name.lstrip(b".->") for name in accesses)


def condition_names(stack: tuple[Frame, ...]) -> set[bytes]:
    """The macros that the conditions around an item ask for."""
    return {
        name
        for frame in stack
        if isinstance(frame, Condition)
        for line in frame.lines
        for name in IDENTIFIER.findall(line)
    }


def mentioned_in(text: bytes) -> frozenset[bytes]:
    """The identifiers of a piece of code that stand alone."""
    return frozenset(_mentioned(set(_MENTION.findall(lex(text).names)))[0])


def _directive_item(item: Item) -> None:
    keywords = {directive.keyword for directive in item.directives}
    if keywords & {b"include", b"include_next", b"import"}:
        item.kind = Kind.INCLUDE
        item.local = any(directive.argument.startswith(b'"') for directive in item.directives)
    elif keywords & {b"define", b"undef"}:
        item.kind = Kind.MACRO
    else:
        item.kind = Kind.PRAGMA


def _add_syntax(item: Item, root: tree_sitter.Node, rules: Grammar, piece: Piece, plain: bytes) -> None:
    whole = whole_groups(piece.directives, piece.start)
    syntax = read_syntax(root, rules, item.text, plain, whole, shift=len(piece.leading))
    item.spans, item.pairs, item.functions = syntax


def _code_item(item: Item, code: bytes, plain: bytes, piece: Piece, rules: Grammar) -> int:
    """Fill in kind and names; returns the length of the item when the parser stumbled over it, else 0."""
    if not plain.strip():  # an empty scope opened and closed by macros
        item.kind = Kind.FORWARD
        return 0
    root = rules.parse(plain)
    node = _significant(root)
    unreadable = node is None or node.type == "ERROR" or (root.has_error and _is_class(code))
    if unreadable or node is None or _INSTANTIATION.match(code):
        _guess(item, code)
    else:
        _classify(item, node, code)
    defined = item.functions
    _add_syntax(item, root, rules, piece, plain)
    if item.kind not in (Kind.TYPE, Kind.OTHER):
        item.functions = defined  # one that is a function counts as one, whatever is in it
    return _error_bytes(root) if root.has_error else 0


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


def _significant(root: tree_sitter.Node) -> tree_sitter.Node | None:
    """The declaration itself, without `template <...>` and `extern "C"` around it."""
    node = next((child for child in root.children if child.is_named and child.type != "ERROR"), None)
    if node is None:
        return root.children[0] if root.children else None
    while node.type in ("template_declaration", "linkage_specification"):
        inner = [child for child in node.named_children if child.type not in _DECORATIONS]
        if not inner:
            return node
        node = inner[-1]
    return node


def _is_class(code: bytes) -> bool:
    return bool(_CLASS_HEAD.search(code, 0, code.find(b"{") + 1))


def _classify(item: Item, node: tree_sitter.Node, code: bytes) -> None:
    kind = node.type
    if kind == "function_definition" and _is_class(code):
        _guess(item, code)
    elif kind == "function_definition":
        _function(item, node, code)
    elif kind in _CLASS_TYPES:
        _type(item, node)
    elif kind in ("declaration", "field_declaration"):
        _declaration(item, node, code)
    elif kind in ("alias_declaration", "type_definition"):
        body = next((c for c in node.children if c.type in _CLASS_TYPES), None)
        if body is not None:
            _type(item, body)
        item.kind = Kind.TYPE if body is not None and body.child_by_field_name("body") else Kind.ALIAS
        item.names += _declared(node)
    elif kind in ("using_declaration", "namespace_alias_definition"):
        item.kind = Kind.USING
        item.names = tuple(IDENTIFIER.findall(code))[-1:] if b"namespace" not in code else ()
        operator = _OPERATOR.search(code)
        if operator:  # nobody mentions an operator, but this needs one
            item.names = ()
            item.mentions |= {b"".join(operator.group().split())}
        if kind == "namespace_alias_definition":
            item.names = _text(node.child_by_field_name("name"))
    elif kind == "namespace_definition" and not IDENTIFIER.search(code, code.find(b"{")):
        item.kind = Kind.FORWARD
        item.names = tuple(name for name in IDENTIFIER.findall(code) if name not in (b"inline", b"namespace"))
    elif kind == "concept_definition":
        item.kind = Kind.TYPE
        item.names = _text(node.child_by_field_name("name"))
    elif kind in ("expression_statement", "call_expression") and not code.lstrip().startswith(
        (b"asm", b"__asm")
    ):
        item.kind = Kind.CALL
    else:
        item.kind = Kind.OTHER


def _text(node: tree_sitter.Node | None) -> tuple[bytes, ...]:
    if node is None or node.text is None:
        return ()
    found = IDENTIFIER.search(node.text)
    return (found.group(),) if found else ()


def _function(item: Item, node: tree_sitter.Node, code: bytes) -> None:
    item.kind = Kind.FUNCTION
    item.functions = int(node.child_by_field_name("body") is not None)
    declarator = node.child_by_field_name("declarator")
    _name_function(item, declarator)
    head = code[: code.find(b"{")] if b"{" in code else code
    item.evaluated = bool(_CONSTANT.search(head))


def _name_function(item: Item, declarator: tree_sitter.Node | None) -> None:
    """Split `ns::Class<T>::method` into name and qualifier; a conversion has no name to call it by."""
    conversion = _CONVERSION.match(declarator.text or b"") if declarator is not None else None
    if conversion:
        item.qualifier = conversion.group(1)
        return
    while declarator is not None and declarator.type not in ("function_declarator", "operator_cast"):
        inner = declarator.child_by_field_name("declarator") or declarator.child_by_field_name("name")
        if inner is None and declarator.named_children:
            inner = declarator.named_children[-1]
        if inner is None or (
            inner.type in ("identifier", "qualified_identifier") and inner.named_child_count == 0
        ):
            declarator = inner
            break
        declarator = inner
    if declarator is None:
        return
    named = declarator.child_by_field_name("declarator") or declarator
    text = named.text or b""
    operator = _OPERATOR.search(text)
    plain = text[: operator.start()] if operator else text
    while _TEMPLATE_ARGUMENTS.search(plain):
        plain = _TEMPLATE_ARGUMENTS.sub(b"", plain)
    parts = [part.strip() for part in plain.split(b"::")]
    name = b"".join(operator.group().split()) if operator else parts[-1]
    scope = [part for part in parts[:-1] if part]
    item.callable = name
    if scope:
        item.qualifier = scope[-1]
    elif name:
        item.names = (name,)


def _class_name(node: tree_sitter.Node | None) -> tuple[bytes, ...]:
    """`C` of `C`, `C<int>` and `A::B::C`."""
    while node is not None and node.type in ("qualified_identifier", "template_type"):
        node = node.child_by_field_name("name")
    return _text(node)


def _type(item: Item, node: tree_sitter.Node) -> None:
    body = node.child_by_field_name("body")
    item.kind = Kind.TYPE if body is not None else Kind.FORWARD
    name = node.child_by_field_name("name")
    item.names = _class_name(name)
    if name is not None and name.type == "qualified_identifier":
        item.qualifier = b"".join(_text(name)[:1])
    if node.type == "enum_specifier" and body is not None:
        for child in body.named_children:
            if child.type == "enumerator":
                item.names += _text(child.child_by_field_name("name"))


def _declared(node: tree_sitter.Node) -> tuple[bytes, ...]:
    """The names introduced by the declarators of a declaration."""
    names: list[bytes] = []
    for child in [*node.children_by_field_name("declarator"), *node.children_by_field_name("name")]:
        inner: tree_sitter.Node | None = child
        while inner is not None and inner.type not in _NAMES:
            following = inner.child_by_field_name("declarator")
            inner = (
                following
                or next((c for c in inner.named_children if "declarator" in c.type), None)
                or next(
                    (c for c in inner.named_children if c.type in ("identifier", "type_identifier")), None
                )
            )
        if inner is not None and inner.text is not None and inner.type != "qualified_identifier":
            names.extend(IDENTIFIER.findall(inner.text)[:1])
    return tuple(names)


def _declaration(item: Item, node: tree_sitter.Node, code: bytes) -> None:
    body = next((c for c in node.children if c.type in _CLASS_TYPES and c.child_by_field_name("body")), None)
    declarators = node.children_by_field_name("declarator")
    if body is not None:
        _type(item, body)
        item.names += _declared(node)
        return
    if any(_is_function_declarator(declarator) for declarator in declarators):
        item.kind = Kind.PROTOTYPE
        _name_function(item, declarators[0])
        item.callable = b""
        return
    item.kind = Kind.VARIABLE
    item.names = _declared(node)


def _is_function_declarator(node: tree_sitter.Node | None) -> bool:
    while node is not None and node.type in ("pointer_declarator", "reference_declarator"):
        node = next((c for c in node.named_children if "declarator" in c.type), None)
    return (
        node is not None
        and node.type == "function_declarator"
        and not any(c.type == "parenthesized_declarator" for c in node.named_children)
    )


def _guess(item: Item, code: bytes) -> None:
    """Kind and name by shape alone, for what the parser cannot read."""
    stripped = code.strip()
    if _is_class(code):
        item.kind = Kind.TYPE
        head = code[: code.find(b"{")]
        words = IDENTIFIER.findall(re.split(rb"(?<!:):(?!:)", head)[0])
        item.names = tuple(word for word in words[-1:] if word != b"final")
    elif re.match(rb"(?:typedef|using)\b", stripped):
        item.kind = Kind.ALIAS
        item.names = tuple(
            IDENTIFIER.findall(code)[1:2] if stripped.startswith(b"using") else IDENTIFIER.findall(code)[-1:]
        )
    elif _INSTANTIATION.match(code):
        item.kind = Kind.OTHER
    elif b"(" in stripped:
        item.kind = Kind.FUNCTION if stripped.endswith(b"}") else Kind.PROTOTYPE
        item.functions = int(item.kind == Kind.FUNCTION)
        item.evaluated = True
        words = IDENTIFIER.findall(stripped[: stripped.index(b"(")])
        item.names = tuple(words[-1:])
        item.callable = words[-1] if words and item.kind == Kind.FUNCTION else b""
    else:
        item.kind = Kind.VARIABLE if stripped.endswith(b";") else Kind.CALL
        item.names = tuple(IDENTIFIER.findall(code)[-1:])


__all__ = ["FileItems", "Item", "Kind", "Scope", "Syntax", "read_items", "read_syntax"]
