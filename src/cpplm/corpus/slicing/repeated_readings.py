"""Places of one item of a header that is read more than once, of which fewer are enough."""

from __future__ import annotations

from collections.abc import Sequence

from cpplm.corpus.slicing.expansion import Expansion, Place


def certain_readings(places: Sequence[Place], expansion: Expansion) -> list[Place]:
    """Without what was read under a condition, and again in any case: the second is there for sure."""
    certain = {expansion.key(each) for each in places if not expansion.visits[each[0]].is_conditional}
    return [
        each
        for each in places
        if not expansion.visits[each[0]].is_conditional or expansion.key(each) not in certain
    ]


def needed_definitions(places: list[Place], macro: bytes, expansion: Expansion) -> list[Place]:
    """Of one definition that is read again and again, and never ended, the first place."""
    defining = {place for place in places if _defines(expansion, place, macro)}
    if len(defining) < 2 or len(set(map(expansion.key, defining))) > 1:
        return places
    needed: list[Place] = []
    is_defined = False
    for place in places:
        visit = expansion.visits[place[0]]
        if visit.own or (place in defining and not is_defined):
            needed.append(place)
            is_defined = place in defining and not visit.is_conditional
    return needed


def _defines(expansion: Expansion, place: Place, macro: bytes) -> bool:
    directives = expansion.item(place).directives
    return any(each.keyword == b"define" and each.macro == macro for each in directives)
