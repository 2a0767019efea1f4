"""The project's includes expanded in place, as the preprocessor reads them; nothing is evaluated.

    A file is there where it is first included; again where it has no guard, or where what was there before
    stands under conditions that need not hold here. An include that leads out of the project stays where it
    is first needed, a license where it is first read.

Everything else is left alone: conditions stay, but for those by which only a build could choose between
headers (`Includes.conditions`), and for groups of which nothing is left.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from cpplm.corpus.slicing.closure import Index
from cpplm.corpus.slicing.packing import Measure
from cpplm.corpus.slicing.units import Includes
from cpplm.cpp.lexer import Branch, ConditionalGroup, Directive, LexedSource
from cpplm.cpp.segments import Condition

OPENING = (b"if", b"ifdef", b"ifndef")
_INCLUDES = (b"include", b"include_next", b"import")
_FOLLOWING = (b"else", b"elif", b"elifdef", b"elifndef")
_LICENSE = re.compile(rb"copyright|licen[sc]e|warrant", re.IGNORECASE)
# Licenses are compared without years and layout.
_NO_LETTER = re.compile(rb"[^A-Za-z]+")
# What is measured, file by file, is a little more than what is written.
_SURELY_TOO_LONG = 1.1

# Besides text: the two lines around a file, the `#define` after the first, `#pragma once`, the end of a file.
Role = Literal["text", "guard", "define", "once", "last"]
_Action = Literal["expand", "drop", "keep"]


class TooMuchError(Exception):
    """The expansion is over the budget, never ends, or a file's conditionals do not add up."""


@dataclass(frozen=True)
class Stretch:
    """Bytes `start` to `end` of a file, whole lines."""

    file: str
    start: int
    end: int
    role: Role = "text"


@dataclass
class _Frame:
    """An `#if` group that is open: its branch, and whether anything in it was dropped or kept."""

    condition: Condition
    offset: int
    mark: int  # number of stretches before it
    dropped: bool = False
    kept: bool = False


@dataclass
class _Reading:
    """One file on its way into `stretches`, up to `position`; `around` are the conditions of its include."""

    name: str
    lexed: LexedSource
    position: int
    around: tuple[Condition, ...]
    stretches: list[Stretch]
    cuts: list[tuple[int, int]]
    frames: list[_Frame] = field(default_factory=list)

    def advance(self, start: int, end: int, role: Role | None = None) -> None:
        """Add what is left up to `start`, and go on at `end`; what is between has a role, or goes."""
        if self.position < start:
            self.stretches.append(Stretch(self.name, self.position, start))
        if role is not None:
            self.stretches.append(Stretch(self.name, start, end, role))
        self.position = max(self.position, end)

    def is_cut(self, start: int) -> bool:
        """Make the cuts up to here; whether the line that starts here is in one."""
        while self.cuts and self.cuts[0][0] <= start:
            self.advance(*self.cuts.pop(0))
        return start < self.position

    def conditional(self, directive: Directive) -> bool:
        """Follow the conditions; False for a directive that is about something else."""
        if directive.keyword in OPENING:
            self.advance(directive.start, directive.start)
            self.frames.append(_Frame(Condition((directive.line,)), directive.start, len(self.stretches)))
        elif directive.keyword in _FOLLOWING:
            self.frames[-1].condition = Condition((*self.frames[-1].condition.lines, directive.line))
        elif directive.keyword == b"endif":
            self._close(directive)
        else:
            return False
        return True

    def _close(self, directive: Directive) -> None:
        """End a group, which goes when all that was in it went."""
        frame = self.frames.pop()
        code = self.lexed.names[frame.offset : directive.end].strip()
        empty = frame.dropped and not frame.kept and not code
        self.note(kept=not empty)
        if empty:
            del self.stretches[frame.mark :]
            self.position = directive.end + 1

    def note(self, *, kept: bool) -> None:
        """Remember that something in the innermost group was kept, or else dropped."""
        if self.frames:
            self.frames[-1].kept |= kept
            self.frames[-1].dropped |= not kept

    @property
    def here(self) -> tuple[Condition, ...]:
        """The conditions where it has come to."""
        return self.around + tuple(frame.condition for frame in self.frames)


