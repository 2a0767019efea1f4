"""Parses units with libclang: what their lines refer to, and what `#if` leaves out; a process of its own.

Started as `python -P -m cpplm.corpus.clang.worker`. It reads a request per line of stdin and answers with a
line on stdout, both JSON: first the setup, then units. libclang runs nothing of what it parses, but the code
is not trusted: libclang follows its `#include`s and may crash, hang or swell on it. So this process takes
limits on processor time and memory and, on Linux, gives up writing, opening sockets, and reading anything
but the project, the toolchain and the folders that it is given. Where the kernel has no Landlock it says so;
an `#include "/etc/passwd"` can then leak into the error that the report shows.

Kinds of cursors are written as their numbers in clang-c/Index.h, which are part of its stable interface.
Lines count from 0.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import resource
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from clang import cindex
from clang.cindex import Cursor, SourceLocation, SourceRange

from cpplm.corpus.clang.compile_commands import front_end_flags
from cpplm.sandbox import isolation, seccomp
from cpplm.sandbox.request import LaunchRequest

# Documents are for g++: as far as glibc and libstdc++ let it, libclang passes for that.
_FLAGS = (
    "-w",
    "-ferror-limit=0",
    "-fno-spell-checking",
    "-fno-caret-diagnostics",
    "-U__clang__",
    "-fgnuc-version=6",
)
_PROBE = "#include <stddef.h>\n#include <stdarg.h>\n#include <limits.h>\n#include <string>\n"
# The GNU dialects: POSIX functions are declared, `unix` is a macro, as where the projects are built.
_STANDARDS = {"c": "-std=gnu11", "c++": "-std=gnu++17"}
_OPTIONS = 0x1 | 0x2 | 0x200  # CXTranslationUnit_DetailedPreprocessingRecord, _Incomplete, _KeepGoing
_MOST_DIAGNOSTICS = 2_000
_LONGEST_MESSAGE = 300
# TypeRef, TemplateRef, MemberRef, VariableRef, DeclRefExpr, MemberRefExpr, CallExpr
_REFERENCES = frozenset({43, 45, 47, 50, 101, 102, 103})
# All but: unexposed, namespace, linkage specification, using, access specifier, import, assertion, friend.
_DECLARATIONS = (frozenset(range(1, 40)) | {601, 604}) - {1, 22, 23, 34, 35, 39}
_OVERLOADED = 49
_FRIEND, _TYPE_REFERENCE = 603, 43
_HOLDERS = {6: 1, 103: 2}  # FieldDecl, CallExpr: their types have to be complete
_RECORD = 105  # CXType_Record
_GO_ON, _DEEPER = 1, 2


class _Ranges(ctypes.Structure):
    _fields_: ClassVar = [("count", c_uint), ("ranges", POINTER(SourceRange))]


_Visitor = ctypes.CFUNCTYPE(c_int, Cursor, Cursor, c_void_p)
_RESULTS: tuple[tuple[Any, str], ...] = (
    (Cursor, "getTranslationUnitCursor getCursorReferenced getCanonicalCursor getTypeDeclaration"),
    (Cursor, "getSpecializedCursorTemplate"),
    (SourceLocation, "getCursorLocation getRangeStart getRangeEnd"),
    (cindex.Type, "getCursorType getCanonicalType"),
    (cindex._CXString, "getFileName getCursorSpelling"),
    (c_char_p, "getCString"),
    (POINTER(c_void_p), "getFile"),
    (POINTER(_Ranges), "getSkippedRanges"),
)


def _load_library() -> ctypes.CDLL:
    """libclang without the checks that its Python bindings put around every call: 5 times faster to walk."""
    library = ctypes.CDLL(cindex.conf.get_filename())
    for result, names in _RESULTS:
        for name in names.split():
            getattr(library, f"clang_{name}").restype = result
    return library


def _node(cursor: Cursor) -> int:
    """The address of the declaration that a cursor stands on; it identifies one within its unit."""
    return cursor.data[0]


class _UnitReader:
    """The references and live text of the project's files in one parsed unit."""

    def __init__(self, library: ctypes.CDLL, unit: cindex.TranslationUnit, roots: tuple[str, ...]) -> None:
        self._library = library
        self._unit = unit
        self._roots = roots
        self._paths: dict[str, int] = {}
        self._files: dict[int | None, int] = {None: -1}
        self._entities: dict[int, int] = {}  # by the address of the first declaration
        self._meanings: dict[int, list[int]] = {}  # by the address of any
        self._names: list[str] = []
        self._places: list[set[tuple[int, int]]] = []
        self._found: set[tuple[int, int, int, int]] = set()  # file, line, entity, `_HOLDERS`
        self._open: set[tuple[int, int, str]] = set()  # file, line, name left to a template
        self._visitor = _Visitor(self._visit)
        self._top_visitor = _Visitor(self._visit_top)
        self._at = c_void_p(), c_uint()
        self._where = byref(self._at[0]), byref(self._at[1])

    def answer(self, main: str) -> dict[str, Any]:
        """All of it, with paths and entities by number."""
        names = [main, *(each.include.name for each in self._unit.get_includes())]
        skipped = {str(self._number(name)): self._skipped(name) for name in names}
        skipped.pop("-1", None)
        top = self._library.clang_getTranslationUnitCursor(self._unit.obj)
        self._library.clang_visitChildren(top, self._top_visitor, None)
        errors, first = self._errors()
        return {
            "entities": list(zip(self._names, map(sorted, self._places), strict=True)),
            "references": sorted(self._found),
            "open": sorted(self._open),
            "skipped": skipped,
            "errors": errors,
            "error": first,
            "paths": list(self._paths),
        }

    def _number(self, name: str) -> int:
        """The file's number; -1 where it is not of the project."""
        path = os.path.realpath(name)
        return self._paths.setdefault(path, len(self._paths)) if path.startswith(self._roots) else -1

    def _skipped(self, name: str) -> list[tuple[int, int]]:
        """The lines of the directives around what is left out when the file is read first."""
        library, found = self._library, []
        file = library.clang_getFile(self._unit.obj, os.fsencode(name))
        ranges = library.clang_getSkippedRanges(self._unit.obj, file)
        for each in ranges.contents.ranges[: ranges.contents.count]:
            start, end = library.clang_getRangeStart(each), library.clang_getRangeEnd(each)
            found.append((self._place(start)[1], self._place(end)[1]))
        library.clang_disposeSourceRangeList(ranges)
        return found

    def _errors(self) -> tuple[list[tuple[int, int]], str]:
        """The places of errors, and the first one in words."""
        places: list[tuple[int, int]] = []
        first = ""
        for each in itertools.islice(self._unit.diagnostics, _MOST_DIAGNOSTICS):
            if each.severity >= each.Error:
                file = each.location.file
                number = self._number(file.name) if file else -1
                places.append((number, each.location.line - 1))
                shown = Path(file.name).name if file and number >= 0 else file
                first = first or f"{shown}:{each.location.line}: {each.spelling}"[:_LONGEST_MESSAGE]
        return places, first

    def _text(self, string: cindex._CXString) -> str:
        text: bytes = self._library.clang_getCString(string) or b""
        return text.decode("utf-8", "surrogateescape")

    def _place(self, location: SourceLocation) -> tuple[int, int]:
        """File (-1: not of the project) and line; where a macro is used, not its body."""
        self._library.clang_getFileLocation(location, *self._where, None, None)
        file, line = self._at
        number = self._files.get(file.value)
        if number is None:
            number = self._number(self._text(self._library.clang_getFileName(file)))
            self._files[file.value] = number
        return number, line.value - 1

    def _visit_top(self, cursor: Cursor, parent: Cursor, data: object) -> int:
        if self._place(self._library.clang_getCursorLocation(cursor))[0] >= 0:
            self._visit(cursor, parent, data)
            self._library.clang_visitChildren(cursor, self._visitor, None)
        return _GO_ON

    def _visit(self, cursor: Cursor, parent: Cursor, data: object) -> int:
        if parent._kind_id == _FRIEND and cursor._kind_id == _TYPE_REFERENCE:
            return _DEEPER  # a friend need not be there
        is_reference = cursor._kind_id in _REFERENCES
        if not is_reference and cursor._kind_id not in _DECLARATIONS:
            return _DEEPER
        place = self._place(self._library.clang_getCursorLocation(cursor))
        if place[0] < 0:
            return _DEEPER
        target = self._library.clang_getCursorReferenced(cursor) if is_reference else cursor
        if target._kind_id in _DECLARATIONS:
            entities = self._meaning(target)
            self._found.update((*place, entity, 0) for entity in entities)
            if not is_reference:
                self._places[entities[0]].add(place)
        elif target._kind_id == _OVERLOADED:
            self._open.add((*place, self._name(target)))
        if cursor._kind_id in _HOLDERS:
            type_ = self._library.clang_getCanonicalType(self._library.clang_getCursorType(cursor))
            if type_._kind_id == _RECORD:
                record = self._library.clang_getTypeDeclaration(type_)
                self._found.update(
                    (*place, entity, _HOLDERS[cursor._kind_id]) for entity in self._meaning(record)
                )
        return _DEEPER

    def _name(self, cursor: Cursor) -> str:
        """Plain: the constructor of a template is spelled `Box<T>`."""
        name = self._text(self._library.clang_getCursorSpelling(cursor))
        return name if name.startswith("operator") else name.split("<")[0].removeprefix("~")

    def _meaning(self, target: Cursor) -> list[int]:
        """The numbers of what a cursor declares, and of the template that it was made of, if it was."""
        node = _node(target)
        if node not in self._meanings:
            library = self._library
            found = [target, library.clang_getSpecializedCursorTemplate(target)]
            if found[1]._kind_id not in _DECLARATIONS:
                found.pop()
            else:
                first, second = (library.clang_getCursorLocation(each).int_data for each in found)
                del found[: first == second]
            self._meanings[node] = [self._entity(each) for each in found]
        return self._meanings[node]

    def _entity(self, cursor: Cursor) -> int:
        """One number for all declarations of one thing."""
        first = _node(self._library.clang_getCanonicalCursor(cursor))
        if first not in self._entities:
            self._entities[first] = len(self._names)
            self._names.append(self._name(cursor))
            self._places.append(set())
        return self._entities[first]


