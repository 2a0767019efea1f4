"""The files of one project, taken apart when first asked for, and what they declare, by name."""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from cpplm.corpus.ingest.discovery import AUTOCONF_SCRIPTS, SourceFile, is_template, read_source
from cpplm.corpus.slicing import build_headers
from cpplm.corpus.slicing.autoconf import header_template
from cpplm.corpus.slicing.build_headers import include_target
from cpplm.corpus.slicing.declared_names import attached_to, names_by_item
from cpplm.corpus.slicing.entries import EntriesByName
from cpplm.corpus.slicing.feature_macros import unnamed_items
from cpplm.corpus.slicing.include_resolver import IncludeResolver
from cpplm.corpus.slicing.outlines import without_spans
from cpplm.corpus.slicing.splicing import Splice, source_lines, splice
from cpplm.corpus.slicing.units import TYPE_NAME
from cpplm.cpp.file_suffixes import is_source
from cpplm.cpp.items import FileItems, Item, ItemKind, conditions_in, read_items, share_names
from cpplm.cpp.keywords import KEYWORD_BYTES
from cpplm.cpp.lexer import IDENTIFIER, Directive, LexedSource, conditional_groups, inner_first, names_in
from cpplm.cpp.macros import MacroTable
from cpplm.cpp.parser import Language, is_c_project, language_of
from cpplm.cpp.segments import Condition

