"""Which files make one document: a header, its second half (.tcc, .inl) and its source file.

A source belongs to the header of the same stem that it includes, or that lies beside it. Merging drops the
include and with it the guard, so the guard's `#define` is written when another include leads back to the
header; a header that has only `#pragma once` is not merged in that case.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from cpplm.corpus.lexing import Directive, lex
from cpplm.corpus.masking import macro_bodies
from cpplm.corpus.sources import HEADER_SUFFIXES, PART_SUFFIXES, SOURCE_SUFFIXES, SourceFile, normalise


@dataclass(frozen=True)
class Scan:
    """What one file tells about its neighbours."""

    includes: tuple[str, ...]
    guard: bytes
    demands: frozenset[bytes]
    bodies: dict[bytes, set[bytes]]


def scan(file: SourceFile) -> Scan:
    """Read the directives of one file."""
    lexed = lex(normalise(file.path.read_bytes()))
    includes = tuple(
        directive.argument.decode("utf-8", "replace")
        for directive in lexed.directives
        if directive.keyword in (b"include", b"include_next", b"import")
        and directive.argument[:1] in (b'"', b"<")
    )
    return Scan(includes, lexed.guard, _demands(lexed.directives), macro_bodies(lexed.directives))


def _demands(directives: list[Directive]) -> frozenset[bytes]:
    """Macros without which a file is an `#error`: another header has to come first."""
    pairs = itertools.pairwise(directives)
    return frozenset(one.macro for one, two in pairs if one.keyword == b"ifndef" and two.keyword == b"error")


@dataclass(frozen=True)
class Unit:
    """Files to be merged, in this order.

    `own_includes` are the include arguments that name one of them; `local_includes` those that name others
    of the project; `late_includes` those of the source that need what the header declares: they lead back to
    it, or refuse to be read without a macro of it; `guards` the macros that keep it from being read twice.
    """

    files: tuple[SourceFile, ...]
    own_includes: frozenset[str] = frozenset()
    local_includes: frozenset[str] = frozenset()
    late_includes: frozenset[str] = frozenset()
    guards: tuple[bytes, ...] = ()

    @property
    def name(self) -> str:
        """The first file's."""
        return self.files[0].name

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)


@dataclass
class Includes:
    """The include graph of a project, resolved by path suffix: no build system is asked."""

    scans: dict[str, Scan]
    edges: dict[str, dict[str, str]] = field(default_factory=dict)  # file to {argument: file}
    _by_base: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for name in self.scans:
            self._by_base[name.rpartition("/")[2]].append(name)
        for name, scanned in self.scans.items():
            found = {argument: self._resolve(name, argument) for argument in scanned.includes}
            self.edges[name] = {argument: target for argument, target in found.items() if target is not None}

    def _resolve(self, name: str, argument: str) -> str | None:
        target = argument[1:].split(">" if argument[0] == "<" else '"', maxsplit=1)[0]
        if argument[0] == '"':
            beside = _join(name.rpartition("/")[0], target)
            if beside in self.scans:
                return beside
        if target in self.scans:
            return target
        target = target.lstrip("./")
        candidates = [
            other for other in self._by_base.get(target.rpartition("/")[2], ())
            if other == target or other.endswith("/" + target)
        ]  # fmt: skip
        return candidates[0] if len(candidates) == 1 else None

    def reachable(self, starts: set[str]) -> set[str]:
        """Files that including any of `starts` brings in."""
        seen: set[str] = set()
        waiting = list(starts)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(self.edges[name].values())
        return seen


def _join(folder: str, target: str) -> str:
    parts = folder.split("/") if folder else []
    for part in target.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in (".", ""):
            parts.append(part)
    return "/".join(parts)


def make_units(files: list[SourceFile], scans: dict[str, Scan], *, merge: bool) -> list[Unit]:
    """Every file in exactly one unit, units in the order of their first file."""
    by_name = {file.name: file for file in files}
    includes = Includes(scans)
    partners: dict[str, dict[str, str]] = defaultdict(dict)  # header to {role: file}
    if merge:
        for file in files:
            role = _role(file.name)
            header = _header_of(file.name, by_name, includes) if role != "header" else None
            if header is not None and role not in partners[header]:
                partners[header][role] = file.name
    taken: set[str] = set()
    units: list[Unit] = []
    for file in files:
        if _role(file.name) == "header":
            group = [
                file.name,
                *(partners[file.name][role] for role in ("part", "source") if role in partners[file.name]),
            ]
            unit = _unit([by_name[name] for name in group], includes)
            units.append(unit)
            taken.update(member.name for member in unit.files)
    units += [_unit([file], includes) for file in files if file.name not in taken]
    return sorted(units, key=lambda unit: unit.name)


def _role(name: str) -> str:
    suffix = PurePosixPath(name).suffix.lower()
    return "source" if suffix in SOURCE_SUFFIXES else "part" if suffix in PART_SUFFIXES else "header"


def _header_of(name: str, by_name: dict[str, SourceFile], includes: Includes) -> str | None:
    stem = PurePosixPath(name).stem
    for target in includes.edges[name].values():
        if PurePosixPath(target).stem == stem and _role(target) == "header":
            return target
    beside = [str(PurePosixPath(name).with_suffix(suffix)) for suffix in sorted(HEADER_SUFFIXES)] + [
        str(PurePosixPath(name).with_suffix(""))
    ]
    return next((candidate for candidate in beside if candidate in by_name), None)


def _unit(files: list[SourceFile], includes: Includes) -> Unit:
    """A unit, shortened to its first file where merging would bring that in a second time."""
    names = {file.name for file in files}
    own: set[str] = set()
    others: set[str] = set()
    for file in files:
        for argument, target in includes.edges[file.name].items():
            if target in names:
                own.add(argument)
            else:
                others.add(target)
    again = [file.name for file in files if file.name in includes.reachable(others)]
    guards = [includes.scans[name].guard for name in again]
    if len(files) > 1 and not all(guards):
        return _unit(files[:1], includes)
    defined = includes.scans[files[0].name].bodies.keys()
    late = {
        argument
        for file in files[1:]
        for argument, target in includes.edges[file.name].items()
        if target not in names
        and (names & includes.reachable({target}) or includes.scans[target].demands & defined)
    }
    local = {argument for file in files for argument in includes.edges[file.name]} - own
    return Unit(
        tuple(files),
        frozenset(own),
        frozenset(local),
        frozenset(late),
        tuple(guard for guard in guards if guard),
    )
