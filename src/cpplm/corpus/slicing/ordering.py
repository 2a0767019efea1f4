"""The order of a unit: preamble, types, variables and prototypes, then functions, callees before callers.

Two kinds of edges, both between items of one unit:

    hard   an item needs what it mentions and what stood before it: always kept, so nothing that compiled
           in source order loses a declaration. Hard edges point backwards in the source: they have no cycle.
    soft   a function calls another, or a type names one that is defined later: kept outside cycles (Tarjan's
           strongly connected components). A cycle of functions by name is looked at again by its calls;
           within what is still a cycle the source order stays.

A macro that is redefined or undefined splits its users into before and after. What may declare anything (a
macro call at namespace scope, an `#include` or `#pragma` between declarations) is a barrier that nothing
later passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from cpplm.corpus.slicing.dependencies import Declarations
from cpplm.corpus.slicing.operators import Operators
from cpplm.corpus.slicing.resolving import Resolver, plain_names
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import names_in
from cpplm.cpp.segments import Condition, Scope

_PHASE = {
    ItemKind.COMMENT: 0, ItemKind.INCLUDE: 0, ItemKind.MACRO: 0, ItemKind.PRAGMA: 0, ItemKind.USING: 0,
    ItemKind.FORWARD: 0,
    ItemKind.TYPE: 1, ItemKind.ALIAS: 1,
    ItemKind.VARIABLE: 2, ItemKind.PROTOTYPE: 2,
    ItemKind.FUNCTION: 3, ItemKind.OTHER: 3, ItemKind.CALL: 3, ItemKind.REGION: 3,
}  # fmt: skip
PREAMBLE, TYPES, DECLARATIONS, FUNCTIONS, LAST = range(5)
# `*this < other`, `(*this)[0]`: an operator of the own class.
_OWN_OPERATOR = re.compile(rb"\*this\s*(?:\)\s*(\[|\()|([=!<>+*/%&|^-]+))")
# `--it`, `*it`: an operator of any class; `a * b` and `it--` are not found.
_PREFIX_OPERATOR = re.compile(rb"(?:[(,;={&|!?:*]|\breturn)\s*(--|\+\+|\*)(?=[\s*+-]*\w)")
_CLOSED = {b"[": b"[]", b"(": b"()"}
_SPECIAL = re.compile(rb"\btemplate\s*<\s*>")
# A name with more candidates than this says nothing about who calls whom.
_MOST_CANDIDATES = 24


class Graph:
    """The edges of a unit's items: to earlier ones (`hard`), callees (`soft`), later types (`ahead`)."""

    def __init__(self, items: list[Item], resolver: Resolver | None = None) -> None:
        self.items = items
        self.phase = [_PHASE[item.kind] for item in items]
        self.hard: list[set[int]] = [set() for _ in items]
        self.named: list[set[int]] = [set() for _ in items]  # of `hard`, what must be in one document
        self._bodies = _macro_mentions(items)
        self._expansions: dict[bytes, set[bytes]] = {}
        self.mentions = [self._expanded(item) for item in items]
        self._names = (resolver.names if resolver is not None else plain_names)(items, self.mentions)
        self._operators = Operators(items)
        self._name_edges()
        self._value_edges()
        self._macro_edges()
        self._operator_edges()
        self._barrier_edges()
        self._needs: dict[tuple[int, bool], int] = {}

    def _expanded(self, item: Item) -> frozenset[bytes]:
        """What an item mentions once the unit's own macros are expanded."""
        if item.kind == ItemKind.MACRO or self._bodies.keys().isdisjoint(item.mentions):
            return item.mentions
        return item.mentions.union(*(self._expansion(name) for name in item.mentions & self._bodies.keys()))

    def _expansion(self, macro: bytes) -> set[bytes]:
        """All that the body of a macro mentions, expanded."""
        found = self._expansions.get(macro)
        if found is None:
            found = self._expansions[macro] = set()
            waiting = set(self._bodies[macro])
            while waiting:
                name = waiting.pop()
                found.add(name)
                waiting |= self._bodies.get(name, frozenset()) - found
        return found

    def _name_edges(self) -> None:
        """Each item after the last earlier declaration of what it mentions; those of one name in order."""
        declarations = Declarations(self.items, self._names)
        for index, item in enumerate(self.items):
            if item.kind not in (ItemKind.MACRO, ItemKind.INCLUDE, ItemKind.PRAGMA, ItemKind.COMMENT):
                self.hard[index], self.named[index] = declarations.add(index)

    def _value_edges(self) -> None:
        """A member or variable needs its class in full, also where an alias stands nearer."""
        defined: dict[bytes, int] = {}
        aliases: dict[bytes, frozenset[bytes]] = {}
        for index, item in enumerate(self.items):
            if item.kind in (ItemKind.TYPE, ItemKind.VARIABLE):
                mentioned = self._names.mentioned[index]
                meant = mentioned.union(*(aliases[name] for name in aliases.keys() & mentioned))
                self._need(index, (defined[name] for name in defined.keys() & meant))
            if item.kind == ItemKind.TYPE:
                defined.update(dict.fromkeys(self._names.declared[index], index))
            elif item.kind == ItemKind.ALIAS:
                aliases.update(dict.fromkeys(self._names.declared[index], item.mentions))

    def _need(self, index: int, others: Iterable[int]) -> None:
        """An item stays after others, and cannot be in a document without them."""
        self.named[index].update(others)
        self.hard[index] |= self.named[index]

    def _macro_edges(self) -> None:
        """`#define` and `#undef` of one macro keep their order, and keep their users between them."""
        events = [
            {d.macro for d in item.directives if d.keyword in (b"define", b"undef")} for item in self.items
        ]
        macros: set[bytes] = set().union(*events)
        latest: dict[bytes, int] = {}
        users: dict[bytes, list[int]] = {}
        for index, item in enumerate(self.items):
            for name in sorted(events[index]):
                earlier = [user for user in users.pop(name, []) if user != index]
                self.hard[index].update(earlier)
                if self.phase[index] == PREAMBLE and any(self.phase[user] != PREAMBLE for user in earlier):
                    self.phase[index] = LAST
            seen = self._macros_seen(index) & macros
            self._need(index, (latest[name] for name in latest.keys() & (seen | events[index])))
            for name in seen & _asked(item) if item.kind == ItemKind.MACRO and seen else seen:
                users.setdefault(name, []).append(index)
            for name in events[index]:
                latest[name] = index

    def _macros_seen(self, index: int) -> set[bytes]:
        """What an item mentions, those around it included: names of scopes may be macros."""
        item = self.items[index]
        scopes = (names_in(f.opener) for f in item.stack if isinstance(f, Scope))
        return set(self.mentions[index]).union(*scopes)

    def _operator_edges(self) -> None:
        """Items after the operators whose symbols they contain."""
        for index, item in enumerate(self.items):
            if self.phase[index] == PREAMBLE:
                continue
            last, needed = self._operators.before(index, item.text, self.mentions[index])
            self.hard[index] |= last
            self._need(index, needed)

    def _barrier_edges(self) -> None:
        """Items that may declare anything, and those whose place matters, split the unit."""
        barrier: int | None = None
        firm: int | None = None  # the last barrier that may define macros
        late: int | None = None
        started: dict[int, int] = {}  # file to its first item that is no preamble
        regions: dict[int, int] = {}  # file to its last region: the rest of it may use what that leaves open
        for index, item in enumerate(self.items):
            if barrier is not None and self.items[barrier].kind not in (ItemKind.CALL, ItemKind.PRAGMA):
                firm = barrier
            is_directive = item.kind == ItemKind.MACRO or (item.kind == ItemKind.INCLUDE and not item.local)
            passed = firm if item.kind == ItemKind.MACRO else None if is_directive else barrier
            if passed is not None:
                self.hard[index].add(passed)
            first = started.get(item.file)
            if item.late:
                before = [i for i in range(index) if self.items[i].file < item.file]
                self.hard[index].update(before)
                self.named[index].update(i for i in before if self.items[i].kind != ItemKind.FUNCTION)
                self.phase[index] = FUNCTIONS
                late = barrier = index
                continue
            if not is_directive:
                self.named[index].update(
                    found for found in (late, regions.get(item.file)) if found is not None
                )
            stays = item.kind == ItemKind.PRAGMA or (item.kind == ItemKind.INCLUDE and item.local)
            if stays and first is not None:
                self.hard[index].update(range(first, index))
                if item.kind == ItemKind.INCLUDE:  # most likely the second half of this header
                    self.named[index].update(range(first, index))
                    late = index
                self.phase[index] = FUNCTIONS
                barrier = index
            elif item.kind == ItemKind.REGION:
                self.hard[index].update(i for i in range(index) if self.items[i].file == item.file)
                regions[item.file] = barrier = index
            elif item.kind == ItemKind.CALL:
                barrier = index
            elif item.kind == ItemKind.USING and b"namespace" in item.mentions:
                self.hard[index].update(i for i in range(index) if self.phase[i] in (TYPES, DECLARATIONS))
            if self.phase[index] != PREAMBLE:
                started.setdefault(item.file, index)

    @cached_property
    def soft(self) -> list[set[int]]:
        """Functions to the functions that they name, wherever those stand."""
        soft: list[set[int]] = [set() for _ in self.items]
        candidates: dict[bytes, list[int]] = {}
        for index, item in enumerate(self.items):
            for name in self._names.callables[index] if item.kind == ItemKind.FUNCTION else ():
                candidates.setdefault(name, []).append(index)
        for index, item in enumerate(self.items):
            if item.kind != ItemKind.FUNCTION:
                continue
            names = self._names.mentioned[index] | self._names.accessed[index]
            for name in names & candidates.keys():
                if len(candidates[name]) <= _MOST_CANDIDATES:
                    soft[index].update(callee for callee in candidates[name] if callee != index)
            for bracket, sign in _OWN_OPERATOR.findall(item.text) if item.qualifier else ():
                operator = b"operator" + (_CLOSED.get(bracket) or sign)
                soft[index].update(
                    callee
                    for callee in candidates.get(operator, ())
                    if callee != index and self.items[callee].qualifier == item.qualifier
                )
            for sign in set(_PREFIX_OPERATOR.findall(item.text)):
                soft[index].update(set(candidates.get(b"operator" + sign, ())) - {index})
        return soft

    @cached_property
    def ahead(self) -> list[set[int]]:
        """Items to the types defined after them that they name: by a forward declaration before both.

        A specialisation counts from where it stands on, so no type is moved over one.
        """
        ahead: list[set[int]] = [set() for _ in self.items]
        later: dict[bytes, list[int]] = {}
        end = len(self.items)
        for index in range(end - 1, -1, -1):
            item = self.items[index]
            if self.phase[index] == PREAMBLE:
                continue
            for name in self._names.mentioned[index] & later.keys():
                ahead[index].update(type_ for type_ in later[name] if type_ < end)
            if item.kind == ItemKind.TYPE and _SPECIAL.search(item.text):
                end = index
            elif item.kind == ItemKind.TYPE:
                for name in self._names.declared[index]:
                    later.setdefault(name, []).append(index)
        return ahead

    @cached_property
    def _reached(self) -> list[int]:
        """For each item, as a set of bits, itself and all that it needs by name."""
        reached: list[int] = []
        for index, edges in enumerate(self.named):
            bits = 1 << index
            for need in edges:
                bits |= reached[need]
            reached.append(bits)
        return reached

    @cached_property
    def _incomplete(self) -> dict[int, list[tuple[bytes, int]]]:
        """Items that name a class without defining it: the name, and a definition of the class."""
        types: dict[bytes, list[int]] = {}
        nested: dict[bytes, list[int]] = {}  # class to the classes of it that are defined after it
        for index, item in enumerate(self.items):
            if item.kind == ItemKind.TYPE:
                for name in item.names:
                    types.setdefault(name, []).append(index)
                if item.qualifier:
                    nested.setdefault(item.qualifier, []).append(index)
        found: dict[int, list[tuple[bytes, int]]] = {}
        for index, item in enumerate(self.items):
            named = {ItemKind.FORWARD: item.names, ItemKind.ALIAS: item.mentions}.get(item.kind, ())
            pairs = [(name, type_) for name in named for type_ in types.get(name, ())]
            if item.kind == ItemKind.TYPE:
                pairs = [(b"", type_) for name in item.names for type_ in nested.get(name, ())]
            if pairs:
                found[index] = pairs
        return found

    def needs(self, root: int, rest: Graph, *, frugal: bool) -> int:
        """Everything earlier that an item needs by name, through any number of steps, as a set of bits.

        The item's own names count as they are in this graph, those of what it needs as they are in `rest`:
        the graph of the same items, shortened. A function that needs a class needs its definition, even where
        only a forward declaration or an alias of it is named; when `frugal`, only if it also names the class
        or reaches for something that the class has.
        """
        if (root, frugal) in self._needs:
            return self._needs[root, frugal]
        bits = 0
        for need in self.named[root]:
            bits |= rest._reached[need]
        user = self.items[root]
        for operator in self._operators.of(bits) if user.kind in (ItemKind.FUNCTION, ItemKind.TYPE) else ():
            if operator < root:
                bits |= rest._reached[operator]
        done = 0
        while user.kind == ItemKind.FUNCTION and (pending := bits & self._incomplete_bits & ~done):
            done |= pending
            for index in each_bit(pending):
                for name, type_ in self._incomplete[index]:
                    asked = (
                        not frugal
                        or not name
                        or not user.mentions.isdisjoint((name, *self.items[index].names))
                    )
                    if type_ < root and (asked or not user.accesses.isdisjoint(self.items[type_].mentions)):
                        bits |= rest._reached[type_]
        bits &= ~(1 << root)
        self._needs[root, frugal] = bits
        return bits

    @cached_property
    def _incomplete_bits(self) -> int:
        return sum(1 << index for index in self._incomplete)


def each_bit(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set, in increasing order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _macro_mentions(items: list[Item]) -> dict[bytes, frozenset[bytes]]:
    """What the body of each macro of the unit names, over all its definitions."""
    bodies: dict[bytes, frozenset[bytes]] = {}
    for item in items:
        for directive in item.directives:
            if directive.keyword == b"define":
                # The item's own names are more: what it makes by `##`.
                names = item.mentions if len(item.directives) == 1 else names_in(directive.argument)
                names -= {directive.macro}
                bodies[directive.macro] = bodies.get(directive.macro, frozenset()) | names
    return bodies


def _asked(item: Item) -> set[bytes]:
    """The names in the conditions in and around a macro definition: they are evaluated where it stands."""
    lines = [line for frame in item.stack if isinstance(frame, Condition) for line in frame.lines]
    lines += [d.argument for d in item.directives if d.keyword not in (b"define", b"undef")]
    return set().union(*map(names_in, lines))
