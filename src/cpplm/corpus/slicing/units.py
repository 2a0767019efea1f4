"""Which files make one document: a header, its second half (.tcc, .inl) and its source file.

A source belongs to the header of the same stem that it includes, or that lies beside it. Merging drops the
include and with it the guard, so the guard's `#define` is written when another include leads back to the
header.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from cpplm.corpus.include_index import IncludeIndex
from cpplm.corpus.ingest.discovery import (
    TEMPLATE_ENDINGS,
    SourceFile,
    read_source,
)
from cpplm.cpp.file_suffixes import HEADER_SUFFIXES, PART_SUFFIXES, SOURCE_SUFFIXES
from cpplm.cpp.lexer import IDENTIFIER, Branch, Directive, lex
from cpplm.cpp.macros import macro_bodies
from cpplm.cpp.segments import Condition

# <math.h> is the system's, even where a project has a file of that name (ISO C17 7.1.2, POSIX.1-2017).
_SYSTEM_NAMES = """
assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg
stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype
aio cpio dirent dlfcn fcntl fmtmsg fnmatch ftw glob grp iconv langinfo libgen monetary mqueue ndbm netdb
nl_types poll pthread pwd regex sched search semaphore spawn strings stropts syslog tar termios trace
ulimit unistd utime utmpx wordexp alloca malloc memory getopt execinfo features endian byteswap
arpa/inet net/if netinet/in netinet/tcp sys/ipc sys/mman sys/msg sys/param sys/resource sys/select
sys/sem  sys/shm sys/socket sys/stat sys/statvfs sys/time sys/times sys/types sys/uio sys/un sys/utsname
sys/wait
"""
SYSTEM_HEADERS = frozenset(f"{name}.h" for name in _SYSTEM_NAMES.split())

_OTHER_SYSTEMS = re.compile(
    rb"WIN|APPLE|MAC|COCOA|DARWIN|IOS|ANDROID|WASM|EMSCRIPTEN|BSD|SUN|SOLARIS|AIX|HAIKU|MSC|OS2|DOS",
    re.IGNORECASE,
)


# The second half of a header may be a header by its suffix: list-inl.h, list_impl.hpp.
_PART_STEM = re.compile(r"(?:[-_.](?:inl|impl|tpl))$")


def _for_another_system(line: bytes) -> bool:
    return all(_OTHER_SYSTEMS.search(choice) for choice in line.split(b"||"))


class Include(NamedTuple):
    """One `#include`: where it stands, what it asks for, and the branches around it."""

    line: int
    argument: str
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Scan:
    """What one file tells about its neighbours; includes for other systems are left out."""

    includes: tuple[Include, ...]
    guard: bytes
    demands: frozenset[bytes]
    bodies: dict[bytes, set[bytes]]


def scan(file: SourceFile) -> Scan:
    """Read the directives of one file."""
    lexed = lex(read_source(file))
    foreign = lexed.foreign_spans()
    includes = tuple(
        Include(
            lexed.data.count(b"\n", 0, directive.start),
            directive.argument.decode("utf-8", "replace"),
            lexed.branches_at(directive.start),
        )
        for directive in lexed.directives
        if directive.keyword in (b"include", b"include_next", b"import")
        and directive.argument[:1] in (b'"', b"<")
        and not any(start <= directive.start < end for start, end in foreign)
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
    `guests` are units of headers that its document covers where includes are expanded (`inlining`).
    """

    files: tuple[SourceFile, ...]
    own_includes: frozenset[str] = frozenset()
    local_includes: frozenset[str] = frozenset()
    late_includes: frozenset[str] = frozenset()
    guards: tuple[bytes, ...] = ()
    guests: tuple[Unit, ...] = ()

    @property
    def name(self) -> str:
        """The first file's."""
        return self.files[0].name

    @property
    def size(self) -> int:
        """Bytes on disk, of its guests too."""
        return sum(file.size for file in self.files) + sum(guest.size for guest in self.guests)


