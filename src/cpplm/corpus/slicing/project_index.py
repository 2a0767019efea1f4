"""The files of one project, taken apart when first asked for, and what they declare, by name."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Set
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from cpplm.corpus.include_index import IncludeIndex, library_includes
from cpplm.corpus.ingest.discovery import (
    AUTOCONF_SCRIPTS,
    TEMPLATE_ENDINGS,
    SourceFile,
    is_template,
    read_source,
)
from cpplm.corpus.slicing import build_headers
from cpplm.corpus.slicing.autoconf import header_template
from cpplm.corpus.slicing.build_headers import include_target
from cpplm.corpus.slicing.declared_names import attached_to, declared_names
from cpplm.corpus.slicing.entries import EntriesByName
from cpplm.corpus.slicing.feature_macros import unnamed_items
from cpplm.corpus.slicing.splicing import Splice, source_lines, splice
from cpplm.corpus.slicing.units import TYPE_NAME
from cpplm.cpp.file_suffixes import is_source
from cpplm.cpp.items import FileItems, Item, ItemKind, conditions_in, read_items, share_names
from cpplm.cpp.keywords import KEYWORDS
from cpplm.cpp.lexer import IDENTIFIER, INCLUDE_KEYWORDS, Directive, LexedSource, names_in
from cpplm.cpp.macros import MacroTable, inner_first
from cpplm.cpp.parser import is_c_project, language_of
from cpplm.cpp.segments import Condition

_DEFINING = (b"define", b"undef", b"pragma")
_MEMBER = re.compile(rb"\bstruct\s++(\w++)\s++\w++\s*+[;[]")  # which is a structure itself
_CONDITIONAL = re.compile(rb"\s*#\s*(if|endif)")
_KEYWORDS = frozenset(word.encode() for word in KEYWORDS)
_BEFORE_BRACKET = re.compile(rb"\b(\w+)\s*\(")
_FUNCTION_HEAD = re.compile(rb"(?m)^[A-Za-z_][^\n;{}()#]*?\b(\w+)[ \t]*\(")
_FEW_SOURCES = 3
Key = tuple[int, int]  # number of a file in its project, number of an item in the file


@dataclass(slots=True)
class ParsedFile:
    """One file of a project.

    Attributes:
        events: the numbers of the items that matter to the preprocessor: directives, and what stands in a
            branch of an `#if`.
        once: a second include of it is empty.
        guards: for items in a part of the file that is read once, the `#ifndef` that sees to it.
        unnamed: items that count without being named.
        external: the lines of unconditional includes that lead out of the project.
        splices: what was put into its text, of which `source` has nothing.
    """

    name: str
    number: int
    source: FileItems
    parsed: FileItems
    splices: list[Splice]
    events: list[int]
    once: bool
    guards: dict[int, list[Condition]]
    unnamed: list[int]
    external: dict[int, bytes]
    items: list[Item]  # top-level; none where the file could not be taken apart
    needed_types: frozenset[bytes]  # typedefs that items outside of any `#if` name, structures in such
    nested: dict[int, list[tuple[Directive, list[Condition]]]] = field(default_factory=dict)  # by `expansion`

    @property
    def data(self) -> bytes:
        """The text."""
        return self.parsed.lexed.data

    def lines(self, first: int, last: int) -> list[tuple[str, int, int]]:
        """The lines of files that lines of the text, counted from 0, are: (file, first, last), from 1."""
        return source_lines(self.name, self.splices, first, last)


@dataclass
class ProjectIndex:
    """The files of one project; all that is kept of it grows with what was read."""

    files: dict[str, SourceFile]
    macros: MacroTable
    deciding: frozenset[bytes]  # macros that conditions depend on
    types: frozenset[bytes] = frozenset()  # classes that some file may define
    aliases: frozenset[bytes] = frozenset()  # typedefs that some file may have
    includes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of each file, as in its directives
    closed: bool = True  # includes lead to files of the project
    defines_std: bool = False
    defaults: build_headers.BuildDefaults = field(default_factory=build_headers.BuildDefaults)
    declared: EntriesByName[Key] = field(default_factory=EntriesByName)
    members: EntriesByName[tuple[bytes, Key]] = field(default_factory=EntriesByName)
    attached: EntriesByName[tuple[Key, Set[bytes]]] = field(default_factory=EntriesByName)
    conditional_types: set[bytes] = field(default_factory=set)  # that some `#if` is around
    # Of files that were read one after the other with macros defined: those that this demanded, and refused.
    demands: dict[tuple[tuple[str, ...], frozenset[bytes]], tuple[frozenset[bytes], frozenset[bytes]]] = (
        field(default_factory=dict)
    )
    _parsed: dict[str, ParsedFile] = field(default_factory=dict)
    _shared: dict[Any, Any] = field(default_factory=dict)
    _targets: dict[tuple[str, str], str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = list(self.files)
        self.number = {name: number for number, name in enumerate(self.names)}
        self.is_c = is_c_project(self.names)
        self._index = IncludeIndex(self.names)
        self._folders = build_headers.include_folders(self.names)
        self._is_kernel = any(name.endswith("linux/init.h") for name in self.names)

    def read(self, name: str) -> ParsedFile:
        """A file, taken apart; its items carry its number."""
        found = self._parsed.get(name)
        if found is None:
            number = self.number[name]
            data = read_source(self.files[name])
            if is_template(name):
                is_script = name.rpartition("/")[2] in AUTOCONF_SCRIPTS
                data = build_headers.configured(
                    header_template(data) if is_script else data, self.defaults.values
                )
            source = parsed = self._parse(name, data)
            find = functools.partial(self._fragment, name)
            data, splices = splice(data, source.items, find, lambda each: read_source(self.files[each]))
            if splices:
                parsed = self._parse(name, data)
            if not parsed.sound:
                parsed, splices = source, []
            if not parsed.sound and parsed.lexed.balanced:
                parsed = replace(parsed, items=[_whole(parsed.lexed, number)])
            for each in (source, parsed):
                each.lexed.keep_directives()
            share_names(parsed.items, self._shared)
            items = parsed.items
            guards = _guards(parsed)
            events = [
                position
                for position, item in enumerate(items)
                if position in guards
                or any(d.keyword not in _DEFINING or d.macro in self.deciding for d in item.directives)
                or conditions_in(item.stack)
            ]
            once = bool(parsed.lexed.guard) or b"#pragma once" in data
            unnamed = sorted(unnamed_items(items))
            external = {
                position: b"\n".join(directive.line for directive in items[position].directives)
                for position in unnamed
                if position not in guards and self._leads_out(name, items[position])
            }
            events = [position for position in events if position not in external]
            unconditional = [item for item in items if not conditions_in(item.stack)]
            mentioned = frozenset[bytes]().union(*(item.mentions for item in unconditional))
            members = (
                _MEMBER.findall(_outside_groups(item)) for item in unconditional if item.kind == ItemKind.TYPE
            )
            found = self._parsed[name] = ParsedFile(
                *(name, number, source, parsed, splices, events, once, guards, unnamed, external, items),
                (mentioned & self.aliases).union(*members),
            )
            self._register(found)
        return found

    def _parse(self, name: str, data: bytes) -> FileItems:
        return read_items(
            data, self.macros, language=language_of(name, self.is_c, data), defines_std=self.defines_std
        )

    def _fragment(self, name: str, argument: str) -> str | None:
        """The file that is included in the midst of a declaration of another one."""
        target = self.resolve(name, argument)
        if target is None or target == name or not self.files[target].may_be_borrowed:
            return None
        return target

    def _leads_out(self, name: str, item: Item) -> bool:
        """True for an unconditional include, or several, of what is not in the project."""
        return (item.kind == ItemKind.INCLUDE and not item.stack) and all(
            directive.keyword in INCLUDE_KEYWORDS
            and directive.argument[:1] in (b'"', b"<")
            and self.resolve(name, argument := directive.argument.decode("utf-8", "replace")) is None
            and not self.is_build_written(argument)
            and include_target(argument) not in self._copies
            for directive in item.directives
        )

    @functools.cached_property
    def _copies(self) -> frozenset[str]:
        """The headers of the system that the project has files of the same names of."""
        return build_headers.SYSTEM_HEADERS.intersection(name.rpartition("/")[2] for name in self.names)

    def _register(self, file: ParsedFile) -> None:
        for position, item in enumerate(file.items):
            key = (file.number, position)
            is_type = item.kind in (ItemKind.TYPE, ItemKind.ALIAS)
            is_conditional_type = is_type and bool(conditions_in(item.stack))
            for name in declared_names(item, self.macros, self.types):
                self.declared.add(name, file.number, key)
                if is_conditional_type:
                    self.conditional_types.add(name)
            if item.qualifier and item.function_name:
                self.members.add(item.function_name, file.number, (item.qualifier, key))
            types = attached_to(item, self.types)
            for name in types:
                self.attached.add(name, file.number, (key, types))

    def macros_of_header(self, base: str) -> Set[bytes]:
        """The macros that a header which a build writes, and no template is of, would define, by its name."""
        return self._have_macros if "conf" in base else set(build_headers.export_macros(base))

    @functools.cached_property
    def _have_macros(self) -> frozenset[bytes]:
        return build_headers.have_macros(self.deciding - self.macros.names)

    @functools.cached_property
    def command_line(self) -> Set[bytes]:
        """The macros that a build passes to the compiler (`-DHAVE_X`): it writes no configuration header."""
        arguments = itertools.chain(*self.includes.values())
        has_header = any("conf" in argument.rpartition("/")[2] for argument in arguments)
        if not self.closed or (has_header and not self.defaults.on_command_line):
            return frozenset()
        return self._have_macros

    @functools.cached_property
    def build_macros(self) -> dict[bytes, bytes]:
        """Macros that a build defines for the code: those of build files, `INLINE`, gnulib's."""
        inline = {} if b"INLINE" in self.macros.names else {b"INLINE": b"inline"}
        has_gnulib = any(name.endswith("/fcntl.in.h") for name in self.names)
        return inline | (build_headers.GNULIB_MACROS if has_gnulib else {}) | dict(self.defaults.macros)

    def definition(self, name: bytes) -> bytes:
        """The value of a macro that a text needs to be defined; 1, as `-DNAME` means, where no build says."""
        return self.build_macros.get(name) or build_headers.configured_value(name) or b"1"

    @functools.cached_property
    def switches(self) -> dict[bytes, bytes]:
        """Macros that a build sets to 0 or 1, where code has them as values (`if (CONFIG_TLS)`)."""
        return build_headers.switches(self.deciding - self.macros.names)

    @functools.cached_property
    def includers(self) -> dict[str, list[str]]:
        """The files that include each file, sources first."""
        found: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self.includes, key=lambda name: (not is_source(name), name)):
            for argument in self.includes[name]:
                target = self.resolve(name, argument)
                if target is not None:
                    found[target].append(name)
        return found

    @functools.cached_property
    def first_include(self) -> str | None:
        """The file that most source files include before all else (`stdafx.h`, a configuration), if any."""
        firsts = [
            self.resolve(name, includes[0])
            for name, includes in self.includes.items()
            if includes and is_source(name)
        ]
        (target, count), *_ = Counter(firsts).most_common(1) or [(None, 0)]
        return target if count > max(len(firsts) // 2, _FEW_SOURCES) else None

    @functools.cached_property
    def forced_include(self) -> str | None:
        """The file that the build includes before each source file, if any."""
        forced = self.defaults.forced_include
        return self.resolve(next(iter(self.names), ""), f'"{forced}"') if forced else None

    @functools.cached_property
    def defining(self) -> dict[bytes, list[str]]:
        """The source files that may define a function, by its name."""
        found: dict[bytes, list[str]] = defaultdict(list)
        for name, file in self.files.items():
            if is_source(name) and file.may_be_borrowed:
                for function in set(_FUNCTION_HEAD.findall(read_source(file))):
                    found[function].append(name)
        return found

    def item(self, key: Key) -> Item:
        """An item of a file that was read."""
        return self._parsed[self.names[key[0]]].items[key[1]]

    def resolve(self, name: str, argument: str) -> str | None:
        """The file of the project that an include (`"a.h"`, `<b/c.h>`) in the file `name` leads to."""
        key = (name, argument)
        if key not in self._targets:
            self._targets[key] = self._resolve(name, argument)
        return self._targets[key]

    def _resolve(self, name: str, argument: str) -> str | None:
        target = include_target(argument)
        is_of_kernel = (
            argument.startswith(("<linux/", "<asm/")) and target not in build_headers.KERNEL_HEADERS
        )
        # The system's headers include theirs, not a project's copies.
        if not self.closed or (is_of_kernel and not self._is_kernel):
            return None
        templates = [target + ending for ending in TEMPLATE_ENDINGS]
        if target not in build_headers.PUBLIC_HEADERS:  # of gnulib; its `math.in.h` precedes the system's
            templates.append(target.removesuffix(".h") + ".in.h")
        found = self._index.beside(name, target) if argument[0] == '"' else None
        template = self.defaults.template_of(target.rpartition("/")[2], name)
        if found is None and template in self.files and is_template(template):
            found = template
        if argument[0] == '"' and found is None:
            found = next(filter(None, (self._index.beside(name, each) for each in templates)), None)
        if found is None and (argument[0] == '"' or target not in build_headers.SYSTEM_HEADERS):
            found = self._index.nearest(name, target)
        found = found or next(filter(None, (self._index.nearest(name, each) for each in templates)), None)
        if found is not None and is_template(found):
            return self._built(target, found) or found
        return found or self._index.installed(target)

    def _built(self, target: str, template: str) -> str | None:
        """The header that a build has made of a template, where the project holds one."""
        beside = PurePosixPath(template).with_name(PurePosixPath(target).name).as_posix()
        if beside in self.files:
            return beside
        matches = (
            name for end in (beside, target) for name in self._built_files if f"/{name}".endswith(f"/{end}")
        )
        return next(matches, None)

    @functools.cached_property
    def _built_files(self) -> list[str]:
        return [name for name, file in self.files.items() if file.is_built]

    def is_build_written(self, argument: str) -> bool:
        """True for an include that nothing answers, of a header that only a build can have written."""
        if not self.closed or argument in self._library_includes:
            return False
        is_written = include_target(argument) in self.defaults.written
        return is_written or build_headers.is_build_written(argument, self._folders)

    @functools.cached_property
    def _library_includes(self) -> frozenset[str]:
        return library_includes(self.includes, self.resolve)


def _outside_groups(item: Item) -> bytes:
    """The lines of an item that stand in no `#if` group."""
    if not item.directives:
        return item.text
    depth, found = 0, []
    for line in item.text.split(b"\n"):
        match = _CONDITIONAL.match(line)
        keyword = match.group(1) if match else b""
        depth += keyword == b"if"
        if not depth:
            found.append(line)
        depth -= keyword == b"endif"
    return b"\n".join(found)


def _whole(lexed: LexedSource, number: int) -> Item:
    """A file whose brackets close within other `#if`s than they open in, as one item."""
    functions = set(_BEFORE_BRACKET.findall(lexed.names)) - _KEYWORDS
    types = set(TYPE_NAME.findall(lexed.names))
    return Item(
        kind=ItemKind.REGION,
        text=lexed.data.rstrip(b"\n"),
        stack=(),
        mentions=frozenset(IDENTIFIER.findall(lexed.names)).union(
            *(names_in(directive.argument) for directive in lexed.directives)
        ),
        line=0,
        last_line=lexed.data.rstrip(b"\n").count(b"\n"),
        names=tuple(sorted(functions | types)),
        directives=tuple(lexed.directives),
        end=len(lexed.data.rstrip(b"\n")),
    )


def _guards(parsed: FileItems) -> dict[int, list[Condition]]:
    """The include guards around parts of a file, by the items in them."""
    found: dict[int, list[Condition]] = defaultdict(list)
    for group in reversed(inner_first(parsed.lexed.groups)):
        if group.start in parsed.passed and group.start not in parsed.lexed.guard_directives:
            macro, beside = group.guard  # what stands beside it is a condition of its own
            condition = Condition((b"#ifndef " + macro,), group.end if beside else group.start)
            for number, item in enumerate(parsed.items):
                if group.start <= item.start < group.end:
                    found[number].append(condition)
    return dict(found)
