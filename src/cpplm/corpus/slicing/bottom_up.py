"""Own function definitions that stand beside each other, callees before callers.

Only functions change places, within a run of functions of one file and one scope, so what each of them needs
besides functions stands before it as before. Functions of one name keep their order, and all of them count as
called where the name is; those that call each other in a circle keep the source's order, since a call of a
later one has a declaration before it, and one of an earlier one need not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from cpplm.corpus.slicing.expansion import Expansion, Place
from cpplm.cpp.items import ItemKind


def callees_first(order: Sequence[Place], own: Set[Place], expansion: Expansion) -> list[Place]:
    """The places with runs of own function definitions sorted."""
    result: list[Place] = []
    run: list[Place] = []
    for place in order:
        item = expansion.item(place)
        movable = place in own and item.kind == ItemKind.FUNCTION and bool(item.function_name)
        if (
            movable
            and run
            and (run[-1][0], run[-1][1] + 1, expansion.item(run[-1]).stack) == (*place, item.stack)
        ):
            run.append(place)
            continue
        result += _sorted(run, expansion)
        run = [place] if movable else []
        if not movable:
            result.append(place)
    return result + _sorted(run, expansion)


def _sorted(run: list[Place], expansion: Expansion) -> list[Place]:
    if len(run) < 2:
        return run
    items = [expansion.item(place) for place in run]
    by_name: dict[bytes, list[int]] = {}
    for number, item in enumerate(items):
        by_name.setdefault(item.function_name, []).append(number)
    calls = [
        sorted(
            {
                other
                for name in (item.mentions | item.accesses) & by_name.keys()
                for other in by_name[name]
                if name != item.function_name
                and (name != item.qualifier or name + b"(" in item.text)  # a constructor, not the class
            }
            | {other for other in by_name[item.function_name] if other < number}
        )
        for number, item in enumerate(items)
    ]
    return [run[number] for circle in components(calls) for number in sorted(circle)]


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
