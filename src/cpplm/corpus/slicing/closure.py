"""All that items need of the rest of their unit's expansion, by name, as often as it takes."""

from __future__ import annotations

import itertools
import re
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from cpplm.corpus.slicing.expansion import Expansion, Place, Rank
from cpplm.corpus.slicing.incomplete_types import converts_to
from cpplm.corpus.slicing.lookup import TYPE_KINDS, Meanings, NameLookup
from cpplm.corpus.slicing.measure import Measure
from cpplm.corpus.slicing.shadowing import hiding_names
from cpplm.corpus.slicing.shortening import CALLED_UNNAMED, Detail, Shortener
from cpplm.cpp.items import Item, ItemKind

# What the declaration of a function may need.
_IN_DECLARATIONS = frozenset(
    # An include stands with macros in one `#if`.
    (
        *TYPE_KINDS,
        *(ItemKind.MACRO, ItemKind.INCLUDE, ItemKind.USING, ItemKind.CALL, ItemKind.REGION, ItemKind.OTHER),
    )
)
_BEFORE_ALL: Rank = -1
_CONSTANT = re.compile(rb"\b(?:const|constexpr)\b")


class Reason(NamedTuple):
    """The name that leads to an item, and the place of what mentions it."""

    name: bytes
    place: Place


@dataclass
class Closure:
    """Items of an expansion with all that they need.

    Attributes:
        lookup: of names in the unit's expansion.
        shortener: of the project.
        measure: of lengths.
        detail: how much of a borrowed item is written.
        whole_depth: how many steps from own items the bodies of borrowed ones stay.
        too_long: items that are known to need more than any document holds.
        chosen: the items, own and borrowed, as they are to be written.
        reasons: of those that are borrowed.
        settled: the chosen places but those that are only declared.
        size: of all, in the unit of the budget.
    """

    lookup: NameLookup
    shortener: Shortener
    measure: Measure
    detail: Detail
    whole_depth: int = 0
    too_long: Set[Place] = frozenset()
    chosen: dict[Place, Item] = field(default_factory=dict)
    reasons: dict[Place, Reason] = field(default_factory=dict)
    settled: set[Place] = field(default_factory=set)
    size: int = 0
    _accesses: set[bytes] = field(default_factory=set)  # the members that own items use, of whatever
    # All names in own items, and those that `for (T a : b)` uses.
    _used: set[bytes] = field(default_factory=lambda: {b"begin", b"end"})
    # Of macros that own items do not use so far, the names in them.
    _macros: dict[bytes, Set[bytes]] = field(default_factory=dict)
    # For types of which a declaration may do, the functions and members that are declared with them.
    _reached: dict[bytes, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    # And those that return values of them.
    _returned: dict[bytes, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    # And those that take values of them, to which arguments may be converted.
    _taken: dict[bytes, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    _completed: tuple[int, int, int] = (0, 0, 0)  # sizes of these when they were last looked at together
    # From `Detail.SKELETON` on, the members that are not left out; where one is that is not among them.
    _called: set[bytes] = field(default_factory=lambda: set(CALLED_UNNAMED))
    _left_out: dict[bytes, set[Place]] = field(default_factory=lambda: defaultdict(set))
    _incomplete: set[Place] = field(default_factory=set)  # classes that lack one that is used by now
    _skeletons: set[Place] = field(default_factory=set)  # the classes that this was looked up for
    _types: set[bytes] = field(default_factory=set)  # the names of those that are chosen
    # Of types, by their names: how many types were chosen when what is attached to them was looked up last.
    _attached: dict[tuple[bytes, ...], int] = field(default_factory=dict)
    _depth: dict[Place, int] = field(default_factory=dict)  # of borrowed items: steps from an own one
    _forward: set[Place] = field(default_factory=set)  # of the chosen those that are only declared
    # The rank of the last lookup of a name; the same for those of which a declaration is enough.
    _done: dict[bytes, Rank] = field(default_factory=dict)
    _done_weakly: dict[bytes, Rank] = field(default_factory=dict)
    _classes: set[bytes] = field(default_factory=set)
    _named: set[bytes] = field(default_factory=set)
    _members: dict[bytes, list[Place]] = field(default_factory=lambda: defaultdict(list))  # of no class yet

    @property
    def expansion(self) -> Expansion:
        """The unit as a compiler reads it."""
        return self.lookup.expansion

    def add(self, places: Iterable[Place], most: float, piece: Item | None = None) -> bool:
        """Take own items, or a piece of one, and what they need; False once all is longer than `most`."""
        waiting: list[tuple[Place, Item]] = []
        for place in places:
            item = piece or self.expansion.item(place)
            gone = self.expansion.visits[place[0]].gone.get(place[1])
            if place not in self.chosen or self.reasons.pop(place, None) is not None:
                if place in self.chosen:  # it was borrowed by what came before
                    self.size -= self.measure.item(self.chosen[place].text)
                self.chosen[place] = item
                if place not in self._forward:
                    self.settled.add(place)
                self.size += self.measure.item(item.text if gone is None else gone)
                waiting.append((place, item))
                self._accesses |= item.accesses
                self._used |= item.accesses | item.mentions
        return self._follow(waiting, most)

    def borrow(self, place: Place, most: float, detail: Detail) -> bool:
        """Take one borrowed item and what it needs; False as soon as all together is longer than `most`."""
        self.reasons.setdefault(place, Reason(self.expansion.item(place).function_name, place))
        if place not in self._forward:
            self.settled.add(place)
        return self._follow([(place, self._take(place, detail))], most)

    def direct_needs(self, place: Place) -> list[Place]:
        """The places that an own item itself needs, up to the first that is known to be too long."""
        meanings = self.lookup.meanings(place, self.expansion.item(place))
        needs = self._needs(place, meanings, frozenset())
        found = dict.fromkeys(needed for _, needed in needs if needed != place)
        return list(itertools.takewhile(lambda each: each not in self.too_long, found))

    def take(self, unnamed: dict[Place, Item], most: float) -> bool:
        """Take borrowed items that nothing names, and what they need; False as soon as that is too long."""
        self.chosen |= unnamed
        self.settled |= unnamed.keys() - self._forward
        self.too_long = frozenset()  # that is said of what items name
        return self._follow([(place, item) for place, item in unnamed.items() if item.mentions], most)

    def _follow(self, waiting: list[tuple[Place, Item]], most: float) -> bool:
        queue = deque(waiting)
        while (queue or self._restore_members(queue) or self._complete(queue)) and self.size <= most:
            place, item = queue.popleft()
            meanings = self.lookup.meanings(place, item)
            if item.directives:
                self._note_macros(item)
            weak: Set[bytes] = frozenset()
            if place in self.reasons and self.detail >= Detail.FORWARD:
                weak, *declared = self.lookup.weak_needs(place, meanings)
                for all_functions, pairs in zip(
                    (self._reached, self._returned, self._taken), declared, strict=True
                ):
                    for name, functions in pairs:
                        all_functions[name] |= functions
            if self.detail >= Detail.SKELETON:
                self._call(place, meanings)
            depth = self._depth.get(place, 0) + 1
            for name, found in self._needs(place, meanings, weak):
                if found in self.too_long and name not in weak and most < float("inf"):
                    self.size = sys.maxsize
                    return False
                before = self.chosen.get(found)
                short = self._choose(found, weak=name in weak, depth=depth)
                if short is not before:
                    self.reasons.setdefault(found, Reason(name, place))
                    self._depth.setdefault(found, depth)
                    queue.append((found, short))
                    if self.size > most:  # one name may lead to thousands of overloads
                        return False
        return self.size <= most

    def _note_macros(self, item: Item) -> None:
        """Count what a macro stands for as used by whoever uses it."""
        for directive in item.directives if item.kind in (ItemKind.MACRO, ItemKind.TYPE) else ():
            if directive.keyword == b"define":
                self._macros[directive.macro] = directive.mentions

    def _complete(self, queue: deque[tuple[Place, Item]]) -> bool:
        """Queue the types that are only declared though own items use members of them."""
        while used := self._macros.keys() & self._used:
            names = set[bytes]().union(*map(self._macros.pop, used))
            self._used |= names
            self._accesses |= names
        functions = itertools.chain(self._reached.values(), self._taken.values())
        state = (len(self._used), len(self._forward), sum(map(len, functions)))
        for place in sorted(self._forward) if state != self._completed else ():
            item = self.expansion.item(place)
            reached = any(not self._used.isdisjoint(self._reached[name]) for name in item.names)
            is_used = item.kind == ItemKind.ALIAS or not self._accesses.isdisjoint(hiding_names(item))
            is_used |= any(not self._used.isdisjoint(self._returned[name]) for name in item.names)
            is_target = any(
                not self._used.isdisjoint(self._taken[name]) and converts_to(item.text, name)
                for name in item.names
            )
            if (reached and is_used) or is_target:
                queue.append((place, self._choose(place, weak=False, depth=self._depth[place])))
        self._completed = state
        return bool(queue)

    def _call(self, place: Place, meanings: Meanings) -> None:
        """Note the members that an item may use, and the classes that they have been left out of."""
        names = self.lookup.called(place, meanings, borrowed=place in self.reasons) - self._called
        self._called |= names
        for name in names & self._left_out.keys():
            self._incomplete |= self._left_out.pop(name)

    def _restore_members(self, queue: deque[tuple[Place, Item]]) -> bool:
        """Queue the classes that lack members that are used by now: together, since each makes a new text."""
        places, self._incomplete = self._incomplete - self._forward, set()
        queue.extend((each, self._take(each, self.detail)) for each in sorted(places))
        return bool(queue)

    def _choose(self, place: Place, *, weak: bool, depth: int) -> Item:
        """Take an item, so many steps from an own one, in the detail that it is to have."""
        short = self.shortener.forward(self.expansion.item(place)) if weak else None
        if short is not None:
            self._forward.add(place)
            self.settled.discard(place)
        else:
            self._forward.discard(place)
            self.settled.add(place)
        return self._take(place, Detail.NO_COMMENTS if depth <= self.whole_depth else self.detail, short)

    def _take(self, place: Place, detail: Detail, short: Item | None = None) -> Item:
        item = self.expansion.item(place)
        if short is None:
            is_group = detail == Detail.BARE and item.kind == ItemKind.MACRO and len(item.directives) > 1
            if is_group or (detail >= Detail.SKELETON and item.kind == ItemKind.TYPE):
                short, gone = self.shortener.skeleton(item, self._called, bare=detail == Detail.BARE)
                if place not in self._skeletons:  # else fewer are gone than before
                    self._skeletons.add(place)
                    for member in gone:
                        self._left_out[member.name].add(place)
            else:
                short = self.shortener.shorten(item, detail)
        before = self.chosen.get(place)
        if before is not short:
            self.chosen[place] = short
            self.size += self.measure.item(short.text)
            self.size -= self.measure.item(before.text) if before is not None else 0
        return short

    def _needs(self, place: Place, meanings: Meanings, weak: Set[bytes]) -> list[tuple[bytes, Place]]:
        """The places that an item needs and that are not there yet, each with the name that leads there."""
        item = meanings.item
        rank = meanings.rank
        chosen, forward = self.chosen, self._forward
        needs: list[tuple[bytes, Place]] = []
        # Most often all of them are there.
        for name, key, places, exact in () if meanings.places <= self.settled else meanings.candidates:
            is_weak = name in weak
            if not exact:
                done = self._done_weakly if is_weak else self._done
                if done.get(key, _BEFORE_ALL) >= rank:
                    continue
                done[key] = rank
            for found in places:
                if found in chosen and (is_weak or found not in forward):
                    continue
                if not is_weak or _in_declarations(self.expansion.item(found)):
                    needs.append((name, found))
        others: list[tuple[bytes, Place]] = []
        if item.kind in TYPE_KINDS:
            self._types.update(item.names)
        names = meanings.attaching
        if names and self._attached.get(names) != len(self._types):
            self._attached[names] = len(self._types)
            others += [
                (name, found) for name, found, types in self.lookup.attached(names) if types <= self._types
            ]
        if self.detail <= Detail.NO_COMMENTS and not self.lookup.is_dead(place):
            others += self._member_definitions(item, meanings.members - self._named)
        return needs + [(name, found) for name, found in others if found not in chosen or found in forward]

    def _member_definitions(self, item: Item, names: Set[bytes]) -> Iterable[tuple[bytes, Place]]:
        """Member functions that stand outside their classes, where both class and function are named.

        Args:
            item: that may be the class.
            names: of such functions, in the item, that are named for the first time.
        """
        index = self.expansion.index
        if item.kind == ItemKind.TYPE:
            for name in sorted(set(item.names) - self._classes):
                self._classes.add(name)
                for place in self._members.pop(name, ()):
                    yield name, place
        for name in sorted(names):
            self._named.add(name)
            for owner, key in index.members.find(name, self.expansion.by_file):
                for place in self.expansion.places(key):
                    if owner in self._classes:
                        yield name, place
                    else:
                        self._members[owner].append(place)


def _in_declarations(item: Item) -> bool:
    """True if the declaration of a function may need an item."""
    return item.kind in _IN_DECLARATIONS or (
        item.kind == ItemKind.VARIABLE and _CONSTANT.search(item.text) is not None
    )
