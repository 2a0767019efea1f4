"""Declarations of one thing, linked over all of a project's translation units.

Units see different declarations: a function's prototype in one, its definition in another, a class declared
ahead in a third. Places that any unit links are linked for all, and so is what has external linkage and
the same USR (libclang's name for an entity across units). Otherwise a reference could rule out the one
declaration of its target that its own file can see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from cpplm.corpus.clang.protocol import ParseResult

Target = tuple[str, int]
"""A file of the project and a line in it, counted from 0."""

_Place = tuple[str, int, int]  # name of what is declared, number of the file, line


class Redeclarations:
    """Disjoint sets of places (Tarjan 1975), each with the name that is declared there."""

    def __init__(self, answers: Sequence[ParseResult], files: Sequence[str]) -> None:
        """Link all places.

        Args:
            answers: of the workers, in a fixed order.
            files: names of the project's files by their numbers.
        """
        self._files = files
        self._parents: dict[_Place, _Place] = {}
        self._defined: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for answer in answers:
            for usr, number, line in answer["definitions"]:
                self._defined[usr].append((number, line))
        for answer in answers:
            for places in self._places(answer):
                for place in places:
                    self._join(places[0], place)
        members: dict[_Place, set[Target]] = defaultdict(set)
        for place in self._parents:
            members[self._root(place)].add((files[place[1]], place[2]))
        self._members = {root: frozenset(sorted(targets)) for root, targets in members.items()}

    def targets(self, answer: ParseResult) -> list[frozenset[Target]]:
        """For each entity of an answer, where the project declares and defines it; empty: nowhere."""
        none: frozenset[Target] = frozenset()
        return [self._members[self._root(places[0])] if places else none for places in self._places(answer)]

    def _places(self, answer: ParseResult) -> Iterator[list[_Place]]:
        """The places of each entity of an answer, definitions in other units among them."""
        names: dict[int, str] = {}
        for flat in answer["references"].values():
            for name, entity in zip(flat[1::3], flat[2::3], strict=True):
                names.setdefault(entity, answer["names"][name])
        for entity, (usr, *flat) in enumerate(answer["entities"]):
            pairs = [*zip(flat[::2], flat[1::2], strict=True), *self._defined.get(usr, ())]
            yield [(names.get(entity, ""), number, line) for number, line in pairs]

    def _root(self, place: _Place) -> _Place:
        parents = self._parents
        while (parent := parents.setdefault(place, place)) != place:
            parents[place] = place = parents[parent]
        return place

    def _join(self, one: _Place, two: _Place) -> None:
        first, second = self._root(one), self._root(two)
        if first != second:
            self._parents[max(first, second)] = min(first, second)


__all__ = ["Redeclarations", "Target"]
