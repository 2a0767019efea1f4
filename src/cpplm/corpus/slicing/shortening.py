"""Borrowed items, shorter: without comments, bodies of functions, and members that nobody asks for.

A body that the compiler needs stays: `constexpr`, a deduced return type, a default member initialiser. What
is shortened mentions less, so less has to stand before it.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import filterfalse, pairwise
from typing import Any, NamedTuple

import tree_sitter

from cpplm.corpus.slicing.members import (
    body_of,
    calls_a_parameter,
    defines_member,
    end_of_head,
)
from cpplm.corpus.slicing.x_macros import made_enumerators
from cpplm.cpp.doc_comments import code_end
from cpplm.cpp.items import Item, ItemKind, condition_names, mentioned_in
from cpplm.cpp.lexer import ELSE_KEYWORDS, IDENTIFIER, IF_KEYWORDS, Directive, conditional_groups, lex
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
# Members that the language or its library asks for: range-based for, co_await and coroutines (ISO C++20
# 8.6.5, 9.5.4); types of iterators, containers and functions.
CALLED_UNNAMED = frozenset(
    b"begin end await_ready await_suspend await_resume get_return_object initial_suspend final_suspend "
    b"unhandled_exception return_value return_void yield_value await_transform "
    b"value_type difference_type pointer reference iterator_category iterator const_iterator size_type "
    b"const_reference key_type is_transparent result_type argument_type char_type traits_type".split()
)
_COMMA = re.compile(rb"\s*,")
_LARGE = 32  # members of a class
_SHORT_BODY = 300  # bytes
_LONGEST_ENUMERATION = 1_000_000  # bytes: a longer one is data, and takes minutes
# `template <...> class MACRO Name`, not a specialization.
_FORWARD = re.compile(
    rb"\s*((?:template\s*<(?:[^<>]|<[^<>]*>)*>\s*)?(?:class|struct|union)\s+(?:[A-Z][A-Z0-9_]+\s+)?(\w+))\s*(?:final\s*)?[:{]"
)
_ALIGNMENT = re.compile(rb"\balignas\s*\((?:[^()]|\([^()]*\))*\)")
_TYPEDEF = re.compile(rb"\s*typedef\s+((?:struct|union)\s+\w+)\s*\{.*\}\s*(\w+)\s*;\s*", re.DOTALL)
_CONVERSION = re.compile(rb"::\s*operator\b")
_OPERATOR = re.compile(rb"\boperator\b")
_MEMBER_STARTS = (b";", b"{", b"}", b":", b",")  # what a member may begin behind
# `int (*f)(int)`, `int (C::*f)(int)`, `int a = F(1)`; `typedef enum { A, B } C;` declares more than one name.
_OTHER = re.compile(
    rb"[^(]*\((?:\w|\s|::)*\*[^()]*\)\s*\(|(?!\s*template\b|[^(]*\boperator\b)[^(]*=|[^;{(]*\benum\b[^;{(]*\{"
)
_METHOD = re.compile(rb"(~?[A-Za-z_]\w*)\s*\(")
# A member `int (*f)(int)`; not `struct A *(*f)(int)`, which may be what declares A.
_FUNCTION_POINTER = re.compile(rb"(?!\s*(?:const\s+)?struct\b)[\w\s*]*\(\s*(?:\w+\s+)?\*\s*(\w+)\s*\)\s*\(")
_NO_AGGREGATE = re.compile(rb"\b(?:private|protected|virtual)\b")
_DATA = re.compile(rb"(?:\A\s*using\s+(?=\w)|\b(?=\w+\s*(?:\[[^]]*\]\s*)*(?:[={][^;]*)?;\s*\Z))(\w+)")

# How many items of a project are remembered in all their lengths, and bytes of its classes.
_MOST_REMEMBERED = 40_000
_MOST_BYTES = 16 << 20


class Detail(IntEnum):
    """Level of detail in which a borrowed item is written."""

    FULL = 0
    NO_COMMENTS = 1
    DECLARATIONS = 2
    SKELETON = 3  # declarations, of the member functions only those that somebody asks for
    FORWARD = 4  # as before, and of types only the name where that is enough
    BARE = 5  # as before, and without the bodies of `constexpr` functions


class _Member(NamedTuple):
    """A member that may be left out of a class: its place, the name it declares, all identifiers in it."""

    start: int
    end: int
    name: bytes
    names: frozenset[bytes]


@dataclass(frozen=True)
class _Outline:
    """An item without comments and bodies; `names` are all identifiers outside `members`."""

    text: bytes
    members: tuple[_Member, ...] = ()
    names: frozenset[bytes] = frozenset()
    member_names: frozenset[bytes] = frozenset()

    @functools.cached_property
    def _mentioned(self) -> tuple[frozenset[bytes], dict[int, frozenset[bytes]]]:
        """As `mentioned_in`: outside the members, and in each, by its start."""
        spans = [(member.start, member.end) for member in self.members]
        rest = mentioned_in(_without(self.text, spans))
        return rest, {start: mentioned_in(self.text[start:end]) for start, end in spans}

    def mentioned_without(self, gone: Iterable[_Member]) -> frozenset[bytes]:
        """The identifiers that stand alone where these members are left out."""
        rest, by_start = self._mentioned
        kept = by_start.keys() - {member.start for member in gone}
        return rest.union(*map(by_start.__getitem__, kept))


@dataclass
class Shortener:
    """Shortens the items of one project; what does not depend on who asks is remembered."""

    macros: MacroTable
    _known: dict[tuple[int, Detail], tuple[Item, Item]] = field(default_factory=dict)
    _forwards: dict[int, tuple[Item, Item | None]] = field(default_factory=dict)
    _skeletons: dict[tuple[int, bytes], tuple[Item, Item]] = field(default_factory=dict)
    _wanted: dict[tuple[int, bool, Set[bytes]], tuple[Item, tuple[_Member, ...]]] = field(
        default_factory=dict
    )
    _bytes: int = 0  # of all these skeletons
    _outlines: dict[tuple[int, bool], tuple[Item, _Outline]] = field(default_factory=dict)
    _shapes: dict[tuple[bytes, ItemKind, bool, bytes, bytes, bool], _Outline] = field(default_factory=dict)

    def begin_unit(self) -> None:
        """Forget what earlier units had, if that has become much."""
        caches: tuple[dict[Any, Any], ...] = (
            *(self._known, self._forwards, self._skeletons, self._wanted, self._outlines, self._shapes),
        )
        if sum(map(len, caches)) > _MOST_REMEMBERED or self._bytes > _MOST_BYTES:
            self._bytes = 0
            for cache in caches:
                cache.clear()

    def shorten(self, item: Item, detail: Detail) -> Item:
        """The item with that much detail; of a class see `skeleton`."""
        if detail == Detail.FULL or item.kind in (ItemKind.INCLUDE, ItemKind.COMMENT):
            return item
        key = (id(item), Detail.DECLARATIONS if Detail.DECLARATIONS <= detail <= Detail.FORWARD else detail)
        if key not in self._known:  # the item itself is kept too, so that no other gets its id
            bare = detail == Detail.BARE
            outline = None if detail == Detail.NO_COMMENTS else self._outline(item, bare=bare)
            short = self._with_text(item, outline.text if outline else without_comments(item.text))
            self._known[key] = (item, short)
            if outline:  # it has the same members
                self._outlines[id(short), bare] = (short, outline)
        return self._known[key][1]

    def forward(self, item: Item) -> Item | None:
        """The declaration of a class without its definition; None where there is no such."""
        if id(item) not in self._forwards:
            text = without_comments(item.text)
            head, typedef = _FORWARD.match(text), _TYPEDEF.fullmatch(text)
            declaration = None
            if typedef is not None:
                declaration = b"typedef " + typedef.group(1) + b" " + typedef.group(2) + b";"
            elif head is not None and head.group(2) in item.names:
                declaration = head.group(1).rstrip() + b";"
            short = None
            if declaration is not None and item.kind == ItemKind.TYPE and not item.qualifier:
                short = replace(self._with_text(item, declaration), kind=ItemKind.FORWARD)
            self._forwards[id(item)] = (item, short)
        return self._forwards[id(item)][1]

    def skeleton(self, item: Item, wanted: Set[bytes], *, bare: bool) -> tuple[Item, tuple[_Member, ...]]:
        """A class without the members that nothing wanted and nothing left in it uses; and these members."""
        outline = self._outline(item, bare=bare)
        key = (id(item), bare, outline.member_names & wanted)
        found = self._wanted.get(key)
        if found is None:
            names, gone = outline.names, outline.members
            while kept := [each for each in gone if each.name in wanted or each.name in names]:
                gone = tuple(each for each in gone if each.name not in wanted and each.name not in names)
                names = names.union(*(each.names for each in kept))
            spans = [(member.start, member.end) for member in gone]
            text = _tidy(_without(outline.text, spans)) if spans else outline.text
            if (id(item), text) not in self._skeletons:
                mentioned = outline.mentioned_without(gone)
                self._skeletons[id(item), text] = (item, self._with_text(item, text, mentioned))
                self._bytes += len(text)
            found = self._wanted[key] = (self._skeletons[id(item), text][1], gone)
        return found

    def _outline(self, item: Item, *, bare: bool = False) -> _Outline:
        known = self._outlines.get((id(item), bare))
        if known is not None:
            return known[1]
        # By content, since an item of a file that is included under conditions is a new one in each unit.
        shape = (item.text, item.kind, item.body_required, item.qualifier, item.function_name, bare)
        if shape not in self._shapes:
            self._shapes[shape] = _outline(item, self.macros, bare=bare)
        self._outlines[id(item), bare] = (item, self._shapes[shape])
        return self._shapes[shape]

    def _with_text(self, item: Item, text: bytes, mentioned: Set[bytes] | None = None) -> Item:
        """The item as this text; `mentioned`: its identifiers that stand alone, where those are known."""
        if text == item.text:
            return item
        short = replace(item, text=text, spans=b"", pairs=b"")  # they are offsets in the text as it was
        if item.kind in (ItemKind.TYPE, ItemKind.FUNCTION):
            mentioned = mentioned_in(text) if mentioned is None else mentioned
            gone = mentioned_in(item.text) - mentioned - condition_names(item.stack)
            made = self.macros.pasted(item.mentions, item.text) - self.macros.pasted(item.mentions, text)
            short.mentions -= gone | (made - mentioned)  # what stands around it stays
            short.functions = 0
        if item.kind == ItemKind.FUNCTION and b"{" not in text:
            short.kind, short.function_name = ItemKind.PROTOTYPE, b""
        return short


def called_in(item: Item, short: Item) -> Set[bytes]:
    """The names by which a borrowed item, as shortened, may use members of classes."""
    if item.kind == ItemKind.TYPE:
        return _identifiers(short.text) if short.kind == ItemKind.TYPE else frozenset()
    return item.mentions | item.accesses


@functools.lru_cache(maxsize=1_024)
def _identifiers(text: bytes) -> frozenset[bytes]:
    return frozenset(IDENTIFIER.findall(text))


@functools.lru_cache(maxsize=4_096)
def without_comments(text: bytes) -> bytes:
    """The text without comments and without the lines that only held one."""
    return _tidy(_without(text, lex(text).comments))


def _tidy(text: bytes) -> bytes:
    """The text without blanks at line ends and blank lines, but one behind a backslash ends a macro."""
    lines = [line.rstrip(b" \t") for line in text.split(b"\n")]
    kept = [line for before, line in pairwise([b"", *lines]) if line or before.endswith(b"\\")]
    return b"\n".join(kept).strip(b"\n") + b"\n"


def _without(text: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    kept: list[bytes] = []
    position = 0
    for start, end in spans:
        kept.append(text[position:start])
        position = end
    return b"".join([*kept, text[position:]])


def _outline(item: Item, macros: MacroTable, *, bare: bool) -> _Outline:
    text = without_comments(item.text)
    is_method = item.kind == ItemKind.FUNCTION and (
        (item.body_required and (not bare or _KEPT_BARE.search(text[: text.find(b"{")]) is not None))
        or item.qualifier
        or item.function_name.isupper()
        or _CONVERSION.search(text) is not None
    )
    if item.kind not in (ItemKind.TYPE, ItemKind.FUNCTION) or is_method or not (bare or b"(" in text):
        return _Outline(text, names=frozenset(IDENTIFIER.findall(text)))
    if bare and item.kind == ItemKind.TYPE and (outline := _enumeration(item, text, macros)):
        return outline
    lexed = lex(text)
    directives, ends = [each.start for each in lexed.directives], [0, *(d.end for d in lexed.directives)]
    code, plain = mask(lexed, macros)
    functions, data = _droppable(code, plain)
    unnamed = set(data if bare else ())
    functions = [node for node in functions if node not in unnamed]
    kept: list[bytes] = []
    members: list[_Member] = []
    position = size = 0
    for node in sorted([*functions, *unnamed], key=lambda node: (node.start_byte, -node.end_byte)):
        start, end = node.start_byte, node.end_byte
        if node.type == "enumerator" and (comma := _COMMA.match(code, end)):
            end = comma.end()
        body = body_of(node)
        head_end = body.start_byte if body is not None else end
        inside = lexed.directives[bisect.bisect(directives, start) : bisect.bisect(directives, end)]
        if inside and (body is None or not _are_within(inside, body)):
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
        if body is not None and calls_a_parameter(code[:start], head, code[body.start_byte : body.end_byte]):
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
            members.append(_Member(size, size + len(short), name, _names(short, macros)))
        kept += [text[position:start], short]
        size += len(short)
        position = end
    short = b"".join([*kept, text[position:]])
    others = _names(_without(short, [(start, end) for start, end, _, _ in members]), macros)
    return _Outline(short, tuple(members), others, frozenset(member.name for member in members))


def _are_within(directives: Sequence[Directive], body: tree_sitter.Node) -> bool:
    """True for whole `#if` groups in a function's body, which can go with it."""
    _, balanced = conditional_groups(directives)
    return (
        balanced
        and directives[0].start >= body.start_byte
        and all(each.keyword in IF_KEYWORDS | ELSE_KEYWORDS for each in directives)
    )


