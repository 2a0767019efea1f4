"""One translation unit of libclang to references: what each identifier of a project file means.

What is recorded is safe to cut candidates by: an identifier counts as understood only if a cursor of the tree
lies on that very token. Dead branches, macro bodies and what depends on template arguments stay open.
Kinds of cursors are written as their numbers in clang-c/Index.h, which are part of its stable interface.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import re
from collections import defaultdict
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_uint, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from clang import cindex

from cpplm.corpus.clang.protocol import References
from cpplm.cpp.lexer import IDENTIFIER, lex

_NAMESPACES = frozenset({22, 46})  # Namespace, NamespaceRef
# TypeRef, TemplateRef, MemberRef, VariableRef, DeclRefExpr, MemberRefExpr, CallExpr
_REFERENCES = frozenset({43, 45, 47, 50, 101, 102, 103})
# All but: unexposed, namespace, linkage specification, using, access specifier, import, assertion, friend.
_DECLARATIONS = (frozenset(range(1, 40)) | {601, 604}) - {1, 22, 23, 34, 35, 39}
# Struct, union, class, enum, function, variable, method, constructor, destructor, conversion, templates.
_LINKED = frozenset({2, 3, 4, 5, 8, 9, 21, 24, 25, 26, 30, 31})
_EXTERNAL_LINKAGE = 4
_GO_ON, _DEEPER = 1, 2
_SKIP_BODIES = 0x10  # CXIndexOpt_SkipParsedBodiesInSession: always those in system headers
# CXTranslationUnit_Incomplete: implicit instantiations at the end of the unit are not wanted;
# CXTranslationUnit_KeepGoing: what comes after a missing header is.
_OPTIONS = 0x2 | 0x200


class Cursor(Structure):
    """CXCursor; `node` is the address of a declaration, so it identifies one within its unit."""

    _fields_: ClassVar = [
        ("kind", c_int), ("xdata", c_int), ("node", c_void_p), ("extra", c_void_p), ("unit", c_void_p),
    ]  # fmt: skip


class Location(Structure):
    """CXSourceLocation."""

    _fields_: ClassVar = [("pointers", c_void_p * 2), ("number", c_uint)]


class String(Structure):
    """CXString."""

    _fields_: ClassVar = [("data", c_void_p), ("flags", c_uint)]


class Callbacks(Structure):
    """IndexerCallbacks, none of them used."""

    _fields_: ClassVar = [("functions", c_void_p * 8)]


_Visitor = ctypes.CFUNCTYPE(c_int, Cursor, Cursor, c_void_p)


def load_library() -> ctypes.CDLL:
    """libclang without the checks that its Python bindings put around every call: 5 times faster to walk."""
    library = ctypes.CDLL(cindex.conf.get_filename())
    signatures: dict[str, tuple[list[Any], Any]] = {
        "clang_IndexAction_create": ([c_void_p], c_void_p),
        "clang_IndexAction_dispose": ([c_void_p], None),
        "clang_indexSourceFile": (
            [
                *(c_void_p, c_void_p, POINTER(Callbacks), c_uint, c_uint, c_char_p, POINTER(c_char_p)),
                *(c_int, c_void_p, c_uint, POINTER(c_void_p), c_uint),
            ],
            c_int,
        ),
        "clang_getTranslationUnitCursor": ([c_void_p], Cursor),
        "clang_visitChildren": ([Cursor, _Visitor, c_void_p], c_uint),
        "clang_getCursorReferenced": ([Cursor], Cursor),
        "clang_getCursorDefinition": ([Cursor], Cursor),
        "clang_getCanonicalCursor": ([Cursor], Cursor),
        "clang_getSpecializedCursorTemplate": ([Cursor], Cursor),
        "clang_getCursorLocation": ([Cursor], Location),
        "clang_getFileLocation": (
            [Location, POINTER(c_void_p), POINTER(c_uint), POINTER(c_uint), POINTER(c_uint)],
            None,
        ),
        "clang_getFileName": ([c_void_p], String),
        "clang_getCursorSpelling": ([Cursor], String),
        "clang_getCursorUSR": ([Cursor], String),
        "clang_getCString": ([String], c_char_p),
        "clang_disposeString": ([String], None),
        "clang_getCursorLinkage": ([Cursor], c_int),
        "clang_isCursorDefinition": ([Cursor], c_uint),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def parse(
    library: ctypes.CDLL, index: cindex.Index, path: str, flags: list[str]
) -> cindex.TranslationUnit | None:
    """Parse a file; None when the flags are refused.

    Only the indexing interface can leave out the bodies of functions in system headers alone, which saves a
    quarter of the time; only the other one goes on after a header that is missing.
    """
    unit = _parse_quickly(library, index, path, flags)
    if unit is None or all(each.severity < each.Fatal for each in unit.diagnostics):
        return unit
    try:
        return index.parse(path, args=flags, options=_OPTIONS)
    except cindex.TranslationUnitLoadError:
        return None


def _parse_quickly(
    library: ctypes.CDLL, index: cindex.Index, path: str, flags: list[str]
) -> cindex.TranslationUnit | None:
    action = library.clang_IndexAction_create(index.obj)
    arguments = [os.fsencode(flag) for flag in flags]
    callbacks, unit = Callbacks(), c_void_p()
    try:
        library.clang_indexSourceFile(
            *(action, None, byref(callbacks), ctypes.sizeof(callbacks), _SKIP_BODIES, os.fsencode(path)),
            *((c_char_p * len(arguments))(*arguments), len(arguments), None, 0, byref(unit), _OPTIONS),
        )
    finally:
        library.clang_IndexAction_dispose(action)
    return cindex.TranslationUnit(ctypes.cast(unit, cindex.c_object_p), index) if unit.value else None


class Walker:
    """Collects the references of one parsed unit."""

    def __init__(self, library: ctypes.CDLL, number_of: Callable[[str], int], walk: list[int]) -> None:
        self._library = library
        self._number_of = number_of
        self._walked = set(walk)
        self._files: dict[int | None, int] = {None: -1}
        self._names: dict[str, int] = {}
        self._entities: dict[int, tuple[str, int]] = {}
        self.entities: list[list[Any]] = []
        self.definitions: set[tuple[str, int, int]] = set()
        # (line, column) to (name, entity), by file; a name alone where a namespace is meant
        self.found: dict[int, dict[tuple[int, int], set[tuple[str, int]]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self._visitor = _Visitor(self._visit)
        self._top_visitor = _Visitor(self._visit_top)

    def walk(self, unit: int) -> None:
        """Collect from all declarations in project files."""
        top = self._library.clang_getTranslationUnitCursor(unit)
        self._library.clang_visitChildren(top, self._top_visitor, None)

    def _text(self, string: String) -> str:
        text: bytes = self._library.clang_getCString(string) or b""
        self._library.clang_disposeString(string)
        return text.decode("utf-8", "surrogateescape")

    def place(self, cursor: Cursor) -> tuple[int, int, int]:
        """File (-1: not of the project), line and column from 1; where a macro is used, not its body."""
        file, line, column, offset = c_void_p(), c_uint(), c_uint(), c_uint()
        location = self._library.clang_getCursorLocation(cursor)
        self._library.clang_getFileLocation(location, byref(file), byref(line), byref(column), byref(offset))
        number = self._files.get(file.value)
        if number is None:
            name = self._text(self._library.clang_getFileName(file))
            number = self._files[file.value] = self._number_of(name)
        return number, line.value, column.value

    def _visit_top(self, cursor: Cursor, parent: Cursor, data: object) -> int:
        if self.place(cursor)[0] < 0:
            return _GO_ON
        self._visit(cursor, parent, data)
        self._library.clang_visitChildren(cursor, self._visitor, None)
        return _GO_ON

    def _visit(self, cursor: Cursor, parent: Cursor, data: object) -> int:
        kind = cursor.kind
        if kind in _REFERENCES:
            target = self._library.clang_getCursorReferenced(cursor)
            if target.kind not in _DECLARATIONS:
                return _DEEPER
        elif kind in _DECLARATIONS:
            target = None
        elif kind not in _NAMESPACES:
            return _DEEPER
        number, line, column = self.place(cursor)
        if number not in self._walked:
            return _DEEPER
        if kind in _NAMESPACES:
            self.found[number][line, column].add((self._text(self._spelling(cursor)), -1))
            return _DEEPER
        name, entity = self._declared(cursor) if target is None else self._referred(target)
        if name.startswith("~"):
            name, column = name[1:], column + 1
        if name:
            self.found[number][line, column].add((name, entity))
        return _DEEPER

    def _spelling(self, cursor: Cursor) -> String:
        string: String = self._library.clang_getCursorSpelling(cursor)
        return string

    def _name(self, cursor: Cursor) -> str:
        """Plain: the constructor of a template is spelled `Box<T>`."""
        name = self._text(self._spelling(cursor))
        return name if name.startswith("operator") else name.split("<")[0]

    def _referred(self, target: Cursor) -> tuple[str, int]:
        """Name and entity of what a reference means: its declarations, its definition, its template."""
        known = self._entities.get(target.node)
        if known is not None:
            return known
        library = self._library
        template = library.clang_getSpecializedCursorTemplate(target)
        origin = template if template.kind in _DECLARATIONS else target
        definition = library.clang_getCursorDefinition(origin)
        cursors = [target, origin, library.clang_getCanonicalCursor(origin)]
        usr = ""
        if definition.kind in _DECLARATIONS:
            cursors.append(definition)
        elif library.clang_getCursorLinkage(origin) == _EXTERNAL_LINKAGE:
            usr = self._text(library.clang_getCursorUSR(origin))
        named_entity = self._name(target), self._entity(usr, cursors)
        self._entities[target.node] = named_entity
        return named_entity

    def _declared(self, cursor: Cursor) -> tuple[str, int]:
        """Name and entity of a declaration at its own place: itself, the first one, and its template's.

        So a specialisation belongs to its template.
        """
        library = self._library
        if (
            library.clang_isCursorDefinition(cursor)
            and library.clang_getCursorLinkage(cursor) == _EXTERNAL_LINKAGE
        ):
            number, line, _ = self.place(cursor)
            self.definitions.add((self._text(library.clang_getCursorUSR(cursor)), number, line - 1))
        cursors = [cursor, library.clang_getCanonicalCursor(cursor)]
        template = library.clang_getSpecializedCursorTemplate(cursor)
        if template.kind in _DECLARATIONS:
            cursors.append(library.clang_getCanonicalCursor(template))
        return self._name(cursor), self._entity("", cursors)

    def _entity(self, usr: str, cursors: list[Cursor]) -> int:
        places = sorted({(number, line - 1) for number, line, _ in map(self.place, cursors) if number >= 0})
        # What has no place in the project is not linked to it by name either.
        self.entities.append([usr if places else "", *(value for place in places for value in place)])
        return len(self.entities) - 1

    def references(self, paths: list[str]) -> References:
        """References and open identifiers of the files that were walked."""
        meant: dict[str, list[int]] = {}
        remaining: dict[str, list[int]] = {}
        for number in sorted(self._walked):
            entries = self.found[number]
            meant[str(number)] = self._references(entries)
            remaining[str(number)] = self._open(entries, Path(paths[number]).read_bytes())
        return {
            "names": list(self._names),
            "entities": self.entities,
            "references": meant,
            "open": remaining,
            "definitions": sorted(self.definitions),
        }

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _references(self, entries: dict[tuple[int, int], set[tuple[str, int]]]) -> list[int]:
        triples = {
            (line - 1, self._number(name), entity)
            for (line, _), meanings in sorted(entries.items())
            for name, entity in sorted(meanings)
            if entity >= 0
        }
        return [value for triple in sorted(triples) for value in triple]

    def _open(self, found: dict[tuple[int, int], set[tuple[str, int]]], raw: bytes) -> list[int]:
        """Identifiers that no cursor lies on, of those names that mean something elsewhere in the file."""
        data = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        starts = [0, *(match.end() for match in re.finditer(b"\n", data))]
        names = {name.encode("utf-8", "surrogateescape") for each in found.values() for name, _ in each}
        understood = {
            (starts[line - 1] + column - 1, name.encode("utf-8", "surrogateescape"))
            for (line, column), meanings in found.items()
            if line <= len(starts)
            for name, _ in meanings
        }
        lexed = lex(data)
        missed = {
            (bisect.bisect_right(starts, match.start()) - 1, match.group())
            for match in IDENTIFIER.finditer(lexed.names)
            if match.group() in names and (match.start(), match.group()) not in understood
        }
        for directive in lexed.directives:
            line = bisect.bisect_right(starts, directive.start) - 1
            missed.update((line, name) for name in IDENTIFIER.findall(directive.argument) if name in names)
        pairs = [
            (line, self._number(name.decode("utf-8", "surrogateescape"))) for line, name in sorted(missed)
        ]
        return [value for pair in pairs for value in pair]
