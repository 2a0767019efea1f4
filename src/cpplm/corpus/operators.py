"""Free operators of a unit: used by their symbol, without their name.

Any text that contains the symbol may use one, so it stays after it. That it is needed, too, is believed of
an item that names one of the operand types, or that needs all of them: `EXPECT_EQ(a, b)` prints `a`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cpplm.corpus.items import Item, Kind
from cpplm.corpus.lexing import IDENTIFIER

_OPERANDS = re.compile(rb"\boperator\b[^\w(]*\w*\s*\(([^{;]*)")
_TYPES = (Kind.TYPE, Kind.FORWARD, Kind.ALIAS)


class Operator(NamedTuple):
    """Which item declares an operator, and the types of the unit that its operands name."""

    item: int
    types: frozenset[bytes]


class Operators:
    """The free operators among items in source order."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._by_symbol: dict[bytes, list[Operator]] = {}
        self._by_operands: list[tuple[int, list[int]]] = []  # each operand type as the bits of its items
        names = [tuple(name for name in item.names if name.startswith(b"operator")) for item in items]
        if not any(names):
            return
        types: dict[bytes, int] = {}
        for index, item in enumerate(items):
            for name in item.names if item.kind in _TYPES else ():
                types[name] = types.get(name, 0) | 1 << index
        for index, declared in enumerate(names):
            if not declared:
                continue
            operator = Operator(index, frozenset(_operands(items[index]) & types.keys()))
            if operator.types:
                self._by_operands.append((index, [types[name] for name in operator.types]))
            for name in declared:
                if not name.endswith((b"()", b"[]")):
                    symbol = name.removeprefix(b"operator").lstrip(b'"')
                    self._by_symbol.setdefault(symbol, []).append(operator)

    def before(self, index: int, text: bytes) -> Iterator[Operator]:
        """Those declared before an item whose symbol its text contains."""
        for symbol, found in self._by_symbol.items():
            if found[0].item < index and symbol in text:
                yield from (operator for operator in found if operator.item < index)

    def of(self, needed: int) -> Iterator[int]:
        """Those all of whose operand types are among these items, given as bits."""
        for index, types in self._by_operands:
            if all(needed & bits for bits in types):
                yield index


def _operands(item: Item) -> frozenset[bytes]:
    """The names in the parameters of an operator; of what declares more than that, all."""
    found = _OPERANDS.search(item.text) if item.kind in (Kind.FUNCTION, Kind.PROTOTYPE) else None
    return frozenset(IDENTIFIER.findall(found.group(1))) if found else item.mentions
