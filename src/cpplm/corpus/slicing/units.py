"""Units, the files that make one document: a header, its second half (.tcc, .inl) and its source file.

A source belongs to the header of the same stem that it includes, or that lies beside it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from cpplm.corpus.ingest.discovery import SourceFile, read_source
from cpplm.cpp.file_suffixes import HEADER_SUFFIXES, PART_SUFFIXES, SOURCE_SUFFIXES
from cpplm.cpp.lexer import ELSE_KEYWORDS, IDENTIFIER, IF_KEYWORDS, lex
from cpplm.cpp.macros import macro_bodies

# The second half of a header may be a header by its suffix: list-inl.h, list_impl.hpp.
_PART_STEM = re.compile(r"(?:[-_.](?:inl|impl|tpl))$")
# Of classes and aliases.
TYPE_NAME = re.compile(
    rb"\b(?:(?:class|struct|union|enum)\s+(?:[A-Z_]+\s+)?(?:\w+::)*(?=\w+\s*(?:final\s*)?(?:\{|:(?!:)))"
    rb"|using\s+(?=\w+\s*=))(\w+)"
)
_TYPEDEF = re.compile(
    rb"(?m)^[ \t]*(?:(?:typedef\b[^;{}()]*?\b|\}[ \t]*)(?=\w+[ \t]*;)"
    rb"|typedef\b[^;{}()]*\(\s*\*\s*(?=\w+\s*\)))(\w+)"  # of a pointer to a function
)
_COMPARISON = re.compile(rb"\b([A-Za-z_]\w*+)[ \t]*+==[ \t]*+(\d++)\b")
_NAMED_TYPE = re.compile(rb"(?m)^[ \t]*+typedef[ \t]++([A-Z][A-Z0-9_]*+)[ \t]++\w++[ \t]*+;")
_WIDTH = re.compile(rb"(U?)(?:INT)?_?(8|16|32|64)(?:_?BIT|_|\Z)")
_INTEGERS = {b"8": b"char", b"16": b"short", b"32": b"int", b"64": b"long"}
Resolve = Callable[[str, str], str | None]


class Scan(NamedTuple):
    """The includes of one file, as in their directives, the bodies of the macros that it defines, the names
    in its conditions, and the classes that it may define."""

    includes: tuple[str, ...]
    bodies: dict[bytes, set[bytes]]
    conditions: frozenset[bytes]
    implied: tuple[tuple[bytes, bytes], ...]  # macros with values that its text has use for
    types: frozenset[bytes]
    aliases: frozenset[bytes] = frozenset()  # names that it gives types by `typedef`


def scan(file: SourceFile) -> Scan:
    """Read the directives of one file."""
    data = read_source(file)
    directives = lex(data).directives
    includes = tuple(filter(None, (each.target for each in directives)))
    lines = b" ".join(
        each.argument
        for each in directives
        if each.keyword in IF_KEYWORDS | ELSE_KEYWORDS or (each.keyword == b"include" and not each.target)
    )
    return Scan(
        includes,
        macro_bodies(directives),
        frozenset(IDENTIFIER.findall(lines)),
        (*_COMPARISON.findall(lines), *((name, integer_type(name)) for name in _NAMED_TYPE.findall(data))),
        frozenset(TYPE_NAME.findall(data)),
        frozenset(_TYPEDEF.findall(data)),
    )


@dataclass(frozen=True)
class Unit:
    """Files that make documents together: header, second half, source, as far as there are such."""

    files: tuple[SourceFile, ...]

    @property
    def name(self) -> str:
        """The first file's."""
        return self.files[0].name

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)


def make_units(
    files: Iterable[SourceFile], scans: dict[str, Scan], resolve: Resolve, *, merge: bool
) -> list[Unit]:
    """Every file in exactly one unit, units in the order of their names; one of several files with `merge`.

    `resolve` leads from a file and the argument of an include in it to the file that this names.
    """
    by_name = {file.name: file for file in files}
    partners: dict[str, dict[str, str]] = defaultdict(dict)  # header to {role: file}
    for name in by_name if merge else ():
        role = _role(name)
        header = _header_of(name, by_name, scans, resolve) if role != "header" else None
        if header is not None and role not in partners[header]:
            partners[header][role] = name
    units = []
    taken: set[str] = set()
    for name in by_name:
        if _role(name) == "header":
            roles = partners.get(name, {})
            group = [name, *(roles[role] for role in ("part", "source") if role in roles)]
            units.append(Unit(tuple(by_name[member] for member in group)))
            taken.update(group)
    units += [Unit((by_name[name],)) for name in by_name if name not in taken]
    return sorted(units, key=lambda unit: unit.name)


def _role(name: str) -> str:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in PART_SUFFIXES or _PART_STEM.search(PurePosixPath(name).stem):
        return "part"
    return "source" if suffix in SOURCE_SUFFIXES else "header"


def _header_of(
    name: str, by_name: dict[str, SourceFile], scans: dict[str, Scan], resolve: Resolve
) -> str | None:
    stem = _PART_STEM.sub("", PurePosixPath(name).stem)
    for argument in scans[name].includes:
        target = resolve(name, argument)
        if target in by_name and PurePosixPath(target).stem == stem and _role(target) == "header":
            return target
    beside = [str(PurePosixPath(name).with_name(stem + suffix)) for suffix in (*sorted(HEADER_SUFFIXES), "")]
    return next((candidate for candidate in beside if candidate in by_name), None)


def integer_type(name: bytes) -> bytes:
    """The type that a macro may stand for: `unsigned long` for `LIB_U64BIT_INT`."""
    width = _WIDTH.search(name)
    sign = b"unsigned " if width and width.group(1) else b""
    return sign + (_INTEGERS[width.group(2)] if width else b"int")


def implied_values(values: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The first value that is implied for each macro: 64 by `#if SIZE == 64`, `int` by `typedef T name;`.

    0 where it is compared with that, too.
    """
    found: dict[bytes, bytes] = {}
    for macro, value in values:
        if value == b"0":
            found[macro] = value
        found.setdefault(macro, value)
    return found


def deciding_macros(conditions: Set[bytes], bodies: Mapping[bytes, Set[bytes]]) -> frozenset[bytes]:
    """The macros that conditions of a project depend on, by way of the bodies of others too."""
    found, waiting = set[bytes](), set(conditions)
    while waiting:
        found |= waiting
        waiting = {
            name
            for macro in waiting & bodies.keys()
            for text in bodies[macro]
            for name in IDENTIFIER.findall(text)
        } - found
    return frozenset(found)