@dataclass
class Expansion:
    """Stretches of files in the order in which a compiler reads them.

    `times` says how often each file is there; `undefined` are the macros that some file undefines: they keep
    nothing from being read twice.
    """

    index: Index
    budget: int
    measure: Measure
    stretches: list[Stretch] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)
    undefined: set[bytes] = field(default_factory=set)
    _there: dict[str | bytes, list[set[Condition]]] = field(default_factory=dict)
    _licenses: set[bytes] = field(default_factory=set)
    _open: list[str] = field(default_factory=list)
    _size: int = 0

    def add(self, root: str) -> None:
        """Expand a file behind what is there.

        Raises:
            TooMuchError: see there.
        """
        waiting = [self._file(root, ())]
        while waiting:  # not by recursion: includes may be nested a thousand deep
            step = next(waiting[-1], None)
            if step is None:
                waiting.pop()
            else:
                waiting.append(self._file(*step))

    def _file(self, name: str, around: tuple[Condition, ...]) -> Iterator[tuple[str, tuple[Condition, ...]]]:
        """Add the stretches of a file; yields what has to be expanded where it has come to."""
        reading = self._enter(name, around)
        lexed = reading.lexed
        foreign = lexed.foreign_spans()
        for directive in lexed.directives:
            start, end = directive.start, directive.end + 1
            if reading.is_cut(start):
                continue
            role = role_of(directive, lexed, nested=bool(reading.frames))
            if role != "text":
                reading.advance(start, end, role)
            elif reading.conditional(directive):
                continue
            elif directive.keyword in _INCLUDES and not any(a <= start < b for a, b in foreign):
                action, target = self._include(directive, reading)
                reading.note(kept=action != "drop")
                if action != "keep":
                    reading.advance(start, end)
                if action == "expand":
                    yield target, reading.here
            else:
                reading.note(kept=True)
        reading.is_cut(len(lexed.data))
        reading.advance(len(lexed.data), len(lexed.data), "last")
        self._open.pop()

    def _enter(self, name: str, around: tuple[Condition, ...]) -> _Reading:
        """Begin a file.

        Raises:
            TooMuchError: see there.
        """
        if self.index.files[name].size > self.measure.most_bytes * self.budget * _SURELY_TOO_LONG:
            raise TooMuchError  # before it is read
        lexed = self.index.read(name).lexed
        position = self._after_license(lexed)
        self._size += self.measure.item(lexed.data[position:])
        if not lexed.balanced or self._size > _SURELY_TOO_LONG * self.budget:
            raise TooMuchError
        self.undefined |= {d.macro for d in lexed.directives if d.keyword == b"undef"}
        self.times[name] += 1
        self._open.append(name)
        guard = self._guard(name)
        if guard:
            self._there.setdefault(guard, []).append(set(around))
        cuts = _cuts(lexed, self.index.includes, name)
        return _Reading(name, lexed, position, around, self.stretches, cuts)

    def _guard(self, name: str) -> str | bytes:
        """What keeps a file from being read twice: a macro, or its name where it says `#pragma once`."""
        lexed = self.index.read(name).lexed
        if lexed.guard:
            return b"" if lexed.guard in self.undefined else lexed.guard
        return name if says_once(lexed) else b""

    def _after_license(self, lexed: LexedSource) -> int:
        """Where the text of a file begins: behind its license if that is there already."""
        end = _license_end(lexed)
        license = _NO_LETTER.sub(b"", lexed.data[:end]).lower()
        if license in self._licenses:
            return end
        self._licenses.add(license)
        return 0

    def _include(self, directive: Directive, reading: _Reading) -> tuple[_Action, str]:
        """What is done with an include, and the file that it leads to."""
        includes = self.index.includes
        argument = directive.argument.decode("utf-8", "replace")
        target = includes.edges[reading.name].get(argument)
        if target is None:
            is_generated = argument in includes.generated[reading.name]
            return "drop" if is_generated or self._outer(directive.argument, reading.here) else "keep", ""
        branches = reading.lexed.branches_at(directive.start)
        if not self.index.files[target].may_be_borrowed or includes.conditions(branches) is None:
            return "keep", ""  # or for another system
        guard = self._guard(target)
        if guard and (target in self._open or self._is_there(guard, reading.here)):
            return "drop", ""
        if target in self._open:
            raise TooMuchError
        return "expand", target

    def _outer(self, argument: bytes, here: tuple[Condition, ...]) -> bool:
        """Whether an include that leads out of the project is there already; if not, it is now."""
        if self._is_there(argument, here):
            return True
        self._there.setdefault(argument, []).append(set(here))
        return False

    def _is_there(self, key: str | bytes, here: tuple[Condition, ...]) -> bool:
        """Whether a file was read wherever these conditions hold."""
        return any(conditions.issubset(here) for conditions in self._there.get(key, ()))


def role_of(directive: Directive, lexed: LexedSource, *, nested: bool) -> Role:
    """What a directive does to keep its file from being read twice; `nested` in an `#if` group."""
    if directive.start in lexed.guard_directives:
        return "define" if directive.keyword == b"define" else "guard"
    is_once = directive.keyword == b"pragma" and directive.argument == b"once" and not nested
    return "once" if is_once else "text"


def says_once(lexed: LexedSource) -> bool:
    """Whether a file has `#pragma once`, under no condition."""
    found = (d.start for d in lexed.directives if d.keyword == b"pragma" and d.argument == b"once")
    return any(not lexed.branches_at(start) for start in found)


def _cuts(lexed: LexedSource, includes: Includes, name: str) -> list[tuple[int, int]]:
    """What goes where only a build could choose between headers: the question, and the other answers."""
    cuts: list[tuple[int, int]] = []
    waiting = list(lexed.groups)
    while waiting:
        group = waiting.pop()
        branch = _chosen(group, lexed, includes, name)
        if branch is None:
            waiting += group.children
        else:
            cuts += [(group.start, branch[0] + 1), (branch[1], group.end + 1)]
    return sorted(cuts)


def _chosen(
    group: ConditionalGroup, lexed: LexedSource, includes: Includes, name: str
) -> tuple[int, int] | None:
    """The branch of a group without code that is taken for the one a build would choose."""
    if len(group.directives) < 3 or any(lexed.names[start:end].strip() for start, end in group.branches()):
        return None
    for number, (start, end) in enumerate(group.branches()):
        lines = tuple(directive.line for directive in group.directives[: number + 1])
        leads = any(
            directive.argument.decode("utf-8", "replace") in includes.edges[name]
            for directive in lexed.directives
            if start <= directive.start < end and directive.keyword in _INCLUDES
        )
        if leads and includes.conditions((Branch(lines, choice=True),)) == ():
            return start, end
    return None


def _license_end(lexed: LexedSource) -> int:
    """Where the comments about the license at the head of a file end; 0 when there are none."""
    found = position = 0
    first = lexed.directives[0].start if lexed.directives else len(lexed.data)
    for start, end in lexed.comments:
        if start > first or lexed.names[position:start].strip():
            break
        position = end
        if _LICENSE.search(lexed.data, start, end):
            found = end
    return found
