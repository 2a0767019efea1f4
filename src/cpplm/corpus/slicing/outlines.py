"""Outlines of items: their text without comments and bodies, and the members that may be left out of it.

Where the parser cannot read a function, its brackets say where its body begins.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import filterfalse, pairwise
from typing import NamedTuple

import tree_sitter

from cpplm.corpus.slicing.members import (
    METHOD,
    body_of,
    calls_a_member,
    calls_a_parameter,
    defines_member,
    end_of_head,
    forwards_a_parameter,
)
from cpplm.corpus.slicing.x_macros import made_enumerators
from cpplm.cpp.doc_comments import code_end
from cpplm.cpp.items import Item, ItemKind, mentioned_in
from cpplm.cpp.lexer import (
    ELSE_KEYWORDS,
    IDENTIFIER,
    IF_KEYWORDS,
    Directive,
    LexedSource,
    conditional_groups,
    lex,
)
from cpplm.cpp.macros import MacroTable, mask
from cpplm.cpp.parser import grammar

_CPP = grammar("c++")
_FIELD = (
    "(field_declaration . type: (_) . declarator: [(field_identifier)"
    " (pointer_declarator (field_identifier)) (array_declarator (field_identifier))]"
)
_FUNCTIONS = tree_sitter.Query(
    _CPP.loaded,
    "[(function_definition body: (compound_statement)) @definition"
    " (field_declaration_list (field_declaration declarator: (function_declarator)) @member)"
    " (field_declaration_list (field_declaration declarator: (_ declarator: (function_declarator))) @member)"
    " (field_declaration_list (template_declaration) @member)"
    f' (field_declaration_list [{_FIELD} . ";") {_FIELD} . default_value: (_) . ";")] @data)'
    " (field_declaration_list [(type_definition) (alias_declaration)] @data)"
    " (enumerator_list (enumerator) @enumerator)]",
)
_KEPT = re.compile(rb"\b(?:constexpr|consteval|auto|decltype|friend)\b")
_KEPT_BARE = re.compile(rb"\b(?:consteval|auto\b(?!.*->)|decltype\s*\(\s*auto|friend\b)", re.DOTALL)
_BRACKETS = re.compile(rb"[(){;]")
_PARAMETERS_END = re.compile(rb"\)\s*(?:const\s*)?(?:noexcept\s*)?\Z")
_COMMA = re.compile(rb"\s*,")
_LARGE = 32  # members of a class
_SHORT_BODY = 300  # bytes
_SHORT_CLASS = 2_000  # bytes
_LONGEST_ENUMERATION = 1_000_000  # bytes: a longer one is data, and takes minutes
_ALIGNMENT = re.compile(rb"\balignas\s*\((?:[^()]|\([^()]*\))*\)")
_CONVERSION = re.compile(rb"::\s*operator\b")
_OPERATOR = re.compile(rb"\boperator\b")
_MEMBER_STARTS = (b";", b"{", b"}", b":", b",")  # what a member may begin behind
# `int (*f)(int)`, `int (C::*f)(int)`, `int a = F(1)`; `typedef enum { A, B } C;` declares more than one name.
_OTHER = re.compile(
    rb"[^(]*\((?:\w|\s|::)*\*[^()]*\)\s*\(|(?!\s*template\b|[^(]*\boperator\b)[^(]*=|[^;{(]*\benum\b[^;{(]*\{"
)
# A member `int (*f)(int)`; not `struct A *(*f)(int)`, which may be what declares A.
_FUNCTION_POINTER = re.compile(rb"(?!\s*(?:const\s+)?struct\b)[\w\s*]*\(\s*(?:\w+\s+)?\*\s*(\w+)\s*\)\s*\(")
_NO_AGGREGATE = re.compile(rb"\b(?:private|protected|virtual)\b")
_DATA = re.compile(rb"(?:\A\s*using\s+(?=\w)|\b(?=\w+\s*(?:\[[^]]*\]\s*)*(?:[={][^;]*)?;\s*\Z))(\w+)")


class Member(NamedTuple):
    """A member that may be left out of a class: its place, the name it declares, all identifiers in it."""

    start: int
    end: int
    name: bytes
    names: frozenset[bytes]


@dataclass(frozen=True)
class Outline:
    """An item without comments and bodies; `names` are all identifiers outside `members`."""

    text: bytes
    members: tuple[Member, ...] = ()
    names: frozenset[bytes] = frozenset()
    member_names: frozenset[bytes] = frozenset()

    @functools.cached_property
    def _mentioned(self) -> tuple[frozenset[bytes], dict[int, frozenset[bytes]]]:
        """As `mentioned_in`: outside the members, and in each, by its start."""
        spans = [(member.start, member.end) for member in self.members]
        rest = mentioned_in(without_spans(self.text, spans))
        return rest, {start: mentioned_in(self.text[start:end]) for start, end in spans}

    def mentioned_without(self, gone: Iterable[Member]) -> frozenset[bytes]:
        """The identifiers that stand alone where these members are left out."""
        rest, by_start = self._mentioned
        kept = by_start.keys() - {member.start for member in gone}
        return rest.union(*map(by_start.__getitem__, kept))


@functools.lru_cache(maxsize=4_096)
def without_comments(text: bytes) -> bytes:
    """The text without comments and without the lines that only held one."""
    return tidy(without_spans(text, lex(text).comments))


def tidy(text: bytes) -> bytes:
    """The text without blanks at line ends and blank lines, but one behind a backslash ends a macro."""
    lines = [line.rstrip(b" \t") for line in text.split(b"\n")]
    kept = [line for before, line in pairwise([b"", *lines]) if line or before.endswith(b"\\")]
    return b"\n".join(kept).strip(b"\n") + b"\n"


def without_spans(text: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """The text without what stands between these pairs of offsets, in order."""
    kept: list[bytes] = []
    position = 0
    for start, end in spans:
        kept.append(text[position:start])
        position = end
    return b"".join([*kept, text[position:]])


def outline_of(item: Item, macros: MacroTable, *, bare: bool) -> Outline:
    """The outline of an item of a project with these macros; `bare`: with the least that a compiler needs."""
    text = without_comments(item.text)
    if item.kind == ItemKind.MACRO:  # what it pastes may be the name of any other
        return _of_members(text, tuple(_macros_in(text, ())) if bare and b"##" not in text else (), macros)
    if _stays_whole(item, text, bare=bare) or not (bare or b"(" in text):
        return _of_members(text, (), macros)
    if bare and item.kind == ItemKind.TYPE and (outline := _enumeration(item, text, macros)):
        return outline
    lexed = lex(text)
    directives, ends = [each.start for each in lexed.directives], [0, *(d.end for d in lexed.directives)]
    code, plain = mask(lexed, macros)
    functions, data = _droppable(code, plain)
    unnamed = set(data if bare else ())
    functions = [node for node in functions if node not in unnamed]
    kept, members = list[bytes](), list[Member]()
    position = size = 0
    for node in sorted([*functions, *unnamed], key=lambda node: (node.start_byte, -node.end_byte)):
        start, end = node.start_byte, node.end_byte
        if node.type == "enumerator" and (comma := _COMMA.match(code, end)):
            end = comma.end()
        body = body_of(node)
        head_end = body.start_byte if body is not None else end
        inside = lexed.directives[bisect.bisect(directives, start) : bisect.bisect(directives, end)]
        if inside and (body is None or inside[0].start < body.start_byte or not _can_go(inside)):
            continue  # half of it may be another function, or its comma another branch's
        if node.parent is not None and node.parent.type == "friend_declaration":
            continue  # found by its arguments only, so it has to stay what it is
        head = _ALIGNMENT.sub(b"", code[start:head_end])
        name = _declared_name(node, head, is_data=node in unnamed)
        # What is as short may be asked for its value by the compiler: `T data[words_in(n)]`.
        is_short = body is not None and body.end_byte - body.start_byte < _SHORT_BODY
        kept_heads = _KEPT_BARE if bare and not is_short else _KEPT
        if start < position or node.has_error or kept_heads.search(head) or name is None:
            continue
        text_of_body = code[body.start_byte : body.end_byte] if body is not None else b""
        if text_of_body and _needs_body(item, code[:start], head, text_of_body, bare=bare):
            continue
        if body is not None:
            head_end = end_of_head(body)
        floor = ends[bisect.bisect(directives, start)]
        before = code_end(plain, start, floor)
        start = max(position, before)  # with the macros before it that are masked
        start += len(text[start : node.start_byte]) - len(text[start : node.start_byte].lstrip())
        size += start - position
        short = text[start:head_end].rstrip() + (b";" if body is not None else b"")
        is_member = item.kind == ItemKind.TYPE and name and not _OPERATOR.search(head)
        if is_member and (before == floor or plain.endswith(_MEMBER_STARTS, floor, before)):
            members.append(Member(size, size + len(short), name, _names(short, macros)))
        kept += [text[position:start], short]
        size += len(short)
        position = end
    if not kept and item.kind == ItemKind.FUNCTION and (brace := _body_start(item, code, lexed, bare=bare)):
        kept, position = [text[:brace].rstrip() + b";\n"], len(text)
    short = b"".join([*kept, text[position:]])
    members = (
        sorted([*members, *_macros_in(short, members)]) if bare and item.kind == ItemKind.TYPE else members
    )
    return _of_members(short, tuple(members), macros)


def _macros_in(text: bytes, members: Sequence[Member]) -> Iterator[Member]:
    """The macros that a class defines outside of its members: `#define if_name if_data.name`."""
    starts = [member.start for member in members]
    for directive in lex(text).directives if b"define" in text else ():
        before = bisect.bisect(starts, directive.end) - 1
        is_outside = before < 0 or members[before].end <= directive.start
        if directive.keyword == b"define" and directive.macro and is_outside:
            names = directive.mentions - {directive.macro}
            yield Member(directive.start, directive.end, directive.macro, names)


def _stays_whole(item: Item, text: bytes, *, bare: bool) -> bool:
    """True for what has no body, or needs it."""
    if item.kind == ItemKind.TYPE:
        return len(text) < _SHORT_CLASS and calls_a_member(text)
    return (
        item.kind != ItemKind.FUNCTION
        or (item.body_required and (not bare or _KEPT_BARE.search(text[: text.find(b"{")]) is not None))
        or bool(item.qualifier)
        or item.function_name.isupper()
        or _CONVERSION.search(text) is not None
    )


def _needs_body(item: Item, before: bytes, head: bytes, body: bytes, *, bare: bool) -> bool:
    """True for a template that may get a lambda, and be used with it."""
    if calls_a_parameter(before, head, body):
        return True
    return not bare and item.kind == ItemKind.FUNCTION and forwards_a_parameter(before + head, body)


def _body_start(item: Item, code: bytes, lexed: LexedSource, *, bare: bool) -> int:
    """Offset of the body of a function, by its brackets; 0 if that is not sure, or it has to stay."""
    depth = 0
    for bracket in _BRACKETS.finditer(code):
        start = bracket.start()
        if bracket.group() == b"{" and not depth:
            after = [each for each in lexed.directives if each.start >= start]
            is_function = _PARAMETERS_END.search(code, max(0, start - 64), start)
            kept_heads = _KEPT_BARE if bare and len(code) - start >= _SHORT_BODY else _KEPT
            head, body = code[:start], code[start:]
            has_to_stay = kept_heads.search(head) or _needs_body(item, b"", head, body, bare=bare)
            return start if is_function and not has_to_stay and (not after or _can_go(after)) else 0
        if bracket.group() == b";" and not depth:
            break
        depth += {b"(": 1, b")": -1}.get(bracket.group(), 0)
    return 0


def _can_go(directives: Sequence[Directive]) -> bool:
    """True for whole `#if` groups and nothing else."""
    is_condition = (each.keyword in IF_KEYWORDS | ELSE_KEYWORDS for each in directives)
    return conditional_groups(directives)[1] and all(is_condition)


def _names(text: bytes, macros: MacroTable) -> frozenset[bytes]:
    """The identifiers in a text, and those that macros make of them."""
    names = frozenset(IDENTIFIER.findall(text))
    return names | macros.pasted(names, text)


def _declared_name(node: tree_sitter.Node, head: bytes, *, is_data: bool) -> bytes | None:
    """The name that a function, a member or an enumerator declares, if any; None for anything else."""
    if is_data and (pointer := _FUNCTION_POINTER.match(head)):
        return pointer.group(1)
    pattern = IDENTIFIER if node.type == "enumerator" else _DATA if is_data else METHOD
    found = pattern.search(head)
    if (found is None and b"(" not in head) or _OTHER.match(head.partition(b"=")[0] if is_data else head):
        return None
    return found.group(pattern.groups).lstrip(b"~") if found else b""


def _enumeration(item: Item, text: bytes, macros: MacroTable) -> Outline | None:
    """An enumeration of which the calls that make enumerators may be left out, but the first."""
    made = list(made_enumerators(item, text, macros))[1:] if b"enum" in text else []
    # One without a comma is the last before something that begins with one, unless the macro writes them.
    commas = [text.startswith(b",", each.end - 1) for each in made]
    members = tuple(
        Member(each.start, each.end, each.names[0], frozenset(IDENTIFIER.findall(text, each.start, each.end)))
        for each, comma in zip(made, commas, strict=True)
        if len(each.names) == 1 and (comma or not any(commas))
    )
    return _of_members(text, members, macros) if members else None


def _of_members(text: bytes, members: tuple[Member, ...], macros: MacroTable) -> Outline:
    """The outline of a text with these members."""
    others = _names(without_spans(text, [(each.start, each.end) for each in members]), macros)
    return Outline(text, members, others, frozenset(each.name for each in members))


def _droppable(code: bytes, plain: bytes) -> tuple[list[tree_sitter.Node], list[tree_sitter.Node]]:
    """The functions in an item, and the data members and enumerators that may be left out of it."""
    captures = tree_sitter.QueryCursor(_FUNCTIONS).captures(_CPP.parse(plain))
    functions = [*filterfalse(defines_member, captures.get("definition", ())), *captures.get("member", ())]
    data = captures.get("data", [])
    data += [each for each in functions if _FUNCTION_POINTER.match(each.text or b"")]
    # Not of what may be an aggregate, whose initialisers name no member: large ones rarely are.
    if len(data) < _LARGE and not _NO_AGGREGATE.search(code):
        data = []
    data += [  # not beside macros that make enumerators, nor the first: there is no empty enumeration in C
        node
        for node in (captures.get("enumerator", ()) if len(plain) < _LONGEST_ENUMERATION else ())
        if node.parent
        and not node.parent.has_error
        and not plain.endswith(b"{", 0, code_end(plain, node.start_byte))
    ]
    return functions, data
