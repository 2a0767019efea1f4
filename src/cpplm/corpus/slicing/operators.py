"""Free operators of a unit: used by their symbol, without their name.

Any text that contains the symbol may use one, so it stays after it. That it is needed, too, is believed of
an item that names one of the operand types, or that needs all of them: `EXPECT_EQ(a, b)` prints `a`.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import IDENTIFIER

_OPERANDS = re.compile(rb"\boperator\b[^\w(]*\w*\s*\(([^{;]*)")
_TYPES = (ItemKind.TYPE, ItemKind.FORWARD, ItemKind.ALIAS)


class Operators:
    """The free operators among items in source order."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._by_symbol: dict[bytes, list[int]] = defaultdict(list)
        self._by_type: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)  # with their symbols
        self._of_no_type: list[tuple[int, bytes]] = []
        self._operands: list[tuple[int, list[int]]] = []  # each operand type as the bits of its items
        declared = [(index, name) for index, item in enumerate(items) for name in item.names]
        found = [(index, name) for index, name in declared if name.startswith(b"operator")]
        if not found:
            return
        types: dict[bytes, int] = {}
        for index, name in declared:
            if items[index].kind in _TYPES:
                types[name] = types.get(name, 0) | 1 << index
        for index, name in found:
            if name.endswith((b"()", b"[]")):
                continue
            symbol = name.removeprefix(b"operator")
            operands = _operands(items[index]) & types.keys()
            self._by_symbol[symbol].append(index)
            for operand in operands:
                self._by_type[operand].append((index, symbol))
            if operands:
                self._operands.append((index, [types[operand] for operand in operands]))
            else:
                self._of_no_type.append((index, symbol))

    def before(self, index: int, text: bytes, mentions: Set[bytes]) -> tuple[set[int], set[int]]:
        """The last earlier operator of each symbol in an item's text, and all that the item needs."""
        last: set[int] = set()
        for symbol, found in self._by_symbol.items():
            if found[0] < index and symbol in text:
                last.add(found[bisect.bisect_left(found, index) - 1])
        if not last:
            return last, last
        near = [self._of_no_type, *(self._by_type[name] for name in self._by_type.keys() & mentions)]
        return last, {other for each in near for other, symbol in each if other < index and symbol in text}

    def of(self, needed: int) -> Iterator[int]:
        """Those all of whose operand types are among these items, given as bits."""
        for index, types in self._operands:
            if all(needed & bits for bits in types):
                yield index


def _operands(item: Item) -> frozenset[bytes]:
    """The names in the parameters of an operator; of what declares more than that, all."""
    found = _OPERANDS.search(item.text) if item.kind in (ItemKind.FUNCTION, ItemKind.PROTOTYPE) else None
    return frozenset(IDENTIFIER.findall(found.group(1))) if found else item.mentions
