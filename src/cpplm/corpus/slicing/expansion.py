"""The order in which a compiler meets the files of a unit: its includes expanded, its `#if`s decided.

Nothing is copied: an expansion lists visits of files, and for each visit what of it is read. A place in it is
a pair (visit, item); places are compared by `Expansion.rank`.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cpplm.corpus.ingest.discovery import is_template
from cpplm.corpus.slicing.branches import (
    Branches,
    BuildMacros,
    Conditions,
    choose_header,
    decide_conditions,
    is_one_group,
    nested_directives,
    without_directives,
    written_includes,
)
from cpplm.corpus.slicing.build_headers import include_target
from cpplm.corpus.slicing.project_index import Key, ParsedFile, ProjectIndex
from cpplm.cpp.conditions import IF_DEFINED, UNKNOWN, Macro, MacroState, parse_define
from cpplm.cpp.file_suffixes import is_source
from cpplm.cpp.items import Item, ItemKind, conditions_in
from cpplm.cpp.lexer import INCLUDE_KEYWORDS, Directive
from cpplm.cpp.segments import Condition, Frame

_DEEPEST, _MOST_VISITS, _MOST_VISITS_OF_A_FILE = 200, 20_000, 64  # the first as g++ has it
_DEFINITIONS = (b"define", b"undef")
_STATEMENTS = (b"define", b"undef", b"pragma", b"error")  # no conditions, no includes
Place = tuple[int, int]  # number of a visit, number of an item in its file
Decided = Callable[[ParsedFile], Branches]
Rank = int  # of a place in the order of the compiler
_STRETCH = 1 << 32  # more than a file has items


@dataclass
class Visit:
    """One reading of a file.

    Attributes:
        file: what is read.
        own: the documents are made for this file; nothing of it is left out.
        frames: the scopes and undecided conditions around the include that led here.
        live: for items that the preprocessor decides on whether they are read; None where that is unknown.
        cuts: the numbers of the items before which another file is read.
        ranks: where the stretches between the cuts stand in the expansion.
        gone: for includes that are replaced or dropped the text that is left of the item.
        external: the includes of an item that are read and lead out of the project.
    """

    file: ParsedFile
    own: bool
    frames: tuple[Frame, ...]
    live: dict[int, bool | None] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    gone: dict[int, bytes] = field(default_factory=dict)
    external: dict[int, bytes] = field(default_factory=dict)
    early: set[int] = field(default_factory=set)  # items of which only what precedes another file is left
    decided: set[int] = field(default_factory=set)  # ids of the conditions that hold
    _stacks: dict[int, tuple[Frame, ...]] = field(default_factory=dict)  # by identity of items' stacks

    @functools.cached_property
    def is_conditional(self) -> bool:
        """True if the include that led here stands in a branch that may not be read."""
        return bool(conditions_in(self.frames))

    def is_read(self, number: int) -> bool:
        """True if an item is read, or may be, and something of it is left."""
        return self.live.get(number, True) is not False and self.gone.get(number, b" ") != b""

    def stack(self, number: int) -> tuple[Frame, ...]:
        """The scopes and conditions around an item as it is to be written."""
        written = self.file.items[number].stack
        stack = self._stacks.get(id(written))
        if stack is None:
            decided = self.decided if not self.own else ()
            left = tuple(frame for frame in written if id(frame) not in decided)
            stack = self._stacks[id(written)] = self.frames + left
        return stack


def main_file(names: Sequence[str]) -> str:
    """The last source of files that are read one after the other, else the last."""
    return next(filter(is_source, reversed(names)), names[-1])


@dataclass
class Expansion:
    """A unit as a compiler reads it."""

    index: ProjectIndex
    own: Collection[str]
    visits: list[Visit] = field(default_factory=list)
    by_file: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    defined: list[bytes] = field(default_factory=list)  # macros that the files demand of a build
    dropped: list[str] = field(default_factory=list)  # includes of headers that a build writes
    roots: Sequence[str] = ()  # the files that are read for themselves
    _next_rank: int = 0

    def rank(self, place: Place) -> Rank:
        """Sorts places in the order of the compiler."""
        visit = self.visits[place[0]]
        find = bisect.bisect_left if place[1] in visit.early else bisect.bisect_right
        return visit.ranks[find(visit.cuts, place[1])] + place[1]

    def item(self, place: Place) -> Item:
        """The item at a place."""
        return self.visits[place[0]].file.items[place[1]]

    def key(self, place: Place) -> Key:
        """The key of the item at a place: the same in every visit of its file."""
        return self.visits[place[0]].file.number, place[1]

    def bare(self, number: int) -> Expansion:
        """The file of one visit alone, with its includes as they are."""
        visit = Visit(self.visits[number].file, own=True, frames=(), ranks=[0])
        return Expansion(self.index, self.own, [visit])

    def declaring(self, name: bytes) -> list[Place]:
        """The places that declare a name, in no order."""
        keys = self.index.declared.find(name, self.by_file)
        return [place for key in keys for place in self.places(key)]

    def places(self, key: Key) -> list[Place]:
        """The places of an item that is read, in every visit of its file."""
        numbers = self.by_file.get(key[0], ())
        return [(number, key[1]) for number in numbers if self.visits[number].is_read(key[1])]


class _Around(NamedTuple):
    """The state of the branches around all items of a visit that have the same stack."""

    live: bool | None  # whether they are read
    conditional: bool  # conditions are in the stack
    of_likely: Conditions | None  # where they are likely to be read
    frames: tuple[Frame, ...]  # around the files that they include


class Expander:
    """Reads one unit as the preprocessor would."""

    def __init__(
        self,
        index: ProjectIndex,
        own: Collection[str],
        decided: Decided | None = None,
        defined: Iterable[bytes] = (),
        *,
        closed_world: bool = False,
    ) -> None:
        """Begin with nothing read.

        Args:
            index: of the project.
            own: the names of the unit's files.
            decided: which branches of a file a compiler reads when it meets the file first.
            defined: macros that are.
            closed_world: read borrowed files as if nothing were defined but what may be by what is read.
        """
        self._closed_world = closed_world
        self._index = index
        self._own = own
        self._decided = decided
        self._defined = {*defined, *index.command_line}
        self._demanded: set[bytes] = set()
        self._refused: set[bytes] = set()  # other choices than those that are demanded
        self._may_differ = decided is not None or closed_world  # other units may read something else

    def expand(self, names: Sequence[str]) -> Expansion:
        """Read these files one after the other, with the macros defined that they cannot be read without."""
        key = (tuple(names), frozenset(self._defined))
        if self._decided is None and not self._closed_world:
            self._defined, self._refused = map(set, self._index.demands.get(key, (self._defined, ())))
        while True:
            begun = frozenset(self._defined), frozenset(self._refused)
            root = main_file(names)
            self._state = MacroState(self._index.macros.names, is_c=self._index.read(root).language == "c")
            self._state.macros.update(dict.fromkeys(self._refused))
            self._state.macros.update({name: Macro(self._index.definition(name)) for name in self._defined})
            self._likely = replace(self._state, closed=True, macros=dict(self._state.macros))
            self._expansion = Expansion(self._index, self._own, defined=sorted(self._defined), roots=names)
            # Of files the conditions under which they have been read; none where that is likely.
            self._read: dict[str, list[Set[Frame]]] = defaultdict(list)
            self._open: set[str] = set()  # the unit's own files that are being read
            for name in names:
                self._visit(name, (), 0)
            if self._demanded <= self._defined:
                if not self._may_differ:
                    self._index.demands[key] = begun
                return self._expansion
            self._defined |= self._demanded

    def _visit(self, name: str, frames: tuple[Frame, ...], depth: int, *, likely: bool = True) -> None:
        """Read a file; `likely` if it is read where all that the project leaves open is not defined."""
        file = self._index.read(name)
        expansion = self._expansion
        guard = file.parsed.lexed.guard if file.parsed.sound else b""
        before = len(expansion.by_file.get(file.number, ()))  # so often it was read
        is_own = name in expansion.own
        if (
            (file.once and any(each <= set(frames) for each in self._read[name]))
            or depth > _DEEPEST
            or len(expansion.visits) > _MOST_VISITS
            or before > _MOST_VISITS_OF_A_FILE
            or (guard and not before and not is_own and self._is_defined(guard))  # a copy of it was read
        ):
            return
        states = [self._state, self._likely] if likely else [self._state]
        for state in states if guard else ():
            state.macros[guard] = Macro(b"")
        if guard and conditions_in(frames):  # it may not be read here
            self._state.macros[guard] = UNKNOWN
        self._read[name].append(set(conditions_in(frames)) if not likely else set())
        visit = Visit(file, is_own and not before, frames)
        expansion.by_file[file.number].append(len(expansion.visits))
        expansion.visits.append(visit)
        self._stretch(visit)
        visit.external.update(file.external)
        if not visit.own:
            visit.gone.update(file.external)
        branches = self._decided(file) if self._decided is not None and not before else {}
        state = replace(self._state, closed=True) if self._closed_world and not visit.own else self._state
        conditions = decide_conditions(file, state, branches, self._index.includes)
        of_likely = decide_conditions(file, self._likely, branches, self._index.includes)
        known: dict[int, _Around] = {}  # by identity of items' stacks
        self._open.update([name] if visit.own else [])
        for number in file.events:
            item = file.items[number]
            around = known.get(id(item.stack)) if number not in file.guards else None
            if around is None:
                stack = conditions_in(item.stack)
                stacks = [*file.guards.get(number, ()), *stack]
                live = conditions.live(stacks)
                is_likely = likely and of_likely.live(stacks) is True
                visit.decided.update(id(frame) for frame in stack if conditions.live([frame]))
                left = tuple(frame for frame in item.stack if id(frame) not in visit.decided)
                around = _Around(live, bool(stack), of_likely if is_likely else None, frames + left)
                if number not in file.guards:
                    known[id(item.stack)] = around
            if around.live is not True or around.conditional:
                visit.live[number] = around.live
            if around.live is not False and item.directives:
                self._directives(visit, number, item, depth, conditions, around)
        self._open.discard(name)
        for guard in {frame.lines[0] for guards in file.guards.values() for frame in guards}:
            for state in states[visit.is_conditional :]:  # there it may be read again
                state.macros[guard.split()[-1]] = Macro(b"")  # from now on that part is not read

    def _demand(self, frames: Sequence[Frame], file: ParsedFile) -> None:
        """Have a macro defined without which these branches are read, sooner one of an inner condition."""
        macros = BuildMacros(file, self._state, self._likely, self._index.definition)
        for condition in reversed(conditions_in(tuple(frames))):
            name = macros.avoiding(condition)
            if name is not None:
                alone = map(IF_DEFINED.fullmatch, condition.lines)
                self._refused.update({each.group(1) for each in alone if each} - {name})
                self._demanded.add(name)
                return

    def _stretch(self, visit: Visit) -> None:
        visit.ranks.append(self._expansion._next_rank)
        self._expansion._next_rank += _STRETCH

    def _directives(
        self, visit: Visit, number: int, item: Item, depth: int, conditions: Conditions, around: _Around
    ) -> None:
        """Carry out the directives of an item that is read, or may be."""
        frames, of_likely = around.frames, around.of_likely
        is_conditional = bool(conditions_in(frames))
        if len(item.directives) == 1 and item.directives[0].keyword in _DEFINITIONS:  # no branch, no include
            self._define(item.directives[0], unknown=is_conditional, likely=of_likely is not None)
            return
        removed: list[Directive] = []
        last = -1  # of those that are left
        external: list[tuple[tuple[Condition, ...], bytes]] = []
        made = {d.macro for d in item.directives if d.keyword == b"define"}  # `#define F "a.c"`, `#include F`
        is_region = not visit.own and item.kind == ItemKind.REGION and is_one_group(item)
        is_dead = is_region or (not visit.own and item.kind == ItemKind.MACRO)
        is_there = functools.partial(self._index.includes.is_there, visit.file.name)
        is_chosen = choose_header(item, conditions, is_there, self._state.holds)
        decided = item.kind == ItemKind.INCLUDE and (is_chosen or not visit.own)
        for directive, inner in nested_directives(visit.file, number):
            keyword = directive.keyword
            live = not inner or conditions.live(inner)
            likely = of_likely is not None and (not inner or of_likely.live(inner) is True)
            decided = decided and (live is False or (live is True and keyword not in _STATEMENTS))
            if live is False:  # behind the guard of its header, which the document does not have
                removed += [directive] if self._was_read(visit.file.name, directive.target) else []
                continue
            is_dead = is_dead and keyword not in _STATEMENTS and not (is_region and inner)
            if keyword == b"error" and likely:
                self._demand([*item.stack, *inner], visit.file)
            if keyword in INCLUDE_KEYWORDS:
                undecided = tuple(frame for frame in inner if conditions.live([frame]) is None)
                line = self._include(visit, number, directive, (frames, undecided), depth, likely=likely)
                if not line or (not visit.own and directive.argument in made):
                    removed.append(directive)
                else:
                    external.append((undecided, line))
                    last = directive.start
                is_missing = not line and likely and visit.cuts[-1:] != [number]
                if is_missing and any(d.keyword == b"else" for d in item.directives):
                    self._demand(inner[-1:], visit.file)
            elif keyword in _DEFINITIONS:
                self._define(directive, unknown=live is None or is_conditional, likely=likely)
                last = directive.start
        if item.kind == ItemKind.INCLUDE:
            visit.external[number] = written_includes(external)
            is_early = removed and not visit.own and 0 <= last < removed[0].start
            visit.early.update([number] if is_early else [])
        if decided or removed:
            visit.gone[number] = visit.external[number] if decided else without_directives(item, removed)
        elif is_dead:
            visit.live[number] = False

    def _define(self, directive: Directive, *, unknown: bool, likely: bool) -> None:
        """Carry out `#define` and `#undef`; `unknown`: they may not be read."""
        name, macro = parse_define(directive.argument)
        value = macro if directive.keyword == b"define" else None
        self._state.macros[name] = UNKNOWN if unknown else value
        if likely:
            self._likely.macros[name] = value

    def _was_read(self, name: str, argument: str) -> bool:
        target = self._index.includes.resolve(name, argument) if argument else None
        return target is not None and self._index.number[target] in self._expansion.by_file

    def _is_guarded(self, argument: str) -> bool:
        """True for a header of the system whose guard (`_REGEX_H`) a copy of the project's has defined."""
        guard = "_" + re.sub(r"\W", "_", include_target(argument)).upper()
        return self._is_defined(guard.encode())

    def _is_defined(self, macro: bytes) -> bool:
        return self._state.macros.get(macro, UNKNOWN) not in (None, UNKNOWN)

    def _include(
        self,
        visit: Visit,
        number: int,
        directive: Directive,
        frames: tuple[tuple[Frame, ...], tuple[Frame, ...]],
        depth: int,
        *,
        likely: bool,
    ) -> bytes:
        """Read what an include names, in these frames around its item and in it; the line that is left."""
        argument = self._state.include_argument(directive.argument)
        around = frames[0] + frames[1]
        if not argument and likely:  # of a macro that a build may define otherwise
            argument, around = self._likely.include_argument(directive.argument), frames[0]
        if not argument:
            return directive.line
        # A borrowed include stands without the macros that it is made of.
        line = directive.line if directive.target else b"#include " + argument.encode()
        target = self._index.includes.resolve(visit.file.name, argument)
        if target is None:
            if self._is_guarded(argument):
                return b""
            if not self._index.includes.is_build_written(argument):
                return line
            self._expansion.dropped.append(argument)
            self._demanded |= self._index.macros_of_header(include_target(argument).rpartition("/")[2])
            return b""
        may_be_borrowed = self._index.files[target].may_be_borrowed
        self._may_differ |= target == visit.file.name or not may_be_borrowed
        if target in self._open:  # under other macros: its text is there once
            is_whole = visit.file.items[number].kind == ItemKind.INCLUDE
            return b"" if is_whole or target != visit.file.name else line
        visit.cuts.append(number)
        if may_be_borrowed or target in self._expansion.own or is_template(target):
            self._visit(target, around, depth + 1, likely=likely)
        self._stretch(visit)
        return b""