_DEFINING = (b"define", b"undef", b"pragma")
_MEMBER = re.compile(rb"\bstruct\s++(\w++)\s++\w++\s*+[;[]")  # which is a structure itself
_BEFORE_BRACKET = re.compile(rb"\b(\w+)\s*\(")
_FUNCTION_HEAD = re.compile(rb"(?m)^[A-Za-z_][^\n;{}()#]*?\b(\w+)[ \t]*\(")
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
    language: Language
    asked_functions: frozenset[bytes]  # macros with arguments in its conditions
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
    includes: IncludeResolver
    defaults: build_headers.BuildDefaults
    macros: MacroTable
    deciding: frozenset[bytes]  # macros that conditions depend on
    implied: Mapping[bytes, bytes] = field(default_factory=dict)  # values of macros, see `implied_values`
    types: frozenset[bytes] = frozenset()  # classes that some file may define
    aliases: frozenset[bytes] = frozenset()  # typedefs that some file may have
    defines_std: bool = False
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

    def __post_init__(self) -> None:
        self.names = list(self.files)
        self.number = {name: number for number, name in enumerate(self.names)}
        self.is_c = is_c_project(self.names)

    def read(self, name: str) -> ParsedFile:
        """A file, taken apart."""
        found = self._parsed.get(name)
        if found is None:
            number = self.number[name]
            data = read_source(self.files[name])
            if is_template(name):
                is_script = name.rpartition("/")[2] in AUTOCONF_SCRIPTS
                data = build_headers.configured(
                    header_template(data) if is_script else data, self.defaults.values, self.implied
                )
            source = parsed = self._parse(name, data)
            find = functools.partial(self._fragment, name)
            data, splices = splice(data, source.items, find, lambda each: read_source(self.files[each]))
            if splices:
                parsed = self._parse(name, data)
            if not parsed.sound:
                parsed, splices = source, []
            if not parsed.sound and parsed.lexed.balanced:
                parsed = replace(parsed, items=[_whole(parsed.lexed)])
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
            once = parsed.lexed.is_read_once
            unnamed = sorted(unnamed_items(items))
            external = {
                position: b"\n".join(directive.line for directive in items[position].directives)
                for position in unnamed
                if position not in guards and self._leads_out(name, items[position])
            }
            events = [position for position in events if position not in external]
            unconditional = [item for item in items if not conditions_in(item.stack)]
            mentioned = frozenset[bytes]().union(
                *(
                    item.mentions.intersection(IDENTIFIER.findall(_outside_groups(item)))
                    if item.directives[1:]
                    else item.mentions
                    for item in unconditional
                )
            )
            members = (
                _MEMBER.findall(_outside_groups(item)) for item in unconditional if item.kind == ItemKind.TYPE
            )
            found = self._parsed[name] = ParsedFile(
                *(name, number, source, parsed, splices, events, once, guards, unnamed, external, items),
                language_of(name, self.is_c, data),
                self._functions_in_conditions(parsed.lexed.directives),
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
        target = self.includes.resolve(name, argument)
        if target is None or target == name or not self.files[target].may_be_borrowed:
            return None
        return target

    def _leads_out(self, name: str, item: Item) -> bool:
        """True for an unconditional include, or several, of what is not in the project."""
        return (item.kind == ItemKind.INCLUDE and not item.stack) and all(
            (argument := directive.target)
            and self.includes.resolve(name, argument) is None
            and not self.includes.is_build_written(argument)
            and include_target(argument) not in self._copies
            for directive in item.directives
        )

    @functools.cached_property
    def _copies(self) -> frozenset[str]:
        """The headers of the system that the project has files of the same names of."""
        return build_headers.SYSTEM_HEADERS.intersection(name.rpartition("/")[2] for name in self.names)

    def _register(self, file: ParsedFile) -> None:
        declared = names_by_item(file.items, self.macros)
        for position, item in enumerate(file.items):
            key = (file.number, position)
            types = attached_to(item, self.types)
            # A type that is found by others is found by no name.
            names = declared[position] if not types or item.kind != ItemKind.TYPE else set()
            for name in names:
                self.declared.add(name, file.number, key)
            if item.kind in (ItemKind.TYPE, ItemKind.ALIAS) and conditions_in(item.stack):
                self.conditional_types |= names
            if item.qualifier and item.function_name:
                self.members.add(item.function_name, file.number, (item.qualifier, key))
            for name in types:
                self.attached.add(name, file.number, (key, types))

    def _functions_in_conditions(self, directives: Iterable[Directive]) -> frozenset[bytes]:
        asking = (each.argument for each in directives if each.keyword in (b"if", b"elif"))
        return frozenset().union(*map(names_in, asking)) & self.macros.functions

    def macros_of_header(self, base: str) -> Set[bytes]:
        """The macros that a header which a build writes, and no template is of, would define, by its name."""
        return self._have_macros if "conf" in base else set(build_headers.export_macros(base))

    @functools.cached_property
    def _have_macros(self) -> frozenset[bytes]:
        """The macros that a configuration would define: `LIB_HAVE_UNISTD_H`, `SIZEOF_UID_T`."""
        value = build_headers.configured_value
        return frozenset(
            name
            for name in self.deciding - self.macros.names
            if (b"HAVE_" in name and value(name) == b"1") or (b"SIZEOF_" in name and value(name))
        )

    @functools.cached_property
    def command_line(self) -> Set[bytes]:
        """The macros that a build gives the compiler: for all files; `-DHAVE_X` if it writes no header."""
        arguments = itertools.chain(*self.includes.arguments.values())
        has_header = any("conf" in argument.rpartition("/")[2] for argument in arguments)
        found = (self.deciding & self.defaults.for_all_files) - self.macros.names
        if not self.includes.closed or (has_header and not self.defaults.on_command_line):
            return found
        return self._have_macros | found

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
    def switches_and_build_macros(self) -> dict[bytes, bytes]:
        """`build_macros`, and those that a build sets to 0 or 1 by their names, with what they are on Linux.

        Code has such as values: `if (CONFIG_TLS)`.
        """
        switches = filter(build_headers.is_switch, self.deciding - self.macros.names)
        return {name: build_headers.configured_value(name) or b"0" for name in switches} | self.build_macros

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


def _outside_groups(item: Item) -> bytes:
    """The text of an item that stands in no `#if` group."""
    shift = len(item.text) - item.end  # from offsets in the file
    groups, _ = conditional_groups(item.directives)
    return without_spans(item.text, [(group.start + shift, group.end + shift) for group in groups])


def _whole(lexed: LexedSource) -> Item:
    """A file whose brackets close within other `#if`s than they open in, as one item."""
    functions = set(_BEFORE_BRACKET.findall(lexed.names)) - KEYWORD_BYTES
    types = set(TYPE_NAME.findall(lexed.names))
    return Item(
        kind=ItemKind.REGION,
        text=lexed.data.rstrip(b"\n"),
        stack=(),
        mentions=frozenset(IDENTIFIER.findall(lexed.names)).union(
            *(directive.mentions for directive in lexed.directives)
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
