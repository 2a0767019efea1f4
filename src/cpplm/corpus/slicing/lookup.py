"""Name lookup in one expansion: what an item's identifiers may stand for, remembered for the unit.

A name leads to all that declares it before the place that mentions it; where nothing does so completely,
also to what declares it after (a template, a macro). Functions and variables that an item hides by names of
its own are left out. Overloads and namespaces are not told apart: a name that means something else costs
space, not correctness.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from cpplm.corpus.slicing.expansion import Expansion, Place, Rank
from cpplm.corpus.slicing.incomplete_types import needs_only_declared, values_returned, values_taken
from cpplm.corpus.slicing.multiple_inclusion import needed_definitions, prefer_unconditional
from cpplm.corpus.slicing.redefined_macros import RedefinedMacros
from cpplm.corpus.slicing.shadowing import (
    HIDDEN_KINDS,
    befriended,
    hiding_names,
    qualified_names,
    template_parameters,
)
from cpplm.corpus.slicing.shortening import called_in
from cpplm.cpp.items import Item, ItemKind, condition_names, scope_macros
from cpplm.cpp.lexer import IDENTIFIER, names_in
from cpplm.cpp.segments import Scope

# Names that a header without includes has from the files that include it.
_OF_HEADERS = frozenset(
    b"size_t FILE NULL bool time_t va_list "
    b"int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t".split()
)
_AFTER_ALL: Rank = sys.maxsize
_MOST_CALLS = 4
_NAMED_SCOPE = re.compile(rb"(?<![:\w])(\w+)\s*::\s*\w")
TYPE_KINDS = (ItemKind.TYPE, ItemKind.FORWARD, ItemKind.ALIAS)
_OPEN_TYPEDEF = re.compile(
    rb"(?:\s|/\*.*?\*/|//[^\n]*\n)*+typedef\s+(?:const\s+)?(?:struct|union|enum|class)\b", re.DOTALL
)


class Candidates(NamedTuple):
    """The places that a name may stand for.

    `key`: the name, marked where functions and variables are left out; `exact`: the name means this here, and
    may mean something else elsewhere.
    """

    name: bytes
    key: bytes
    places: list[Place]
    exact: bool = False


class WeakNeeds(NamedTuple):
    """The types that a borrowed item needs no more of than a declaration.

    `reached`: for the types through which something that it declares is reached, that; `returned`: for those
    that functions return values of, these functions; `taken`: the same for those that functions take.
    """

    names: Set[bytes]
    reached: Sequence[tuple[bytes, Set[bytes]]]
    returned: Sequence[tuple[bytes, Set[bytes]]]
    taken: Sequence[tuple[bytes, Set[bytes]]]


@dataclass(slots=True)
class Meanings:
    """Candidates for the identifiers of an item at a place, and what else is asked of it, each once.

    Attributes:
        item: as it is written there, perhaps shortened.
        rank: from which it sees names.
        candidates: for each identifier, in order.
        places: all among these.
        members: the identifiers that member functions outside their classes have, too.
        attaching: the types that it declares, or macros that may stand for types (`REFGUID`), which operators
            or specializations take.
        calls: the names by which it may use members of classes, by whether it is borrowed.
        weak: what a declaration is enough for, if it is borrowed; None until that is looked up.
    """

    item: Item
    rank: Rank
    candidates: list[Candidates]
    places: frozenset[Place]
    members: frozenset[bytes]
    attaching: tuple[bytes, ...]
    calls: dict[bool, Set[bytes]] = field(default_factory=dict)
    weak: WeakNeeds | None = None


class RankedPlaces(NamedTuple):
    """Places in order, their ranks, and how many of them stand before the first that is a definition."""

    places: list[Place]
    ranks: list[Rank]
    undefined: int

    def visible(self, rank: Rank) -> int:
        """The number of places seen from a rank: those before it, or up to the first definition."""
        return min(max(bisect.bisect_right(self.ranks, rank), self.undefined + 1), len(self.places))


@dataclass
class NameLookup:
    """Looks up the names of items of one expansion."""

    expansion: Expansion
    redefined: RedefinedMacros = field(init=False)
    _ranked: dict[bytes, RankedPlaces] = field(default_factory=dict)
    # By name, how many of its places are visible, and whether the name is hidden.
    _candidates: dict[tuple[bytes, int, bool], Candidates] = field(default_factory=dict)
    _at_place: dict[Place, dict[bytes, Candidates]] = field(default_factory=dict)  # by the item that asks
    _in_namespaces: dict[bytes, list[Place]] = field(default_factory=dict)
    _openers: dict[bytes, Set[bytes]] = field(default_factory=dict)
    _attached: dict[tuple[bytes, ...], list[tuple[bytes, Place, Set[bytes]]]] = field(default_factory=dict)
    _hidden: dict[Place, Set[bytes]] = field(default_factory=dict)
    # By identity, since an item comes in several lengths; it is kept, so that no other gets its id.
    _found: dict[tuple[Place, int], Meanings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.redefined = RedefinedMacros(self.expansion)

    def meanings(self, place: Place, item: Item) -> Meanings:
        """The meanings of the identifiers of an item as it is written there, perhaps shortened."""
        key = (place, id(item))
        found = self._found.get(key)
        if found is None:
            candidates = self._look_up(place, item)
            places = frozenset().union(*(each.places for each in candidates))
            members = (item.mentions | item.accesses) & self.expansion.index.members.keys()
            attaching = self._attaching(item)
            found = Meanings(item, self.rank(place, item), candidates, places, members, attaching)
            self._found[key] = found
        return found

    def weak_needs(self, place: Place, meanings: Meanings) -> WeakNeeds:
        """The types that a declaration is enough for in a borrowed item, see `needs_only_declared`."""
        if meanings.weak is None:
            item = meanings.item
            declared = needs_only_declared(item.text, item.kind)
            names = {each.name for each in meanings.candidates if each.name in declared}
            names -= self.complete(place, item)
            names -= names & self.expansion.index.macros.names
            reached = [(name, declared[name]) for name in names if declared[name]]
            values = values_returned(item.text, item.kind) if names else {}
            returned = [(name, values[name]) for name in names & values.keys()]
            taking = values_taken(item.text, item.kind) if names else {}
            taken = [(name, taking[name]) for name in names & taking.keys()]
            meanings.weak = WeakNeeds(names, reached, returned, taken)
        return meanings.weak

    def called(self, place: Place, meanings: Meanings, *, borrowed: bool) -> Set[bytes]:
        """The names by which an item may use members of classes."""
        found = meanings.calls.get(borrowed)
        if found is None:
            original = self.expansion.item(place)
            found = called_in(original, meanings.item) if borrowed else original.mentions | original.accesses
            meanings.calls[borrowed] = found
        return found

    def rank(self, place: Place, item: Item) -> Rank:
        """The rank from which an item sees names: what a macro stands for is looked up where it is used."""
        return _AFTER_ALL if item.kind == ItemKind.MACRO else self.expansion.rank(place)

    def _look_up(self, place: Place, item: Item) -> list[Candidates]:
        mentions: Set[bytes] = item.mentions
        if self.is_dead(place):  # but what decides that is not, nor are the scopes that it stands in
            mentions = condition_names(item.stack) | scope_macros(item.stack)
        elif item.kind == ItemKind.TYPE and b"friend" in item.text:
            mentions = mentions - befriended(item.text)
        mentions = mentions - template_parameters(self.expansion.item(place).text)
        if frames := self.expansion.visits[place[0]].frames:  # around what includes its file
            mentions = mentions | scope_macros(frames) | condition_names(frames)
        hidden = self._hidden_at(place)
        rank = self.rank(place, item)
        found: list[Candidates] = []
        known = self._at_place.setdefault(place, {})
        redefined = self.redefined.asked_by(item) if self.redefined.names else frozenset()
        if redefined and (table := self.redefined.table_at(place)) is not None:
            # No names that are pasted under other definitions.
            mentions = mentions - self.expansion.index.macros.pasted(mentions, item.text)
            mentions |= table.pasted(mentions, item.text)
        found += [
            Candidates(name, name, self.redefined.holding(name, self.expansion.rank(place)), exact=True)
            for name in sorted(redefined)
        ]
        for name in sorted((mentions & self.expansion.index.declared.keys()) - self.redefined.names):
            candidates = known.get(name)
            if candidates is None:
                key = (name, self._declaring(name).visible(rank), name in hidden)
                candidates = known[name] = self._candidates.get(key) or self._candidates_of(*key)
                self._candidates[key] = candidates
            if candidates.places:
                found.append(candidates)
        if item.kind == ItemKind.USING and b"namespace" in mentions:
            opened = IDENTIFIER.findall(item.text)[-1]
            places = self._in_namespace(opened, rank)
            if places and all(candidates.name != opened for candidates in found):
                found.append(Candidates(opened, opened, places))
        return found

    def _candidates_of(self, name: bytes, count: int, hidden: bool) -> Candidates:
        places = self._declaring(name).places[:count]
        if hidden:
            places = [each for each in places if self.expansion.item(each).kind not in HIDDEN_KINDS]
        many = places if len(places) > _MOST_CALLS else []
        calls = [each for each in many if self.expansion.item(each).kind == ItemKind.CALL]
        if len(calls) > _MOST_CALLS:  # of so many macros that have it as an argument the first declares it
            uses = set(calls[1:] if len(calls) == len(places) else calls)
            places = [each for each in places if each not in uses]
        places = needed_definitions(places, name, self.expansion)
        return Candidates(name, b"?" + name if hidden else name, places)

    def complete(self, place: Place, item: Item) -> Set[bytes]:
        """The types that an item, as it is written there, is known to need the definition of."""
        return frozenset()

    def _in_namespace(self, name: bytes, rank: Rank) -> list[Place]:
        """The shortest item in a namespace, so that there is such a namespace."""
        if name not in self._in_namespaces:
            places = [
                (number, position)
                for number, visit in enumerate(self.expansion.visits)
                for position in range(len(visit.file.items))
                if any(
                    name in self._opened_by(scope.opener)
                    for scope in visit.stack(position)
                    if isinstance(scope, Scope)
                )
                and visit.is_read(position)
            ]
            places.sort(key=lambda place: (len(self.expansion.item(place).text), place))
            self._in_namespaces[name] = places
        return [place for place in self._in_namespaces[name] if self.expansion.rank(place) < rank][:1]

    def _opened_by(self, opener: bytes) -> Set[bytes]:
        """The names in what opens a scope, and in the macros there."""
        if opener not in self._openers:
            self._openers[opener] = _names_opened(self.expansion, {opener})
        return self._openers[opener]

    def attached(self, names: tuple[bytes, ...]) -> list[tuple[bytes, Place, Set[bytes]]]:
        """The operators and specializations of types of these names, each with all its types."""
        if names not in self._attached:
            self._attached[names] = [
                (name, place, {each for each in types if self._is_type(each)})
                for name in names
                for key, types in self.expansion.index.attached.find(name, self.expansion.by_file)
                for place in self.expansion.places(key)
            ]
        return self._attached[names]

    def _attaching(self, item: Item) -> tuple[bytes, ...]:
        """The names of an item that operators or specializations take: of types, and of macros for types."""
        index = self.expansion.index
        macros = (each.macro for each in item.directives) if item.kind == ItemKind.MACRO else ()
        names = item.names if item.kind in TYPE_KINDS else macros
        found = tuple(name for name in names if name in index.attached)
        if item.kind == ItemKind.MACRO and found and not any(map(self._is_type, item.mentions)):
            return ()
        return found

    def _is_type(self, name: bytes) -> bool:
        """True if the expansion declares a type of this name."""
        return any(self.expansion.item(place).kind in TYPE_KINDS for place in self._declaring(name).places)

    def is_dead(self, place: Place) -> bool:
        """True for own text in a branch that is not compiled."""
        return self.expansion.visits[place[0]].live.get(place[1], True) is False

    def _declaring(self, name: bytes) -> RankedPlaces:
        """All places that declare a name."""
        if name not in self._ranked:
            expansion = self.expansion
            places = prefer_unconditional(expansion.declaring(name), expansion)
            places.sort(key=expansion.rank)
            if self.redefined.names:
                places = [place for place in places if self.redefined.declares(place, name)]
            self._ranked[name] = self._rank(places)
        return self._ranked[name]

    def _rank(self, places: list[Place]) -> RankedPlaces:
        items = map(self.expansion.item, places)
        undefined = next((number for number, item in enumerate(items) if not _is_open(item)), len(places))
        return RankedPlaces(places, [self.expansion.rank(place) for place in places], undefined)

    def _hidden_at(self, place: Place) -> Set[bytes]:
        """The names that an item, or the class of a member function, gives a meaning of its own."""
        if place not in self._hidden:
            item = self.expansion.item(place)
            found = hiding_names(item)
            if item.qualifier in self.expansion.index.declared:
                for owner in map(self.expansion.item, self._declaring(item.qualifier).places):
                    if owner.kind == ItemKind.TYPE:
                        found |= hiding_names(owner) - qualified_names(item.text)
            self._hidden[place] = found
        return self._hidden[place]


def _is_open(item: Item) -> bool:
    """True for what declares a type or a constant function and leaves its definition to others."""
    return (
        item.kind in (ItemKind.FORWARD, ItemKind.USING)
        or (item.kind == ItemKind.ALIAS and bool(_OPEN_TYPEDEF.match(item.text)))
        or (item.kind == ItemKind.PROTOTYPE and b"constexpr" in item.text)
    )


def lacking_names(expansion: Expansion) -> set[bytes]:
    """The names that a header uses and that nothing before it declares.

    Macros and classes of the project, namespaces, macros that an `#error` asks for, those with arguments in
    a condition; names of the standard library where no header of it is included, constants where none is.
    """
    index = expansion.index
    used: set[bytes] = set()
    own: set[bytes] = set()
    scopes: set[bytes] = set()
    for visit in expansion.visits:
        for item in visit.file.items if visit.own else ():
            used |= item.mentions - condition_names(item.stack) if not item.directives else set()
            own |= hiding_names(item)
            scopes |= set(_NAMED_SCOPE.findall(item.text)) & item.mentions
    std = used & _OF_HEADERS
    if len(expansion.visits) == 1:
        std |= {
            name for name in used - own if name.isupper() and b"_" in name and not expansion.declaring(name)
        }
    used &= index.macros.names | index.types | index.aliases
    lacking = {name for name in used - own if not expansion.declaring(name)}
    lacking |= index.macros.names.intersection(expansion.defined)
    asked = set[bytes]().union(*(visit.file.asked_functions for visit in expansion.visits))
    lacking |= {name for name in asked if name[:6] != b"__has_" and not expansion.declaring(name)}
    if scopes := {name for name in scopes - own - lacking - {b"std"} if not expansion.declaring(name)}:
        each = (visit.stack(item) for visit in expansion.visits for item in range(len(visit.file.items)))
        stacks = {id(stack): stack for stack in each}
        openers = {frame.opener for stack in stacks.values() for frame in stack if isinstance(frame, Scope)}
        lacking |= scopes - _names_opened(expansion, openers)
    return lacking if any(visit.external for visit in expansion.visits) else lacking | std


def _names_opened(expansion: Expansion, openers: Set[bytes]) -> set[bytes]:
    """The names in what opens scopes, and in the macros there."""
    names = set[bytes]().union(*map(names_in, openers))
    macros = (expansion.item(place) for name in names for place in expansion.declaring(name))
    return names.union(*(item.mentions for item in macros if item.kind == ItemKind.MACRO))