class _Worker:
    """Answers requests one after the other."""

    def __init__(self, setup: dict[str, Any]) -> None:
        """Build the walls and try the headers; raises nothing, `hello` tells."""
        self._roots = tuple(root + "/" for root in setup["roots"])
        self._index = cindex.Index.create()
        self._library = _load_library()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (setup["memory_bytes"], setup["memory_bytes"]))
        walls = _build_walls(setup["readable"])
        self._database: cindex.CompilationDatabase | None = None
        self._builtin = ["-resource-dir", setup["builtin"]]
        error = self._probe()
        if setup["database"] and not error:
            try:
                self._database = cindex.CompilationDatabase.fromDirectory(setup["database"])
            except cindex.CompilationDatabaseError:
                error = "not a compilation database"
        self.hello = {"error": error, "walls": walls}

    def _probe(self) -> str:
        """The first error in a program that includes the compiler's own headers."""
        files = [("probe.cpp", _PROBE)]
        unit = self._index.parse("probe.cpp", args=[*_FLAGS, *self._builtin], unsaved_files=files)
        return next((each.spelling for each in unit.diagnostics if each.severity >= each.Error), "")

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        """Parse and read one unit."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime) + 1
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (spent + job["cpu_seconds"], hard))
        try:
            flags = [*_FLAGS, *self._builtin, *self._flags(job["path"], job["language"]), *job["flags"]]
            unit = self._index.parse(job["path"], args=flags, options=_OPTIONS)
        except cindex.TranslationUnitLoadError:
            return {"failed": "libclang refuses these flags"}
        return _UnitReader(self._library, unit, self._roots).answer(job["path"])

    def _flags(self, path: str, language: str) -> list[str]:
        """The flags of the database, with a language and a standard."""
        commands = self._database.getCompileCommands(path) if self._database is not None else None
        kept = front_end_flags(commands[0].arguments, Path(commands[0].directory)) if commands else []
        if "-x" not in kept:  # a header would become a precompiled one, and `.tcc` is not known at all
            kept = ["-x", language, *kept]
        if not any(flag.startswith("-std=") for flag in kept):
            kept.append(_STANDARDS[kept[-kept[::-1].index("-x")]])  # the last one counts
        return kept


def _build_walls(readable: list[str]) -> str:
    """Give up what parsing does not need; returns what stands between the code and this machine."""
    if sys.platform != "linux":
        return "limits"
    isolation.die_with_parent()
    isolation.process_control(isolation.PR_SET_NO_NEW_PRIVS, 1)
    names = ["limits"]
    try:
        existing = [path for path in dict.fromkeys(readable) if Path(path).exists()]
        request = LaunchRequest(read_only=existing, folders={}, devices=[os.devnull], scratch_bytes=0)
        isolation.landlock(request, os.devnull)
        names.append("Landlock")
    except OSError:
        pass  # an older kernel, or one without Landlock: `names` says which walls stand
    if seccomp.supported():
        isolation.install_filter(seccomp.assemble(shared_host=True))
        names.append("seccomp")
    return ", ".join(names)


def main() -> None:
    """Serve until stdin ends."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answers:
        os.dup2(2, 1)  # what libclang prints does not get between the answers
        worker: _Worker | None = None
        for line in iter(sys.stdin.buffer.readline, b""):
            request = json.loads(line)
            if worker is None:
                worker = _Worker(request)
            answer = worker.hello if "roots" in request else worker.answer(request)
            answers.write(json.dumps(answer, separators=(",", ":")) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
