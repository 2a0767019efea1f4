"""The compiler's view of a unit: the text that it reads, and what its items refer to.

A name of an item counts as understood where the compiler met it there; then it means what the compiler says
and nothing else. Other names, such as those in branches and macros that are not compiled, mean whatever is
declared by them.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from typing_extensions import override

from cpplm.corpus.slicing.expansion import Expansion, Place
from cpplm.corpus.slicing.lookup import Candidates, NameLookup
from cpplm.corpus.slicing.project_index import Key, ParsedFile
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import inner_first

T = TypeVar("T")
Line = tuple[str, int]  # a file of the project, and a line in it from 0


class Entity(NamedTuple):
    """Something declared: its name, and the places of declarations and definition in the project."""

    name: bytes
    places: tuple[Line, ...]


@dataclass(frozen=True)
class UnitReferences:
    """One parsed unit.

    Attributes:
        skipped: for each file that was read the lines of the directives around what is left out.
        references: by file, sorted: a line, the number of an entity that it declares or mentions, and whether
            that is a type that has to be complete: 1 for a member, 2 for an expression.
        entities: what is declared.
        left_open: by file: a line and a name in it that a template's arguments decide on.
        errors: by file: lines with an error.
        sound: there is no error in the unit.
    """

    skipped: Mapping[str, Sequence[tuple[int, int]]]
    references: Mapping[str, Sequence[tuple[int, tuple[int, int]]]]
    entities: Sequence[Entity]
    left_open: Mapping[str, Sequence[tuple[int, bytes]]]
    errors: Mapping[str, frozenset[int]]
    sound: bool

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any], names: Sequence[str]) -> UnitReferences:
        """Of what `cpplm.corpus.clang.worker` writes, and the names of its files."""
        references: dict[str, list[tuple[int, tuple[int, int]]]] = defaultdict(list)
        for file, line, entity, complete in answer["references"]:
            references[names[file]].append((line, (entity, complete)))
        left_open: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for file, line, name in answer["open"]:
            left_open[names[file]].append((line, name.encode("utf-8", "surrogateescape")))
        errors: dict[str, set[int]] = defaultdict(set)
        for file, line in answer["errors"]:
            errors[names[file] if file >= 0 else ""].add(line)
        entities = [
            Entity(
                name.encode("utf-8", "surrogateescape"), tuple((names[file], line) for file, line in places)
            )
            for name, places in answer["entities"]
        ]
        return cls(
            {names[int(file)]: [(a, b) for a, b in spans] for file, spans in answer["skipped"].items()},
            references,
            entities,
            left_open,
            {name: frozenset(lines) for name, lines in errors.items()},
            sound=not answer["error"],
        )

    def decided(self, file: ParsedFile) -> dict[tuple[int, int], bool]:
        """For each branch (offset of its `#if`, its number) of a file whether it is read."""
        found: dict[tuple[int, int], bool] = {}
        spans = self.skipped.get(file.name)
        if spans is None or file.splices:  # what was put into it has no lines of its own
            return found
        starts = [start for start, _ in spans]
        ends = [match.start() for match in re.finditer(b"\n", file.data)]
        for group in inner_first(file.parsed.lexed.groups):
            lines = [bisect.bisect_left(ends, each.start) for each in group.directives]
            for number, (first, last) in enumerate(itertools.pairwise(lines)):
                before = bisect.bisect_right(starts, first) - 1
                found[group.start, number] = before < 0 or spans[before][1] < last
        return found


# Of the name of a file and the macros defined for it to what a compiler says of it; None where it fails.
Parse = Callable[[str, Sequence[bytes]], UnitReferences | None]


class _Meaning(NamedTuple):
    """The declarations that one item refers to.

    `understood`: names that mean nothing but what is in `places`; `complete`: names of types of which a
    declaration is not enough, for its expressions or its members; `members`: for its members; `places`: of
    what the item refers to, by name, in order.
    """

    understood: Set[bytes] = frozenset()
    complete: Set[bytes] = frozenset()
    members: Set[bytes] = frozenset()
    places: Sequence[tuple[bytes, list[Place]]] = ()


class ReferenceLookup(NameLookup):
    """Looks up as a compiler does, where it understood the text."""

    def __init__(self, expansion: Expansion, references: UnitReferences) -> None:
        """Nothing is looked up yet."""
        super().__init__(expansion)
        self._references = references
        self._meanings: dict[Key, _Meaning] = {}

    @override
    def complete(self, place: Place, item: Item) -> Set[bytes]:
        meaning = self._meaning(place)
        return meaning.complete if self._is_whole(place, item) else meaning.members

    @override
    def _look_up(self, place: Place, item: Item) -> list[Candidates]:
        meaning = self._meaning(place)
        found: list[Candidates] = []
        for each in super()._look_up(place, item):
            if each.name not in meaning.understood:
                found.append(each)
            elif places := [one for one in each.places if not self._rules_out(one)]:
                found.append(each._replace(places=places, exact=True))
        rank = self.expansion.rank(place)
        is_whole = self._is_whole(place, item)
        for name, places in meaning.places:
            if is_whole or name in item.mentions or name in item.accesses:
                count = self._rank(places).visible(rank)
                visible = [each for each in places[:count] if each != place]
                found.append(Candidates(name, name, visible, exact=True))
        return found

    def _is_whole(self, place: Place, item: Item) -> bool:
        """True if no body of an item was left out."""
        return item.mentions == self.expansion.item(place).mentions

    def _rules_out(self, place: Place) -> bool:
        """True if what stands at a place cannot be meant by a name that was understood otherwise.

        Not so in files that the compiler did not read, and for what it looks through.
        """
        file = self.expansion.visits[place[0]].file
        read = file.name in self._references.skipped and not file.splices
        return read and self.expansion.item(place).kind not in (ItemKind.MACRO, ItemKind.USING)

    def _meaning(self, place: Place) -> _Meaning:
        key = self.expansion.key(place)
        if key not in self._meanings:
            self._meanings[key] = self._meaning_of(key)
        return self._meanings[key]

    def _meaning_of(self, key: Key) -> _Meaning:
        references = self._references
        file = self.expansion.index.names[key[0]]
        item = self.expansion.index.item(key)
        lines = range(item.line, item.last_line + 1)
        if item.kind == ItemKind.MACRO or self.expansion.index.read(file).splices:
            return _Meaning()
        met = [each for _, each in _between(references.references.get(file, ()), lines)]
        left_open = {name for _, name in _between(references.left_open.get(file, ()), lines)}
        understood: set[bytes] = set()
        found: list[tuple[bytes, list[Place]]] = []
        for entity in (references.entities[number] for number in sorted({number for number, _ in met})):
            places = {place for line in entity.places for place in self._at(line)}
            # In a unit with errors what seems to lie elsewhere may be another guess.
            if not places and (entity.places or not references.sound):
                left_open.add(entity.name)
                continue
            understood.add(entity.name)
            places = {place for place in places if not self._is_member_definition(place)}
            if any(self.expansion.key(place) != key for place in places):
                found.append((entity.name, sorted(places, key=self.expansion.rank)))
        if not references.errors.get(file, frozenset()).isdisjoint(lines):
            understood.clear()
        complete = frozenset(references.entities[number].name for number, holder in met if holder)
        members = frozenset(references.entities[number].name for number, holder in met if holder == 1)
        return _Meaning(understood - left_open, complete, members, found)

    def _is_member_definition(self, place: Place) -> bool:
        item = self.expansion.item(place)
        return item.kind == ItemKind.FUNCTION and bool(item.qualifier) and not item.body_required

    def _at(self, line: Line) -> list[Place]:
        """The places of the items of the expansion that stand on a line."""
        number = self.expansion.index.number.get(line[0], -1)
        if number not in self.expansion.by_file:
            return []
        file = self.expansion.index.read(line[0])
        items = file.items if not file.splices else []
        first = last = bisect.bisect_right(items, line[1], key=lambda item: item.line)
        while first and items[first - 1].last_line >= line[1]:
            first -= 1
        return [place for item in range(first, last) for place in self.expansion.places((number, item))]


def _between(found: Sequence[tuple[int, T]], lines: range) -> Sequence[tuple[int, T]]:
    """Those of sorted pairs whose line is one of these."""
    first = bisect.bisect_left(found, lines.start, key=lambda each: each[0])
    return found[first : bisect.bisect_left(found, lines.stop, key=lambda each: each[0])]
