"""Own function definitions that stand beside each other, callees before callers.

Only functions change places, within a run of functions of one file and one scope, so what each of them needs
besides functions stands before it as before. Functions of one name keep their order, and all of them count as
called where the name is; those that call each other in a circle keep the source's order, since a call of a
later one has a declaration before it, and one of an earlier one need not.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

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
    """Strongly connected components, those pointed at first (Tarjan 1972, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in range(len(edges)):
        if root in number:
            continue
        work = [(root, iter(edges[root]))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            following = next(successors, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    cut = stack.index(node)
                    found.append(stack[cut:])
                    on_stack.difference_update(stack[cut:])
                    del stack[cut:]
            elif following not in number:
                number[following] = low[following] = len(number)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(edges[following])))
            elif following in on_stack:
                low[node] = min(low[node], number[following])
    return found
