"""What libclang understood, as the closure and the order of a unit ask for it: item by item.

A name of an item is `resolved` where libclang knows what it means wherever the item mentions it, so that of
all items that declare such a name only those of that meaning count. What it did not see is left to matching
by name: branches that are not compiled, macros, `using` declarations (a name behind one means what they
lead to, but they have to be there), and items that have the text of another file in them.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from cpplm.corpus.clang.redeclarations import Target
from cpplm.corpus.clang.references import Semantics
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import IDENTIFIER
from cpplm.cpp.segments import Condition, Scope

# Names in these are matched as text: by the preprocessor, or since libclang reads only part of them.
_UNRESOLVED = frozenset(
    {ItemKind.COMMENT, ItemKind.INCLUDE, ItemKind.MACRO, ItemKind.PRAGMA, ItemKind.REGION}
)
Meanings = Mapping[bytes, frozenset[Target]]
_Lines = tuple[int, int, int]  # number of a file, first and last line
_NOTHING: Meanings = {}


@dataclass(frozen=True)
class Names:
    """What each item of a unit declares, what it may be called by, and what it mentions and reaches for."""

    declared: Sequence[Sequence[bytes]]
    callables: Sequence[Sequence[bytes]]
    mentioned: Sequence[frozenset[bytes]]
    accessed: Sequence[frozenset[bytes]]


def plain_names(items: Sequence[Item], mentions: Sequence[frozenset[bytes]]) -> Names:
    """Names as they are written; `mentions` are those of the items."""
    callables = [(item.function_name,) if item.function_name else () for item in items]
    return Names([item.names for item in items], callables, mentions, [item.accesses for item in items])


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
        key = (item.file, item.line, item.last_line)
        found = self._declarations.get(key)
        if found is None:
            found = self._declarations[key] = self._semantics.declarations(self._names[key[0]], *key[1:])
        return found.get(name)

    def names(self, items: Sequence[Item], mentions: Sequence[frozenset[bytes]]) -> Names:
        """As `plain_names`, but what one name stands for in different items is told apart by a number.

        An item of unknown meaning declares every numbered form of its names, and one that was not understood
        mentions all of them; so edges are lost only between items that are known to be different things.
        """
        forms: dict[bytes, dict[frozenset[Target], bytes]] = defaultdict(dict)
        for item in items:
            for name in {*item.names, item.function_name}:
                declared = self.declared(item, name)
                if declared is not None:
                    forms[name].setdefault(declared, b"%s#%d" % (name, len(forms[name])))

        def declares(item: Item, name: bytes) -> list[bytes]:
            declared = self.declared(item, name)
            found = [
                form
                for meaning, form in forms.get(name, {}).items()
                if declared is None or not declared.isdisjoint(meaning)
            ]
            return found if declared is not None else [name, *found]

        def mentioned(names: Iterable[bytes], resolved: Meanings) -> frozenset[bytes]:
            found = set(names)
            for name in forms.keys() & found:
                targets = resolved.get(name)
                found.update(
                    form
                    for meaning, form in forms[name].items()
                    if targets is None or not targets.isdisjoint(meaning)
                )
            return frozenset(found)

        among = {item.file for item in items}
        resolved = [self.resolved(item, among) for item in items]
        accesses = [item.accesses for item in items]
        return Names(
            [[form for name in item.names for form in declares(item, name)] for item in items],
            [declares(item, item.function_name) if item.function_name else [] for item in items],
            [mentioned(names, meanings) for names, meanings in zip(mentions, resolved, strict=True)],
            [mentioned(names, meanings) for names, meanings in zip(accesses, resolved, strict=True)],
        )

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


__all__ = ["Names", "Resolver", "plain_names"]
