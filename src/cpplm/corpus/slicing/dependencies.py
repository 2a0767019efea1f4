"""What the items of a unit need of those before them, by name.

A name leads to its last declaration, so that no item is moved over one. To be in one document with an item
is asked of less: a function does not need the others of its name, unless it seems to call one; and who names
an overloaded function may mean any of its overloads.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence

from cpplm.corpus.slicing.resolving import Names
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import IDENTIFIER, names_in
from cpplm.cpp.segments import Scope
from cpplm.cpp.standard_headers import KEYWORDS

_ENUM = re.compile(rb"\benum\b")
_MACRO_CALL = re.compile(rb"^(\w+)\s*\(([^{]*)", re.MULTILINE)
_KEYWORDS = frozenset(word.encode() for word in KEYWORDS)
_CALLABLE = (ItemKind.FUNCTION, ItemKind.PROTOTYPE)


class Declarations:
    """What the items of a unit declare, one after the other in source order."""

    def __init__(self, items: Sequence[Item], names: Names) -> None:
        self._items = items
        self._names = names
        self._latest: dict[bytes, int] = {}
        self._overloads: dict[
            bytes, list[int]
        ] = {}  # where the latest is a function: all since the last type
        self._members: dict[bytes, list[int]] = defaultdict(list)  # class to its functions defined outside it
        self._calls: dict[bytes, list[int]] = defaultdict(list)  # of macros, by their first argument

    def add(self, index: int) -> tuple[set[int], set[int]]:
        """The earlier items that the next one stays after, and those of them that it needs."""
        item = self._items[index]
        again = self._defined_before(index)
        own = self._only_declared(index)
        arguments = _arguments(item)
        ordered, needed = self._mentioned(index, again, own)
        # TYPED_TEST(Suite, ...) needs TYPED_TEST_SUITE(Suite, ...)
        needed.update(call for name in arguments for call in self._calls.get(name, ()))
        if item.kind == ItemKind.CALL and arguments:
            self._calls[arguments[0]].append(index)
        for name in self._names.declared[index]:
            if name not in again:
                if name in self._latest:
                    ordered.add(self._latest[name])
                    if name not in own or name not in self._overloads:
                        needed.add(self._latest[name])
                self._declare(name, index)
        if item.qualifier:
            self._members[item.qualifier].append(index)
            if item.body_required:  # a constexpr or auto member is needed before its first use
                self._latest.update(dict.fromkeys(self._names.callables[index], index))
        scopes = (names_in(frame.opener) for frame in item.stack if isinstance(frame, Scope))
        for name in itertools.chain(arguments, *scopes):  # if nothing else declares it
            self._latest.setdefault(name, index)
        needed.discard(index)
        return (ordered | needed) - {index}, needed

    def _mentioned(self, index: int, again: set[bytes], own: set[bytes]) -> tuple[set[int], set[int]]:
        """What an item stays after and needs for what it mentions."""
        mentioned = self._names.mentioned[index]
        known = self._latest.keys() & (mentioned - again if again else mentioned)
        ordered = {self._latest[name] for name in known}
        needed: set[int] = set()
        for name in known - own if own else known:
            needed.update(self._overloads.get(name) or (self._latest[name],))
        if self._items[index].kind in (ItemKind.OTHER, ItemKind.CALL):  # an explicit instantiation
            needed.update(
                itertools.chain(*(self._members[name] for name in self._members.keys() & mentioned))
            )
        return ordered, needed

    def _declare(self, name: bytes, index: int) -> None:
        self._latest[name] = index
        if self._items[index].kind in _CALLABLE:
            self._overloads.setdefault(name, []).append(index)
        else:
            self._overloads.pop(name, None)

    def _defined_before(self, index: int) -> set[bytes]:
        """The classes that an item declares ahead though they stand in full before it."""
        item = self._items[index]
        if item.kind != ItemKind.FORWARD or _ENUM.search(item.text):
            return set()
        names = [name for name in self._names.declared[index] if name in self._latest]
        earlier = {name: self._items[self._latest[name]] for name in names}
        return {
            name
            for name, other in earlier.items()
            if other.kind == ItemKind.TYPE and other.stack == item.stack
        }

    def _only_declared(self, index: int) -> set[bytes]:
        """The names of a function that its text does not seem to use for another one of that name."""
        item = self._items[index]
        if item.kind not in _CALLABLE:
            return set()
        names = self._names.declared[index]
        if item.kind == ItemKind.PROTOTYPE:
            return set(names)
        return {name for name in names if item.text.count(name.partition(b"#")[0]) < 2}


def _arguments(item: Item) -> list[bytes]:
    """The names given to a macro that stands for a declaration: `MATCHER(IsEven, "") { ... }`."""
    if item.kind == ItemKind.CALL or (item.kind == ItemKind.FUNCTION and item.function_name.isupper()):
        found = _MACRO_CALL.search(item.text)
        if found and found.group(1) == (item.function_name or found.group(1)):
            return [name for name in IDENTIFIER.findall(found.group(2)) if name not in _KEYWORDS]
    return []
