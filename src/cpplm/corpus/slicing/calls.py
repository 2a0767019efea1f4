"""Which functions call each other, as far as their own text tells; asked where names alone make a cycle.

A name says little where many functions have it: overloads name themselves, a constructor is named by all
that use its class, `x.next()` may be any class's. Here a call is a name with an argument list in the body; it
means a function of that name which takes that many arguments. Default arguments stand elsewhere, so a
function that takes more may be meant when none takes just as many.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import lex

# What stands before the name, the name, its template arguments, and a variable of that class: `Value v(1);`.
_CALL = re.compile(
    rb"(?:([A-Za-z_]\w*)\s*(?:<[^<>;(){}]*>)?\s*::\s*|(\.|->)\s*)?(?<![\w~])([A-Za-z_]\w*)"
    rb"(?:\s*<[^<>;(){}]*>)?(?:\s+[A-Za-z_]\w*)?\s*([({;])"
)
_THIS = re.compile(rb"\bthis\s*\Z")
_BRACKET = re.compile(rb"[(){}\[\],]")


class Call(NamedTuple):
    """A name with its arguments; `scope` is what qualifies it, `foreign` whether it is another object's."""

    name: bytes
    arguments: int
    scope: bytes
    foreign: bool


class FunctionSignature(NamedTuple):
    """What a function takes: how many parameters, or any number from that on."""

    item: Item
    parameters: int
    variadic: bool
    body: bytes


def called(items: Sequence[Item], members: Iterable[int], *, foreign: bool) -> dict[int, set[int]]:
    """Caller to callees, among these items.

    Args:
        items: of a unit.
        members: the indices of those to look at.
        foreign: count `x.f()` as a call of every member function `f`, too.
    """
    functions = {index: found for index in members if (found := _read(items[index])) is not None}
    by_name: dict[bytes, list[int]] = defaultdict(list)
    for index, function in functions.items():
        by_name[function.item.function_name].append(index)
    edges: dict[int, set[int]] = {}
    for index, function in functions.items():
        edges[index] = set()
        for call in _calls(function.body, by_name.keys()):
            if foreign or not call.foreign:
                edges[index] |= _meant(call, function.item, functions, by_name[call.name])
        edges[index].discard(index)
    return edges


def _read(item: Item) -> FunctionSignature | None:
    """The parameters and the rest of a function; None for what is none, or has no name."""
    if item.kind != ItemKind.FUNCTION or not item.function_name:
        return None
    text = lex(item.text).names
    head = re.search(re.escape(item.function_name) + rb"\s*\(", text)
    if head is None:
        return None
    end, parameters = _arguments(text, head.end() - 1)
    inside = text[head.end() : end - 1].strip()
    return FunctionSignature(
        item, 0 if inside == b"void" else parameters, inside.endswith(b"..."), text[end:]
    )


def _arguments(text: bytes, start: int) -> tuple[int, int]:
    """Offset after the bracket that closes the one at `start`, and how many arguments stand between."""
    depth = commas = 0
    for found in _BRACKET.finditer(text, start):
        byte = found.group()
        if byte in b"({[":
            depth += 1
        elif byte != b",":
            depth -= 1
        elif depth == 1:
            commas += 1
        if depth == 0:
            empty = not text[start + 1 : found.start()].strip()
            return found.end(), 0 if empty else commas + 1
    return len(text), commas + 1


def _calls(body: bytes, names: Iterable[bytes]) -> list[Call]:
    wanted = frozenset(names)
    calls: list[Call] = []
    position = 0
    while (found := _CALL.search(body, position)) is not None:
        position = found.end(3)
        scope, access, name, opening = found.groups()
        if name in wanted:
            count = 0 if opening == b";" else _arguments(body, found.start(4))[1]
            foreign = access is not None and not _THIS.search(body, 0, found.start(2))
            calls.append(Call(name, count, scope or b"", foreign))
    return calls


def _meant(
    call: Call, caller: Item, functions: dict[int, FunctionSignature], candidates: list[int]
) -> set[int]:
    """The candidates that a call may mean: those with just as many parameters, else those with more."""
    near = [index for index in candidates if _in_scope(call, caller, functions[index].item)]
    exact = {index for index in near if functions[index].parameters == call.arguments}
    return exact or {
        index for index in near if functions[index].parameters > call.arguments or functions[index].variadic
    }


def _in_scope(call: Call, caller: Item, callee: Item) -> bool:
    if callee.function_name == callee.qualifier:  # a constructor, called by the name of its class
        return not call.foreign
    if call.foreign:
        return bool(callee.qualifier)
    if call.scope:
        return callee.qualifier in (call.scope, b"")
    return callee.qualifier in (caller.qualifier, b"")
