"""Includes that lead out of the project, `using namespace`, feature macros: items that count unnamed."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from cpplm.corpus.slicing.expansion import Expansion, Place, Rank
from cpplm.cpp.items import Item, ItemKind, condition_names, conditions_in, scope_macros
from cpplm.cpp.lexer import IDENTIFIER, names_in
from cpplm.cpp.segments import Frame, Scope

_INCLUDE = re.compile(rb"#\s*(?:include|import)")
_USING = re.compile(rb"\busing\s+namespace\s+(?:\w*\s*::\s*)*(\w+)\s*;")
_CONDITION = re.compile(rb"\s*#\s*(?:if|ifdef|ifndef|elif|else|endif)\b")


class UnnamedItems:
    """The items of an expansion that count unnamed."""

    def __init__(self, expansion: Expansion) -> None:
        """Nothing is known of what is chosen."""
        self._expansion = expansion
        places = [
            (number, event)
            for number, visit in enumerate(expansion.visits)
            for event in visit.file.unnamed
            if visit.file.items[event].kind != ItemKind.INCLUDE or visit.external.get(event)
        ]
        self._places = [(place, expansion.rank(place)) for place in sorted(places, key=expansion.rank)]
        self._includes: dict[tuple[Place, bytes], Item] = {}

    def before(self, chosen: Mapping[Place, Item]) -> dict[Place, Item]:
        """Items that chosen ones need before them though they do not name them."""
        expansion = self._expansion
        opened = self._opened(chosen)
        found: dict[Place, Item] = {}
        included: set[bytes] = set()  # lines that are read in any case
        last = max(map(expansion.rank, chosen))
        for place, rank in self._places:
            number, event = place
            visit = expansion.visits[number]
            item = visit.file.items[event]
            is_chosen = place in chosen
            if not is_chosen and (rank > last or visit.live.get(event, True) is False):
                continue
            if item.kind == ItemKind.INCLUDE:
                unconditional = not conditions_in(visit.stack(event))
                if is_chosen and not unconditional:
                    continue
                text = without_included(visit.external[event], included, note=unconditional)
                if text and not is_chosen:
                    found[place] = self._include(place, text)
            elif not is_chosen and (
                item.kind != ItemKind.USING
                or (name := _used_namespace(item.text)) in opened
                or self._own_namespaces.get(name, rank) >= rank
            ):
                found[place] = item
        return found

    @functools.cached_property
    def _own_namespaces(self) -> Mapping[bytes, Rank]:
        """The namespaces that the expansion opens, and where first; others are those of libraries."""
        found: dict[bytes, Rank] = {}
        for number, visit in enumerate(self._expansion.visits):
            stacks: dict[int, int] = {}
            for item in range(len(visit.file.items)):
                if visit.is_read(item):
                    stacks.setdefault(id(visit.stack(item)), item)
            for item in stacks.values():
                for name in self._opened([(number, item)]):
                    rank = self._expansion.rank((number, item))
                    found[name] = min(found.get(name, rank), rank)
        return found

    def _opened(self, places: Iterable[Place]) -> set[bytes]:
        """The names of the namespaces that items stand in."""
        visits = self._expansion.visits
        stacks = {id(stack): stack for place in places for stack in (visits[place[0]].stack(place[1]),)}
        openers = {frame.opener for stack in stacks.values() for frame in stack if isinstance(frame, Scope)}
        return {b"std"}.union(*map(names_in, openers))

    def _include(self, place: Place, text: bytes) -> Item:
        """Includes with only these lines; the same item each time, since what it needs is remembered."""
        key = (place, text)
        if key not in self._includes:
            visit = self._expansion.visits[place[0]]
            mentions = conditions_of(text, visit.stack(place[1]))
            item = visit.file.items[place[1]]
            self._includes[key] = replace(item, text=text, spans=b"", pairs=b"", mentions=mentions)
        return self._includes[key]


def _used_namespace(text: bytes) -> bytes:
    """The last name of `using namespace a::b;`, whatever comments stand around it."""
    match = _USING.search(text)
    return match.group(1) if match else IDENTIFIER.findall(text)[-1]


def without_included(text: bytes, included: set[bytes], *, note: bool) -> bytes:
    """Includes, and conditions around them, without those that are read before in any case.

    Args:
        text: lines that are directives.
        included: the includes that are read before; with `note`, those of the text that stand in no condition
            are added.
        note: whether nothing around the text decides if it is read.
    """
    kept: list[bytes] = []
    opened: list[int] = []  # where in `kept` each open group begins
    for line in text.split(b"\n"):
        if line.startswith(b"#if"):
            opened.append(len(kept))
        elif _INCLUDE.match(line):
            if line in included:
                continue
            if note and not opened:
                included.add(line)
        kept.append(line)
        if line.startswith(b"#endif") and opened:
            start = opened.pop()
            if not any(map(_INCLUDE.match, kept[start:])):
                del kept[start:]
    return b"\n".join(kept)


@functools.lru_cache(maxsize=16_384)
def conditions_of(text: bytes, stack: tuple[Frame, ...]) -> frozenset[bytes]:
    """The macros that decide on a group of includes, and those that open the scopes around it."""
    lines = [line for line in text.split(b"\n") if _CONDITION.match(line)]
    return frozenset().union(*map(names_in, lines), scope_macros(stack), condition_names(stack))
