"""Own function definitions, callees before callers.

A caller moves down behind what it calls, past declarations and whole scopes and `#if` groups, within its file
and its own scope. What is no function keeps its place among its like, so what a function needs besides
functions stands before it as before. It does not move past what names it, or what declares or defines a name
that it mentions. Functions of one name keep their order, and all of them count as called where the name is;
what leads back to itself keeps the source's order, since a call of a later function has a declaration before
it, and one of an earlier one need not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from cpplm.corpus.slicing.expansion import Expansion, Place
from cpplm.cpp.items import Item, ItemKind

# What changes the meaning of the text behind it in ways that its names do not tell.
_BARRIERS = frozenset({ItemKind.INCLUDE, ItemKind.PRAGMA, ItemKind.USING, ItemKind.CALL, ItemKind.REGION})
# Scopes within scopes may be nested a thousand deep.
_DEEPEST = 32


class _Block(NamedTuple):
    """Items that stay together: one, or what stands in scopes and `#if` groups side by side."""

    places: Sequence[Place]
    items: Sequence[Item]
    moves: bool  # a function

    @property
    def is_barrier(self) -> bool:
        return any(item.kind in _BARRIERS for item in self.items)


def callees_first(order: Sequence[Place], own: Set[Place], expansion: Expansion) -> list[Place]:
    """The places with the own functions of each file sorted."""
    result: list[Place] = []
    for _, group in itertools.groupby(order, lambda place: place[0]):
        result += _arranged(list(group), 0, own, expansion)
    return result


def _arranged(places: Sequence[Place], depth: int, own: Set[Place], expansion: Expansion) -> Iterator[Place]:
    """Places whose first `depth` frames are the same, sorted; those in deeper ones among themselves."""
    candidates = (place for place in places if place in own)
    functions = sum(expansion.item(place).kind == ItemKind.FUNCTION for place in candidates)
    if functions < 2 or depth > _DEEPEST:
        yield from places
        return
    blocks: list[_Block] = []
    for is_deeper, group in itertools.groupby(places, lambda place: len(expansion.item(place).stack) > depth):
        inside = list(group)
        if is_deeper:
            scopes = itertools.groupby(inside, lambda place: expansion.item(place).stack[depth])
            inside = [p for _, scope in scopes for p in _arranged(list(scope), depth + 1, own, expansion)]
        for part in [inside] if is_deeper else [[place] for place in inside]:
            items = [expansion.item(place) for place in part]
            moves = not is_deeper and items[0].kind == ItemKind.FUNCTION and items[0].function_name != b""
            blocks.append(_Block(part, items, moves and part[0] in own))
    for is_barrier, run in itertools.groupby(blocks, lambda block: block.is_barrier):
        found = list(run)
        for number in range(len(found)) if is_barrier else _sorted(found):
            yield from found[number].places


def _sorted(blocks: Sequence[_Block]) -> Iterator[int]:
    functions: dict[bytes, list[int]] = {}
    for number, block in enumerate(blocks):
        for name in {item.function_name for item in block.items} - {b""}:
            functions.setdefault(name, []).append(number)
    before: list[list[int]] = []  # of each block, those that stand before it
    mentioned: dict[bytes, list[int]] = {}  # by name, the functions so far that mention it
    fixed: list[int] = []  # the last block that does not move
    for number, block in enumerate(blocks):
        needed = set(fixed)
        for item in block.items:
            names = item.mentions | item.accesses
            called = (other for name in names & functions.keys() for other in functions[name])
            if block.moves:
                needed |= _called(item, names, functions)
                needed.update(other for other in functions[item.function_name] if other < number)
                for name in names:
                    mentioned.setdefault(name, []).append(number)
            else:
                declared = names if item.kind == ItemKind.MACRO else _hiding_names(item)
                needed.update(other for other in called if other < number)
                needed.update(other for name in declared for other in mentioned.get(name, ()))
        before.append(sorted(needed))
        if not block.moves:
            fixed = [number]
    for circle in components(before):
        yield from sorted(circle)


def _hiding_names(item: Item) -> Sequence[bytes]:
    """The names that mean something else behind an item; a variable or function is known before its use."""
    return item.names if item.kind in (ItemKind.TYPE, ItemKind.ALIAS) else ()


def _called(item: Item, names: Set[bytes], functions: dict[bytes, list[int]]) -> set[int]:
    return {
        other
        for name in names & functions.keys()
        for other in functions[name]
        if name != item.function_name
        and (name != item.qualifier or name + b"(" in item.text)  # a constructor, not the class
    }


def components(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components, those pointed at first (Sharir 1981)."""
    reverse: list[list[int]] = [[] for _ in edges]
    for node, successors in enumerate(edges):
        for successor in successors:
            reverse[successor].append(node)
    finished = [node for tree in _trees(edges, range(len(edges))) for node in tree]
    return list(_trees(reverse, finished[::-1]))[::-1]


def _trees(edges: Sequence[Sequence[int]], roots: Sequence[int]) -> Iterator[list[int]]:
    """For each root that none before leads to, what it leads to besides, as a search in depth leaves it."""
    seen: set[int] = set()
    for root in roots:
        path = [(root, iter(edges[root]))] if root not in seen else []  # not by recursion: it may be long
        seen.add(root)
        tree: list[int] = []
        while path:
            following = next((node for node in path[-1][1] if node not in seen), None)
            if following is None:
                tree.append(path.pop()[0])
            else:
                seen.add(following)
                path.append((following, iter(edges[following])))
        if tree:
            yield tree
