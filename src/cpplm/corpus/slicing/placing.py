"""The items of a graph one after the other: what they need first, callees before callers.

Phase by phase, each item after all that its hard edges ask for. Among types and among functions soft edges
decide where they form no cycle; a cycle of functions by name is looked at again by its calls.
"""

from __future__ import annotations

from cpplm.corpus.slicing.calls import called
from cpplm.corpus.slicing.ordering import DECLARATIONS, LAST, PREAMBLE, TYPES, Graph
from cpplm.cpp.items import ItemKind


def order(graph: Graph) -> list[int]:
    """All items, each once, in document order."""
    done: list[int] = []
    placed: set[int] = set()
    count = len(graph.items)
    directives = (ItemKind.COMMENT, ItemKind.INCLUDE, ItemKind.MACRO)
    # What needs a declaration would bring that before the includes that follow it.
    drags: list[bool] = []
    for index, needs in enumerate(graph.hard):
        drags.append(graph.phase[index] != PREAMBLE or any(drags[need] for need in needs))
        if not drags[index] and graph.items[index].kind in directives:
            _place(index, graph.hard, placed, done)
    for phase in (PREAMBLE, TYPES, DECLARATIONS):
        nodes = [index for index in range(count) if graph.phase[index] == phase]
        if phase == TYPES and any(graph.ahead):
            rest = [index for index in range(count) if index not in placed]
            edges = {i: sorted((graph.hard[i] | graph.ahead[i]) - placed) for i in rest}
            for component in components([index for index in nodes if index not in placed], edges):
                placed.update(component)
                done.extend(sorted(component))
        for index in nodes:
            _place(index, graph.hard, placed, done)
    rest = [i for i in range(count) if i not in placed]
    rest.sort(key=lambda i: (graph.phase[i] == LAST, i))
    edges = {i: sorted((graph.hard[i] | graph.soft[i]) - placed) for i in rest}
    for component in components(rest, edges):
        done.extend(_untangled(graph, sorted(component)))
    return done


def _untangled(graph: Graph, component: list[int]) -> list[int]:
    """A cycle of names in the order of its calls; source order within what is still a cycle.

    Calls of other objects' members are believed last: `x.next()` may be the `next` of any class. What a macro
    hides is always believed.
    """
    parts = [component]
    for foreign in (True, False):
        if all(len(part) == 1 for part in parts):
            break
        finer: list[list[int]] = []
        for part in parts:
            calls = called(graph.items, part, foreign=foreign)
            inside = set(part)
            edges = {}
            for index in part:
                item = graph.items[index]
                soft = graph.soft[index] & inside
                hidden = {
                    i for i in soft if graph.items[i].function_name not in item.mentions | item.accesses
                }
                edges[index] = sorted(inside & graph.hard[index] | soft & calls.get(index, set()) | hidden)
            finer += [sorted(each) for each in components(part, edges)]
        parts = finer
    return [index for part in parts for index in part]


def _place(root: int, hard: list[set[int]], placed: set[int], done: list[int]) -> None:
    """Append `root` after everything it needs, needs in source order."""
    stack = [(root, False)]
    while stack:
        index, expanded = stack.pop()
        if index in placed:
            continue
        if expanded:
            placed.add(index)
            done.append(index)
            continue
        stack.append((index, True))
        stack.extend((need, False) for need in sorted(hard[index] - placed, reverse=True))


def components(nodes: list[int], edges: dict[int, list[int]]) -> list[list[int]]:
    """Strongly connected components, those pointed at first (Tarjan 1972, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in nodes:
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
