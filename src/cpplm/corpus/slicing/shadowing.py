"""Names that mean something inside an item: its parameters, local variables and members.

They hide functions and variables of the project that have the same name (ISO C++20 6.4.1). Only what surely
is such a name counts: one that is called in a function, or qualified, may be the project's.
"""

from __future__ import annotations

import functools
import re

from cpplm.corpus.slicing.incomplete_types import MEMBER_END
from cpplm.corpus.slicing.members import members_and_bodies
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import IDENTIFIER, lex

# `Type name`, `Type& name`, `Type *name`, before what can follow a declarator. Spaces on both sides of `&`,
# `*` and `>>` are those of an operator.
_DECLARED = re.compile(
    rb"((?<!\w)\w++|(?<=[\w>*&)\]])(?<!\s>)>|\.\.\.)(?:\s++[*&]*+|[*&]++\s*+)"
    rb"(\w++)(?=\s*+(?:[=;,)\[{]|:(?!:)))(?!\s*+==)"
)
_FUNCTION_POINTER = re.compile(rb"\(\s*+\*\s*+(\w++)\s*+\)\s*+\(")
_CALLED = re.compile(rb"(?<!\w)(\w++)\s*+\(")
_QUALIFIED = re.compile(rb"(?:::|->|\.)\s*(\w+)")
_TEMPLATE_PARAMETER = re.compile(rb"\b(?:typename|class)(?:\s*\.\.\.\s*|\s+)(\w+)\s*(?=[,>=])")
_FRIEND = re.compile(rb"\bfriend\s+(?:class|struct)\s+(\w+)\s*;")
_NO_TYPE = frozenset(
    b"return else throw case new delete goto typename using namespace class struct union enum operator not "
    b"and or co_return co_await co_yield sizeof do public private protected extern define".split()
)
HIDDEN_KINDS = (ItemKind.FUNCTION, ItemKind.PROTOTYPE, ItemKind.VARIABLE)


def qualified_names(text: bytes) -> frozenset[bytes]:
    """The names that stand behind `::`, `.` or `->`."""
    return frozenset(_QUALIFIED.findall(text))


@functools.lru_cache(maxsize=16_384)
def befriended(text: bytes) -> frozenset[bytes]:
    """The classes that a class only names as its friends, which declares them (ISO C++20 11.8.4)."""
    return frozenset(_FRIEND.findall(text)).difference(IDENTIFIER.findall(_FRIEND.sub(b"", text)))


@functools.lru_cache(maxsize=16_384)
def template_parameters(text: bytes) -> frozenset[bytes]:
    """The types that are parameters of the templates in a text."""
    return frozenset(_TEMPLATE_PARAMETER.findall(text))


def hiding_names(item: Item) -> frozenset[bytes]:
    """The names that are an item's own."""
    if item.kind not in (ItemKind.FUNCTION, ItemKind.TYPE, ItemKind.PROTOTYPE):
        return frozenset()
    return _hiding_names(item.text, item.kind == ItemKind.TYPE)


@functools.lru_cache(maxsize=16_384)
def _hiding_names(text: bytes, is_class: bool) -> frozenset[bytes]:
    text = lex(text).names
    qualified = qualified_names(text)
    if is_class:
        members, _ = members_and_bodies(text)
        parts = (part.partition(b"=")[0] for part in MEMBER_END.split(members))  # `T& t = make();` calls it
        first_calls = map(_CALLED.search, parts)
        pointers = set(_FUNCTION_POINTER.findall(members))
        return frozenset(
            _declared(members) | pointers | {call.group(1) for call in first_calls if call} - qualified
        )
    return frozenset(_declared(text) - set(_CALLED.findall(text)) - qualified)


def _declared(text: bytes) -> set[bytes]:
    return {
        name
        for type_, name in _DECLARED.findall(text)
        if type_ not in _NO_TYPE and IDENTIFIER.fullmatch(name)
    }