def _names(text: bytes, macros: MacroTable) -> frozenset[bytes]:
    """The identifiers in a text, and those that macros make of them."""
    names = frozenset(IDENTIFIER.findall(text))
    return names | macros.pasted(names, text)


def _declared_name(node: tree_sitter.Node, head: bytes, *, is_data: bool) -> bytes | None:
    """The name that a function, a member or an enumerator declares, if any; None for anything else."""
    if is_data and (pointer := _FUNCTION_POINTER.match(head)):
        return pointer.group(1)
    pattern = IDENTIFIER if node.type == "enumerator" else _DATA if is_data else _METHOD
    found = pattern.search(head)
    if (found is None and b"(" not in head) or _OTHER.match(head.partition(b"=")[0] if is_data else head):
        return None
    return found.group(pattern.groups).lstrip(b"~") if found else b""


def _enumeration(item: Item, text: bytes, macros: MacroTable) -> _Outline | None:
    """An enumeration of which the calls that make enumerators may be left out, but the first."""
    made = list(made_enumerators(item, text, macros))[1:] if b"enum" in text else []
    members = tuple(
        _Member(start, end, names[0], frozenset(IDENTIFIER.findall(text, start, end)))
        for names, start, end in made
        if len(names) == 1
    )
    if not members:
        return None
    others = frozenset(IDENTIFIER.findall(_without(text, [(each.start, each.end) for each in members])))
    return _Outline(text, members, others, frozenset(each.name for each in members))


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
