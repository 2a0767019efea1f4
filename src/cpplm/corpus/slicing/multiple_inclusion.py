"""Items of headers that are included more than once: the places of them that a unit needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cpplm.corpus.slicing.expansion import Expansion, Place
from cpplm.corpus.slicing.project_index import Key
from cpplm.cpp.items import Item, ItemKind, conditions_in
from cpplm.cpp.segments import Condition


def prefer_unconditional(places: Sequence[Place], expansion: Expansion) -> list[Place]:
    """The places but those under a condition where the item is also read in any case, for sure."""
    unconditional = {expansion.key(each) for each in places if not expansion.visits[each[0]].is_conditional}
    return [
        each
        for each in places
        if not expansion.visits[each[0]].is_conditional or expansion.key(each) not in unconditional
    ]


def needed_definitions(places: list[Place], macro: bytes, expansion: Expansion) -> list[Place]:
    """The places but definitions of a macro that are read again with no other one ended in between."""
    defining = {each for each in places if _has(b"define", macro, expansion.item(each))}
    if len(defining) < 2:
        return places
    others = {each for each in places if expansion.item(each).kind not in (ItemKind.MACRO, ItemKind.INCLUDE)}
    is_one = not others and len(set(map(expansion.key, defining))) == 1
    if not is_one and any(_has(b"undef", macro, expansion.item(each)) for each in places):
        return places
    needed: list[Place] = []
    earlier: dict[Key, list[set[Condition]]] = defaultdict(list)  # conditions around the earlier readings
    for place in places:
        visit, readings = expansion.visits[place[0]], earlier[expansion.key(place)]
        conditions = set(conditions_in(visit.frames))
        is_first = place in defining and not any(map(conditions.issuperset, readings))
        if is_first or visit.own or place in others:
            needed.append(place)
        if is_first:
            readings.append(conditions)
        elif visit.own and _has(b"undef", macro, expansion.item(place)):
            earlier.clear()
    return needed


def _has(keyword: bytes, macro: bytes, item: Item) -> bool:
    return any(each.keyword == keyword and each.macro == macro for each in item.directives)