@dataclass
class Includes:
    """The include graph of a project, resolved by path suffix: no build system is asked.

    `ranks` is one order of all files that every translation unit agrees with: a file is cut into segments by
    its includes, and a segment comes after everything that the includes before it bring in. A cycle is
    entered once, as include guards do.
    """

    scans: dict[str, Scan]
    edges: dict[str, dict[str, str]] = field(default_factory=dict)  # file to {argument: file}
    cuts: dict[str, list[int]] = field(default_factory=dict)  # file to the lines where its segments end
    ranks: dict[str, list[int]] = field(default_factory=dict)  # file to the rank of each segment
    generated: dict[str, set[str]] = field(
        default_factory=dict
    )  # file to arguments that a build would answer

    def __post_init__(self) -> None:
        self._names = IncludeIndex(self.scans)
        for name, scanned in self.scans.items():
            found = {argument: self._resolve(name, argument) for _, argument, _ in scanned.includes}
            self.edges[name] = {argument: target for argument, target in found.items() if target is not None}
            self.generated[name] = {
                argument
                for argument, target in found.items()
                if target is None and self._is_generated(argument)
            }
            self.cuts[name] = [line for line, argument, _ in scanned.includes if argument in self.edges[name]]
        self._defined = frozenset(name for scanned in self.scans.values() for name in scanned.bodies)
        counter = itertools.count()
        for name in self.scans:
            self._rank(name, counter)

    def _resolve(self, name: str, argument: str) -> str | None:
        target = argument[1:].split(">" if argument[0] == "<" else '"', maxsplit=1)[0]
        if argument[0] == "<":
            return None if target in SYSTEM_HEADERS else self._names.nearest(name, target)
        return self._names.beside(name, target) or self._names.nearest(name, target)

    def _is_generated(self, argument: str) -> bool:
        """Whether the project has a template of the header, or it is the one that `configure` writes."""
        base = argument[1:].split(">" if argument[0] == "<" else '"', maxsplit=1)[0].rpartition("/")[2]
        return base == "config.h" or any(self._names.has_file(base + ending) for ending in TEMPLATE_ENDINGS)

    def _rank(self, root: str, counter: Iterator[int]) -> None:
        """Number the segments of `root` and of everything it includes that has no number yet."""
        if root in self.ranks:
            return
        self.ranks[root] = []
        stack = [(root, iter(self.targets(root)))]
        while stack:
            name, rest = stack[-1]
            self.ranks[name].append(next(counter))
            target = next(rest, None)
            if target is None:
                stack.pop()
            elif target not in self.ranks:
                self.ranks[target] = []
                stack.append((target, iter(self.targets(target))))

    def targets(self, name: str) -> list[str]:
        """The files that a file includes, in order."""
        edges = self.edges[name]
        return [edges[argument] for _, argument, _ in self.scans[name].includes if argument in edges]

    def rank(self, name: str, line: int) -> int:
        """Where this line of a file stands in the order of the project."""
        return self.ranks[name][bisect.bisect_left(self.cuts[name], line)]

    def visible(self, starts: Iterable[str]) -> dict[str, tuple[Condition, ...]]:
        """The files that `starts` bring in, these among them, and the conditions under which they do.

        A file that any path brings in unconditionally has none; of the others the shortest path counts.
        """
        seen: dict[str, tuple[Condition, ...]] = {}
        waiting: list[tuple[str, tuple[Condition, ...]]] = [(name, ()) for name in starts]
        while waiting:
            later: list[tuple[str, tuple[Condition, ...]]] = []
            while waiting:
                name, conditions = waiting.pop()
                if name in seen:
                    continue
                seen[name] = conditions
                for _, argument, branches in reversed(self.scans[name].includes):
                    target = self.edges[name].get(argument)
                    inner = self.conditions(branches)
                    if inner and target is not None:
                        inner = tuple(each for each in inner if not self._is_once(each, name, target))
                    if target is not None and target not in seen and inner is not None:
                        (later if inner else waiting).append((target, conditions + inner))
            waiting = sorted(later, key=lambda step: (-len(step[1]), step[0]))
        return seen

    def _is_once(self, condition: Condition, name: str, target: str) -> bool:
        """Whether a condition is `#ifndef X`, and this file or what it includes defines X: false after it."""
        keyword, _, macro = condition.lines[0].partition(b" ")
        if len(condition.lines) > 1 or keyword != b"#ifndef" or macro not in self._defined:
            return False
        return any(macro in self.scans[file].bodies for file in (name, *self.reachable([target])))

    def conditions(self, branches: tuple[Branch, ...]) -> tuple[Condition, ...] | None:
        """The conditions of an include that a compiler could decide; None for one that is not chosen.

        Where the build system chooses between headers, nothing in the project tells which: the first one that
        is not for another system is taken.
        """
        kept: list[Condition] = []
        for branch in branches:
            names = {
                name for line in branch.lines for name in IDENTIFIER.findall(line.partition(b" ")[2])
            } - {b"defined"}
            if not branch.choice or any(name in self._defined or name.startswith(b"__") for name in names):
                kept.append(Condition(branch.lines))
            elif _for_another_system(branch.lines[-1]) or not all(
                map(_for_another_system, branch.lines[:-1])
            ):
                return None
        return tuple(kept)

    def reachable(self, starts: Iterable[str]) -> set[str]:
        """Files that including any of `starts` brings in."""
        seen: set[str] = set()
        waiting = list(starts)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(self.edges[name].values())
        return seen


def make_units(files: list[SourceFile], includes: Includes, *, merge: bool) -> list[Unit]:
    """Every file in exactly one unit, units in the order of their first file."""
    by_name = {file.name: file for file in files}
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
    if suffix in PART_SUFFIXES or _PART_STEM.search(PurePosixPath(name).stem):
        return "part"
    return "source" if suffix in SOURCE_SUFFIXES else "header"


def _stem(name: str) -> str:
    """The name that a header shares with its second half and its source."""
    return _PART_STEM.sub("", PurePosixPath(name).stem)


def _header_of(name: str, by_name: dict[str, SourceFile], includes: Includes) -> str | None:
    stem = _stem(name)
    for target in includes.edges[name].values():
        if PurePosixPath(target).stem == stem and _role(target) == "header" and target in by_name:
            return target
    beside = [str(PurePosixPath(name).with_name(stem + suffix)) for suffix in (*sorted(HEADER_SUFFIXES), "")]
    return next((candidate for candidate in beside if candidate in by_name), None)


def _unit(files: list[SourceFile], includes: Includes) -> Unit:
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
