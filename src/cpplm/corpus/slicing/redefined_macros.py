"""Macros that a unit defines, undefines and defines as something else: parameters of headers read repeatedly.

Such as `#define TYPE int`, `#include "table.h"`, `#undef TYPE`, then the same with `char`. A use of one needs
the definition that holds there (ISO C++20, 15.6.5), where any other is looked up once for all uses.
"""

from __future__ import annotations

import bisect
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from cpplm.corpus.slicing.branches import nested_directives
from cpplm.corpus.slicing.declared_names import declared_names
from cpplm.corpus.slicing.expansion import Expansion, Place, Rank
from cpplm.corpus.slicing.project_index import Key
from cpplm.cpp.items import Item, ItemKind, condition_names
from cpplm.cpp.lexer import ELSE_KEYWORDS, IF_KEYWORDS, names_in
from cpplm.cpp.macros import MacroTable, macro_bodies

_CONDITIONAL = IF_KEYWORDS | ELSE_KEYWORDS
_DEEPEST = 16  # how many macros lead from one to the next


class RedefinedMacros:
    """Those of one expansion: `names`, which most have none of."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self._used: dict[bytes, Set[bytes]] = {}
        self._ordered: dict[bytes, tuple[list[Place], list[Rank]]] = {}
        self._holding: dict[tuple[bytes, int], list[Place]] = {}
        self._changing: dict[Key, list[bytes]] = {}  # the macros of an item that lead to these
        self._directives: dict[Key, dict[bytes, dict[bytes, bool]]] = {}
        self._tables: dict[Place, MacroTable | None] = {}
        # By the definitions that they have in place of the project's: files are read under the same again.
        self._tables_of: dict[tuple[tuple[bytes, Set[Key]], ...], MacroTable | None] = {}
        self._declared: dict[tuple[Key, int], Set[bytes]] = {}  # by identity of tables
        definitions: dict[bytes, list[Place]] = defaultdict(list)
        asked: dict[bytes, set[bytes]] = defaultdict(set)  # by the conditions of its definitions
        ended: dict[bytes, set[bytes]] = defaultdict(set)  # with what else at once
        for place in self._places():
            item = expansion.item(place)
            undefined = {each.macro for each in item.directives if each.keyword == b"undef"}
            for name in undefined:
                ended[name] |= undefined - {name}
            conditions = _conditions(item)
            for name in {each.macro for each in item.directives if each.keyword == b"define"}:
                definitions[name].append(place)
                asked[name] |= conditions - {name}
        several = {name for name, places in definitions.items() if len(places) > 1}
        self.names = {
            name for name in several & ended.keys() if len(set(map(expansion.key, definitions[name]))) > 1
        }
        changing = self.names | (ended.keys() & definitions.keys())
        for _ in range(_DEEPEST):
            more = {
                name
                for name in several - self.names
                if not (changing.isdisjoint(asked[name]) and self.names.isdisjoint(ended.get(name, ())))
            }
            if not more:
                break
            self.names |= more
            changing |= more

    def asked_by(self, item: Item) -> Set[bytes]:
        """The names that a place looks up in the definitions that hold there: also through other macros.

        Of an item of definitions only those in its conditions: what the rest stands for is looked up where
        its macros are used.
        """
        if item.kind == ItemKind.MACRO:
            return self.names & _conditions(item)
        return self.names & self._named_by(item)

    def _named_by(self, item: Item) -> Set[bytes]:
        """The identifiers of an item, and all that its macros lead to."""
        return item.mentions.union(*map(self._used_by, item.mentions & self._using.keys()))

    def holding(self, name: bytes, rank: Rank) -> list[Place]:
        """The places of the definition of a macro that holds at a rank, and of what ended the one before."""
        if name not in self._ordered:
            ordered = sorted(self._expansion.declaring(name), key=self._expansion.rank)
            self._ordered[name] = ordered, list(map(self._expansion.rank, ordered))
        places, ranks = self._ordered[name]
        key = name, bisect.bisect_left(ranks, rank)
        if key not in self._holding:
            self._holding[key] = self._last_definitions(name, places[: key[1]])
        return self._holding[key]

    def _last_definitions(self, name: bytes, places: list[Place]) -> list[Place]:
        """Of these places of a name, in order, those that still hold behind the last."""
        expansion = self._expansion
        found: list[Place] = []
        is_defined = False
        for place in reversed(places):
            keywords = self._keywords(place).get(name)
            if not keywords:  # something else of this name, or a call of a macro that has it as an argument
                found += [place] if expansion.item(place).kind != ItemKind.CALL else []
                continue
            if is_defined and b"undef" not in keywords:
                continue  # a definition that has ended by then
            found.append(place)
            visit = expansion.visits[place[0]]
            is_certain = visit.live.get(place[1], True) is True and not visit.is_conditional
            if b"define" not in keywords and is_certain:
                break
            is_defined |= is_certain and keywords.get(b"define", False)
        return found[::-1]

    def _keywords(self, place: Place) -> dict[bytes, dict[bytes, bool]]:
        """By macro the keywords of directives in an item that name it: does one stand in no `#if` there?"""
        key = self._expansion.key(place)
        if key not in self._directives:
            found: dict[bytes, dict[bytes, bool]] = defaultdict(dict)
            for directive, inner in nested_directives(self._expansion.visits[place[0]].file, place[1]):
                known = found[directive.macro]
                known[directive.keyword] = known.get(directive.keyword, False) or not inner
            self._directives[key] = dict(found)
        return self._directives[key]

    def table_at(self, place: Place) -> MacroTable | None:
        """The macros of the project as they are where an item stands; None where it uses none of these."""
        if place not in self._tables:
            key = self._expansion.key(place)
            if key not in self._changing:
                item = self._expansion.item(place)
                named = self._named_by(item) if item.kind != ItemKind.MACRO else frozenset()
                self._changing[key] = sorted(self.names & named | self._using.keys() & named)
            used = self._changing[key]
            self._tables[place] = self._table(used, self._expansion.rank(place)) if used else None
        return self._tables[place]

    def _table(self, used: Sequence[bytes], rank: Rank) -> MacroTable | None:
        """The macros of the project, these as they are at a rank."""
        expansion = self._expansion
        definitions = tuple(
            (name, frozenset(map(expansion.key, places)))
            for name in used
            for places in [self.holding(name, rank) if name in self.names else expansion.declaring(name)]
        )
        if definitions not in self._tables_of:
            bodies = macro_bodies(
                directive
                for name, keys in definitions
                for key in keys
                for directive in expansion.index.item(key).directives
                if directive.macro == name
            )
            self._tables_of[definitions] = expansion.index.macros.with_bodies(bodies) if bodies else None
        return self._tables_of[definitions]

    def declares(self, place: Place, name: bytes) -> bool:
        """True if an item declares a name where it stands: `NAME(entry)`, what the macro pastes there."""
        table = self.table_at(place)
        if table is None:
            return True
        key = self._expansion.key(place), id(table)
        if key not in self._declared:
            self._declared[key] = declared_names(self._expansion.item(place), table)
        return name in self._declared[key]

    def _places(self) -> Iterator[Place]:
        """The places of all directives that are read."""
        for number, visit in enumerate(self._expansion.visits):
            for position, item in enumerate(visit.file.items):
                if item.directives and visit.is_read(position):
                    yield number, position

    @functools.cached_property
    def _using(self) -> dict[bytes, set[bytes]]:
        """By the name of a macro those in what it stands for, where they lead to these macros."""
        using: dict[bytes, set[bytes]] = defaultdict(set)
        for each in (each for place in self._places() for each in self._expansion.item(place).directives):
            if each.keyword == b"define":
                using[each.macro] |= each.mentions - {each.macro}
        leading = set(self.names)
        for _ in range(_DEEPEST):
            more = {macro for macro in using.keys() - leading if not leading.isdisjoint(using[macro])}
            if not more:
                break
            leading |= more
        return {macro: using[macro] & leading for macro in leading & using.keys()}

    def _used_by(self, macro: bytes) -> Set[bytes]:
        """The names that a macro leads to, and that lead to these macros."""
        if macro not in self._used:
            found: set[bytes] = set()
            waiting = {macro}
            while waiting:
                waiting = set[bytes]().union(*(self._using.get(each, ()) for each in waiting)) - found
                found |= waiting
            self._used[macro] = found
        return self._used[macro]


def _conditions(item: Item) -> Set[bytes]:
    """The macros that the conditions in an item and around it ask for."""
    arguments = {each.argument for each in item.directives if each.keyword in _CONDITIONAL}
    return condition_names(item.stack).union(*map(names_in, arguments))
