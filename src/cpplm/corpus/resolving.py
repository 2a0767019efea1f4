"""What libclang understood, as the closure and the order of a unit ask for it: item by item.

A name of an item is `resolved` where libclang knows what it means wherever the item mentions it, so that of
all items that declare such a name only those of that meaning count. What it did not see is left to matching
by name: branches that are not compiled, macros, `using` declarations (a name behind one means what they
lead to, but they have to be there), and items that have the text of another file in them.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence, Set

from cpplm.corpus.items import Item, Kind
from cpplm.corpus.lexing import IDENTIFIER
from cpplm.corpus.pieces import Condition, Scope
from cpplm.corpus.redeclarations import Target
from cpplm.corpus.semantic import Semantics

# Names in these are matched as text: by the preprocessor, or since libclang reads only part of them.
_UNRESOLVED = frozenset({Kind.COMMENT, Kind.INCLUDE, Kind.MACRO, Kind.PRAGMA, Kind.REGION})
# What libclang sees as one declaration per name; the others may stand for something else.
_RESOLVABLE = frozenset({Kind.FORWARD, Kind.TYPE, Kind.ALIAS, Kind.VARIABLE, Kind.PROTOTYPE, Kind.FUNCTION})
Meanings = Mapping[bytes, frozenset[Target]]
_Lines = tuple[int, int, int]  # number of a file, first and last line
_NOTHING: Meanings = {}


class Resolver:
    """Answers for the items of one project; those of files without semantics are not resolved."""

    def __init__(self, semantics: Semantics, names: Sequence[str], cuts: Mapping[str, Sequence[int]]) -> None:
        """Nothing is read yet.

        Args:
            semantics: of all files that will be asked about.
            names: of the project's files, in the order in which `Item.file` counts them.
            cuts: the lines of each file at which it includes another one of the project.
        """
        self._semantics = semantics
        self._names = names
        self._cuts = cuts
        self._numbers = {name: number for number, name in enumerate(names)}
        self._meanings: dict[_Lines, Meanings] = {}
        self._declarations: dict[_Lines, Meanings] = {}

    def resolved(self, item: Item, among: Set[int]) -> dict[bytes, frozenset[Target]]:
        """The names in an item whose meaning is known: where that is declared; nowhere: outside the project.

        Args:
            item: of the project.
            among: numbers of the files that the item's unit sees. What lies elsewhere was understood in
                another unit, which included other things before the item: it is not believed.
        """
        if item.kind in _UNRESOLVED:
            return {}
        key = (item.file, item.line, item.last_line)
        found = self._meanings.get(key)
        if found is None:
            found = self._meanings[key] = self._meanings_of(*key)
        around = _names_around(item) if found else set()
        return {
            name: targets
            for name, targets in found.items()
            if name not in around
            and (not targets or any(self._numbers[file] in among for file, _ in targets))
        }

    def admits(self, item: Item, name: bytes, targets: frozenset[Target]) -> bool:
        """Whether an item that declares a name may be what is meant by it; True also where nobody knows."""
        declared = self.declared(item, name)
        return declared is None or not declared.isdisjoint(targets)

    def declared(self, item: Item, name: bytes) -> frozenset[Target] | None:
        """All places that declare what the item declares by a name; None where that is not known."""
        if item.kind not in _RESOLVABLE:
            return None
        key = (item.file, item.line, item.last_line)
        found = self._declarations.get(key)
        if found is None:
            found = self._declarations[key] = self._semantics.declarations(self._names[key[0]], *key[1:])
        return found.get(name)

    def _meanings_of(self, file: int, line: int, last_line: int) -> Meanings:
        name = self._names[file]
        cuts = self._cuts[name]
        if bisect.bisect_left(cuts, line) < bisect.bisect_right(cuts, last_line):
            return _NOTHING
        return self._semantics.targets(name, line, last_line)


def _names_around(item: Item) -> set[bytes]:
    """The names of scopes and in conditions: they do not stand on the item's own lines."""
    lines: list[bytes] = []
    for frame in item.stack:
        if isinstance(frame, Condition):
            lines += frame.lines
        elif isinstance(frame, Scope):
            lines.append(frame.opener)
    return {name for line in lines for name in IDENTIFIER.findall(line)}


__all__ = ["Resolver"]
