"""Borrowed items, shorter: without comments, bodies of functions, and members that nobody asks for.

A body that the compiler needs stays: `constexpr`, a deduced return type, a default member initialiser. What
is shortened mentions less, so less has to stand before it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Set
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from cpplm.corpus.slicing.outlines import Member, Outline, outline_of, tidy, without_comments, without_spans
from cpplm.cpp.items import Item, ItemKind, condition_names, mentioned_in
from cpplm.cpp.lexer import IDENTIFIER
from cpplm.cpp.macros import MacroTable

# Members that the language or its library asks for: range-based for, co_await and coroutines (ISO C++20
# 8.6.5, 9.5.4); types of iterators, containers and functions; allocators.
CALLED_UNNAMED = frozenset(
    b"begin end await_ready await_suspend await_resume get_return_object initial_suspend final_suspend "
    b"unhandled_exception return_value return_void yield_value await_transform "
    b"value_type difference_type pointer reference iterator_category iterator const_iterator size_type "
    b"const_reference key_type is_transparent result_type argument_type char_type traits_type "
    b"allocate deallocate rebind".split()
)
# `template <...> class MACRO Name`, not a specialization.
_FORWARD = re.compile(
    rb"\s*((?:template\s*<(?:[^<>]|<[^<>]*>)*>\s*)?(?:class|struct|union)\s+(?:[A-Z][A-Z0-9_]+\s+)?(\w+))\s*(?:final\s*)?[:{]"
)
_TYPEDEF = re.compile(rb"\s*typedef\s+((?:struct|union)\s+\w+)\s*\{.*\}\s*(\w+)\s*;\s*", re.DOTALL)
_ALIAS = re.compile(rb"\s*typedef\s+(?:struct|union)\s+(\w+)\s+\w+\s*;\s*")

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


_TEMPLATE_ARGUMENTS = re.compile(rb"<[^<>{};]*>")
_DEEPEST_TEMPLATE = 8
_BASES = re.compile(rb"(?<!:):(?!:)([^{]*+)\{")
# `class A : public facade<A, int> {`; `std::enable_shared_from_this<A>` calls none of its members
_CURIOUS = re.compile(
    rb"\b(?:class|struct)\s++(\w++)[^:;{}()]{0,80}+:(?!:)([\w\s:]{1,200}+(?<!_from_this))<"
    rb"(?>[^;{}]{0,400}?\b\1\b)[^;{}]{0,400}+\{"
)
_VIRTUAL = re.compile(rb"\b(?:virtual|override|final)\b")


@dataclass
class Shortener:
    """Shortens the items of one project; what does not depend on who asks is remembered."""

    macros: MacroTable
    types: Set[bytes] | None = None  # that the project declares; None where that is not known
    _known: dict[tuple[int, Detail], tuple[Item, Item]] = field(default_factory=dict)
    _forwards: dict[int, tuple[Item, Item | None]] = field(default_factory=dict)
    _skeletons: dict[tuple[int, bytes], tuple[Item, Item]] = field(default_factory=dict)
    _wanted: dict[tuple[int, bool, Set[bytes]], tuple[Item, tuple[Member, ...]]] = field(default_factory=dict)
    _bytes: int = 0  # of all these skeletons
    _outlines: dict[tuple[int, bool], tuple[Item, Outline]] = field(default_factory=dict)
    _shapes: dict[tuple[bytes, ItemKind, bool, bytes, bytes, bool], Outline] = field(default_factory=dict)

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
        if detail == Detail.FULL or item.kind == ItemKind.INCLUDE:
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
        """The declaration alone of a class or of a name for it; None where there is none."""
        if id(item) not in self._forwards:
            text = without_comments(item.text)
            head, typedef = _FORWARD.match(text), _TYPEDEF.fullmatch(text)
            declaration = None
            if typedef is not None:
                declaration = b"typedef " + typedef.group(1) + b" " + typedef.group(2) + b";"
            elif head is not None and head.group(2) in item.names:
                declaration = head.group(1).rstrip() + b";"
            short = None
            # It declares the structure, too.
            if item.kind == ItemKind.ALIAS and (alias := _ALIAS.fullmatch(text)):
                short = replace(item, kind=ItemKind.FORWARD, mentions=item.mentions - {alias.group(1)})
            if declaration is not None and item.kind == ItemKind.TYPE and not item.qualifier:
                short = replace(self._with_text(item, declaration), kind=ItemKind.FORWARD)
                short.mentions -= frozenset(item.names)  # it needs no other declaration of that
            self._forwards[id(item)] = (item, short)
        return self._forwards[id(item)][1]

    def skeleton(self, item: Item, wanted: Set[bytes], *, bare: bool) -> tuple[Item, tuple[Member, ...]]:
        """A class without the members that nothing wanted and nothing left in it uses; and these members."""
        outline = self._outline(item, bare=bare)
        key = (id(item), bare, outline.member_names & wanted)
        found = self._wanted.get(key)
        if found is None:
            names, gone = outline.names, outline.members
            if self.types is not None and (called := _called_by_bases(outline, self.types)):
                names = names.union(*(each.names for each in called))
                gone = tuple(each for each in gone if each not in called)
            while kept := [each for each in gone if each.name in wanted or each.name in names]:
                gone = tuple(each for each in gone if each.name not in wanted and each.name not in names)
                names = names.union(*(each.names for each in kept))
            spans = [(member.start, member.end) for member in gone]
            text = tidy(without_spans(outline.text, spans)) if spans else outline.text
            if (id(item), text) not in self._skeletons:
                mentioned = outline.mentioned_without(gone)
                self._skeletons[id(item), text] = (item, self._with_text(item, text, mentioned))
                self._bytes += len(text)
            found = self._wanted[key] = (self._skeletons[id(item), text][1], gone)
        return found

    def _outline(self, item: Item, *, bare: bool = False) -> Outline:
        known = self._outlines.get((id(item), bare))
        if known is not None:
            return known[1]
        # By content, since an item of a file that is included under conditions is a new one in each unit.
        shape = (item.text, item.kind, item.body_required, item.qualifier, item.function_name, bare)
        if shape not in self._shapes:
            self._shapes[shape] = outline_of(item, self.macros, bare=bare)
        self._outlines[id(item), bare] = (item, self._shapes[shape])
        return self._shapes[shape]

    def _with_text(self, item: Item, text: bytes, mentioned: Set[bytes] | None = None) -> Item:
        """The item as this text; `mentioned`: its identifiers that stand alone, where those are known."""
        if text == item.text:
            return item
        short = replace(item, text=text, spans=b"", pairs=b"")  # they are offsets in the text as it was
        if item.kind == ItemKind.MACRO and mentioned is not None:
            short.mentions -= mentioned_in(item.text) - mentioned - condition_names(item.stack)
        if item.kind in (ItemKind.TYPE, ItemKind.FUNCTION):
            mentioned = mentioned_in(text) if mentioned is None else mentioned
            gone = mentioned_in(item.text) - mentioned - condition_names(item.stack)
            made = self.macros.pasted(item.mentions, item.text) - self.macros.pasted(item.mentions, text)
            short.mentions -= gone | (made - mentioned)  # what stands around it stays
            short.functions = 0
        if item.kind == ItemKind.FUNCTION and b"{" not in text:
            short.kind, short.function_name = ItemKind.PROTOTYPE, b""
        return short


def _called_by_bases(outline: Outline, types: Set[bytes]) -> list[Member]:
    """The members that a base outside `types` may call: virtual ones, and all of what is its argument."""
    text = outline.text
    curious = (m.end() for m in _CURIOUS.finditer(text) if types.isdisjoint(IDENTIFIER.findall(m[2])[-1:]))
    start = next(curious, len(text))
    derives = _derives_from_another(text, types)
    return [
        each
        for each in outline.members
        if each.start >= start or (derives and _VIRTUAL.search(text, each.start, each.end))
    ]


def _derives_from_another(text: bytes, types: Set[bytes]) -> bool:
    """True for a class with a base that is none of these types, and whose virtual functions are not known."""
    head = text[: text.find(b"{") + 1]
    for _ in range(_DEEPEST_TEMPLATE):
        head = _TEMPLATE_ARGUMENTS.sub(b"", head)
    bases = _BASES.search(head)
    named = (IDENTIFIER.findall(base)[-1:] for base in bases.group(1).split(b",")) if bases else ()
    return any(types.isdisjoint(name) for name in named)


def called_in(item: Item, short: Item) -> Set[bytes]:
    """The names by which a borrowed item, as shortened, may use members of classes."""
    if item.kind == ItemKind.TYPE:
        return _identifiers(short.text) if short.kind == ItemKind.TYPE else frozenset()
    return (short if item.kind == ItemKind.MACRO else item).mentions | item.accesses


@functools.lru_cache(maxsize=1_024)
def _identifiers(text: bytes) -> frozenset[bytes]:
    return frozenset(IDENTIFIER.findall(text))
