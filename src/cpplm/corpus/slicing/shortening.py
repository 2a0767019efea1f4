"""Borrowed items, shorter: without comments, bodies of functions, and members that nobody asks for.

A body that the compiler needs stays: `constexpr`, a deduced return type, a default member initialiser. What
is shortened mentions less, so less has to stand before it.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace
from enum import IntEnum

import tree_sitter

from cpplm.cpp.items import Item, ItemKind, condition_names, mentioned_in
from cpplm.cpp.lexer import IDENTIFIER, lex
from cpplm.cpp.macros import MacroTable, mask
from cpplm.cpp.parser import grammar

_CPP = grammar("c++")
_FUNCTIONS = tree_sitter.Query(
    _CPP.loaded,
    "[(function_definition body: (compound_statement)) @definition"
    " (field_declaration_list (field_declaration declarator: (function_declarator)) @member)"
    " (field_declaration_list (field_declaration declarator: (_ declarator: (function_declarator))) @member)"
    " (field_declaration_list (template_declaration) @member)]",
)
_KEPT = re.compile(rb"\b(?:constexpr|consteval|auto|decltype|friend)\b")
# Member functions that the language calls: range-based for, co_await and coroutines (ISO C++20 8.6.5, 9.5.4).
_CALLED_UNNAMED = frozenset(
    b"begin end await_ready await_suspend await_resume get_return_object initial_suspend final_suspend "
    b"unhandled_exception return_value return_void yield_value await_transform".split()
)
_BLANK_LINES = re.compile(rb"(?<!\\)\n(?:[ \t]*\n)+")
_TRAILING = re.compile(rb"[ \t]+$", re.MULTILINE)
_TEMPLATE_PARAMETER = re.compile(rb"\b(?:typename|class)(?:\s*\.\.\.)?\s+(\w+)")
_CONVERSION = re.compile(rb"::\s*operator\b")
_METHOD = re.compile(rb"(~?[A-Za-z_]\w*)\s*\(")


class Detail(IntEnum):
    """How much of a borrowed item is written."""

    FULL = 0
    NO_COMMENTS = 1
    DECLARATIONS = 2
    SKELETON = 3  # declarations, of the member functions only those that somebody asks for


@dataclass(frozen=True)
class _Outline:
    """An item without comments and bodies.

    `members` are (start, end, name) of the member functions that nothing else in it uses; `virtual` the names
    of its virtual functions, which classes derived from it may override without saying so; `names` all
    identifiers outside `members`.
    """

    text: bytes
    members: tuple[tuple[int, int, bytes], ...] = ()
    virtual: frozenset[bytes] = frozenset()
    names: frozenset[bytes] = frozenset()


@dataclass
class Shortener:
    """Shortens the items of one project; what does not depend on who asks is remembered."""

    macros: MacroTable
    _known: dict[tuple[int, Detail], tuple[Item, Item]] = field(default_factory=dict)
    _outlines: dict[int, tuple[Item, _Outline]] = field(default_factory=dict)
    _shapes: dict[tuple[bytes, ItemKind, bool, bytes, bytes], _Outline] = field(default_factory=dict)

    def shorten(self, item: Item, detail: Detail, wanted: Set[bytes] = frozenset()) -> Item:
        """The item with that much detail; a skeleton keeps the member functions that are `wanted`."""
        if detail == Detail.FULL or item.kind in (ItemKind.INCLUDE, ItemKind.COMMENT):
            return item
        if detail == Detail.SKELETON and item.kind == ItemKind.TYPE:
            return self._skeleton(item, wanted)
        key = (id(item), min(detail, Detail.DECLARATIONS))
        if key not in self._known:  # the item itself is kept too, so that no other gets its id
            outline = None if detail == Detail.NO_COMMENTS else self._outline(item)
            short = _with_text(item, outline.text if outline else without_comments(item.text))
            self._known[key] = (item, short)
            if outline:  # it has the same members
                self._outlines[id(short)] = (short, outline)
        return self._known[key][1]

    def wanted(self, own: Iterable[Item], borrowed: Iterable[Item]) -> set[bytes]:
        """The names of member functions that the items use, or that classes among them override."""
        names = set(_CALLED_UNNAMED)
        for item in own:
            names |= item.mentions | item.accesses
        for item in borrowed:
            if item.kind == ItemKind.TYPE:
                outline = self._outline(item)
                names |= outline.virtual | outline.names
            else:
                names |= item.mentions | item.accesses
        return names

    def _outline(self, item: Item) -> _Outline:
        if id(item) in self._outlines:
            return self._outlines[id(item)][1]
        # By content, since an item of a file that is included under conditions is a new one in each unit.
        shape = (item.text, item.kind, item.body_required, item.qualifier, item.function_name)
        if shape not in self._shapes:
            self._shapes[shape] = _outline(item, self.macros)
        return self._shapes[shape]

    def _skeleton(self, item: Item, wanted: Set[bytes]) -> Item:
        outline = self._outline(item)
        gone = [(a, b) for a, b, name in outline.members if name not in wanted]
        return (
            _with_text(item, _TRAILING.sub(b"", _without(outline.text, gone)))
            if gone
            else self.shorten(item, Detail.DECLARATIONS)
        )


def _with_text(item: Item, text: bytes) -> Item:
    if text == item.text:
        return item
    item = replace(item, spans=b"", pairs=b"")  # they are offsets in the text as it was
    if item.kind not in (ItemKind.TYPE, ItemKind.FUNCTION):
        return replace(item, text=text)
    mentions = item.mentions & (mentioned_in(text) | condition_names(item.stack))
    if item.kind == ItemKind.FUNCTION and b"{" not in text:
        return replace(
            item, text=text, mentions=mentions, kind=ItemKind.PROTOTYPE, function_name=b"", functions=0
        )
    return replace(item, text=text, mentions=mentions, functions=0)


def without_comments(text: bytes) -> bytes:
    """The text without comments and without the lines that only held one."""
    return _tidy(_without(text, lex(text).comments))


def _tidy(text: bytes) -> bytes:
    return _BLANK_LINES.sub(b"\n", _TRAILING.sub(b"", text)).strip(b"\n") + b"\n"


def _without(text: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    kept: list[bytes] = []
    position = 0
    for start, end in spans:
        kept.append(text[position:start])
        position = end
    return b"".join([*kept, text[position:]])


def _outline(item: Item, macros: MacroTable) -> _Outline:
    text = without_comments(item.text)
    is_method = item.kind == ItemKind.FUNCTION and (
        item.body_required
        or item.qualifier
        or item.function_name.isupper()
        or _CONVERSION.search(text) is not None
    )
    if item.kind not in (ItemKind.TYPE, ItemKind.FUNCTION) or is_method or b"(" not in text:
        return _Outline(text, names=frozenset(IDENTIFIER.findall(text)))
    lexed = lex(text)
    directives = [directive.start for directive in lexed.directives]
    ends = [directive.end for directive in lexed.directives]
    code, plain = mask(lexed, macros)
    captures = tree_sitter.QueryCursor(_FUNCTIONS).captures(_CPP.parse(plain))
    kept: list[bytes] = []
    members: list[tuple[int, int, bytes]] = []
    virtual: set[bytes] = set()
    position = size = 0
    nodes = [*captures.get("definition", ()), *captures.get("member", ())]
    for node in sorted(nodes, key=lambda node: (node.start_byte, -node.end_byte)):
        start, end = node.start_byte, node.end_byte
        body = _body(node)
        head_end = body.start_byte if body is not None else end
        if bisect.bisect(directives, start) != bisect.bisect(directives, end):
            continue  # half of it may be another function
        if node.parent is not None and node.parent.type == "friend_declaration":
            continue  # found by its arguments only, so it has to stay what it is
        head = code[start:head_end]
        found = _METHOD.search(head)
        if start < position or node.has_error or b"(" not in head or _KEPT.search(head):
            continue
        if body is not None and _calls_a_parameter(code[:start], head, code[body.start_byte : body.end_byte]):
            continue
        name = found.group(1).lstrip(b"~") if found else b""
        if b"virtual" in head or b"override" in head:
            virtual.add(name)
        if body is not None:
            head_end = _head_end(body)
        elif b"=" in head:
            continue
        last = bisect.bisect(directives, start)
        # With the macros before it that are masked.
        start = max(position, len(plain[:start].rstrip()), ends[last - 1] if last else 0)
        start += len(text[start : node.start_byte]) - len(text[start : node.start_byte].lstrip())
        kept.append(text[position:start])
        size += len(kept[-1])
        short = text[start:head_end].rstrip() + (b";" if body is not None else b"")
        if item.kind == ItemKind.TYPE and name and b"operator" not in head:
            members.append((size, size + len(short), name))
        kept.append(short)
        size += len(short)
        position = end
    short = b"".join([*kept, text[position:]])
    declared = Counter(name for _, _, name in members)
    used = Counter(IDENTIFIER.findall(short))
    unused = tuple(member for member in members if used[member[2]] <= declared[member[2]])
    others = frozenset(IDENTIFIER.findall(_without(short, [(start, end) for start, end, _ in unused])))
    return _Outline(short, unused, frozenset(virtual), others)


def _calls_a_parameter(before: bytes, head: bytes, body: bytes) -> bool:
    """Whether a template calls what it is given: a lambda, say, for which its body must be there."""
    parameters = before[before.rfind(b"template") :] if before.rstrip().endswith(b">") else b""
    for type_ in _TEMPLATE_PARAMETER.findall(parameters + head):
        for name in re.findall(rb"\b" + type_ + rb"\b[\s&.*]*(\w+)\s*[,)]", head):
            if re.search(rb"\b" + name + rb"\s*\)?\s*\(", body):
                return True
    return False


def _head_end(body: tree_sitter.Node) -> int:
    """Where the head of a function ends: before its member initialisers."""
    definition = body.parent or body
    initialisers = next((c for c in definition.children if c.type == "field_initializer_list"), body)
    return initialisers.start_byte


def _body(node: tree_sitter.Node) -> tree_sitter.Node | None:
    """The body of a function definition, also of one behind `template <...>`."""
    while node.type == "template_declaration":
        node = node.named_children[-1]
    return node.child_by_field_name("body") if node.type == "function_definition" else None
