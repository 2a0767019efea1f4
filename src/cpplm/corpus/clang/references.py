"""Exact name resolution: libclang resolves overloads and references where it can parse.

`read_semantics` parses every source file of a project in worker processes and collects, for the lines of each
project file, which declarations and definitions its names refer to. Headers are read through the first source
that includes them, or by themselves. A name counts only where each of its mentions was understood, so the
targets are safe to cut candidates by; everything else is left to matching by name, and files that libclang
cannot parse are counted and named.

The result does not depend on the number of workers. It does depend on libclang's version and on the headers
installed in the system.
"""

from __future__ import annotations

import bisect
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpplm.core.progress import progress_bar
from cpplm.core.storage import sha256
from cpplm.corpus.clang.compile_commands import Database, find_database, read_database
from cpplm.corpus.clang.flags import ClangFlags, builtin_headers, libclang_version
from cpplm.corpus.clang.process import run_parse_jobs
from cpplm.corpus.clang.protocol import ParseJob, ParseResult, WorkerSetup
from cpplm.corpus.clang.redeclarations import Redeclarations, Target
from cpplm.corpus.ingest.discovery import Project, SourceFile
from cpplm.corpus.ingest.walk import SkipCounts
from cpplm.corpus.settings import CorpusSettings
from cpplm.cpp.file_suffixes import is_source
from cpplm.sandbox.backends import toolchain_paths

CPU_SECONDS = 60
"""Processor time for one file; a large translation unit takes 5."""
MEMORY_BYTES = 4 << 30
"""Address space of a worker; a large translation unit takes 1 GiB."""
_PROBE = "#include <stddef.h>\n#include <stdarg.h>\n#include <limits.h>\n#include <string>\n"


@dataclass(frozen=True, slots=True)
class FileReferences:
    """One file's references: entry k says that on `lines[k]` the name `names[name_of[k]]` means
    `targets[target_of[k]]`; on `open_lines` stand names with a mention that was not understood."""

    names: tuple[bytes, ...]
    targets: tuple[frozenset[Target], ...]
    lines: array[int]
    name_of: array[int]
    target_of: array[int]
    open_lines: array[int]
    open_names: array[int]

    def between(self, first_line: int, last_line: int) -> dict[bytes, frozenset[Target]]:
        """Targets of the names in some lines of this file (`Semantics.targets`)."""
        return self._together(first_line, last_line, lambda targets: True)

    def declared(self, file: str, first_line: int, last_line: int) -> dict[bytes, frozenset[Target]]:
        """Declarations in some lines of this file (`Semantics.declarations`), whose name is `file`."""
        own = {(file, line) for line in range(first_line, last_line + 1)}
        return self._together(first_line, last_line, lambda targets: not targets.isdisjoint(own))

    def _together(
        self, first_line: int, last_line: int, wanted: Callable[[frozenset[Target]], bool]
    ) -> dict[bytes, frozenset[Target]]:
        """The union of the targets of each name that is nowhere open between two lines."""
        start = bisect.bisect_left(self.open_lines, first_line)
        end = bisect.bisect_right(self.open_lines, last_line)
        left_open = set(self.open_names[start:end])
        targets_of: dict[int, set[int]] = {}
        start = bisect.bisect_left(self.lines, first_line)
        end = bisect.bisect_right(self.lines, last_line)
        for name, target in zip(self.name_of[start:end], self.target_of[start:end], strict=True):
            if name not in left_open and wanted(self.targets[target]):
                targets_of.setdefault(name, set()).add(target)
        return {
            self.names[name]: frozenset().union(*(self.targets[target] for target in targets))
            for name, targets in targets_of.items()
        }


@dataclass(frozen=True)
class Semantics:
    """The references of a project that libclang resolved; small enough to send, by parts, to workers.

    `parsed` files had no error; in `partly` ones the names on lines with an error are open; `failed` ones are
    left to matching by name altogether.
    """

    files: dict[str, FileReferences]
    parsed: frozenset[str]
    partly: dict[str, str]
    failed: dict[str, str]

    def targets(self, file: str, first_line: int, last_line: int) -> dict[bytes, frozenset[Target]]:
        """The targets of the names mentioned between two lines.

        Args:
            file: name of a file of the project.
            first_line: counted from 0.
            last_line: inclusive.

        Returns:
            For each name that was understood wherever it is mentioned there: the lines of all declarations
            and definitions of what it refers to. Empty when those are outside the project, as for
            `std::move`. Names that are absent have to be matched by name.
        """
        references = self.files.get(file)
        return references.between(first_line, last_line) if references is not None else {}

    def declarations(self, file: str, first_line: int, last_line: int) -> dict[bytes, frozenset[Target]]:
        """The declarations between two lines, by name: all places of the project that declare the same.

        Names that are absent are not declared there, or some mention of them there was not understood: one in
        a dead branch, say, or on a line with an error.
        """
        references = self.files.get(file)
        return references.declared(file, first_line, last_line) if references is not None else {}

    def part(self, files: Iterable[str]) -> Semantics:
        """Only what is needed for these files."""
        wanted = frozenset(files)
        return Semantics(
            {name: each for name, each in self.files.items() if name in wanted},
            self.parsed & wanted,
            {name: error for name, error in self.partly.items() if name in wanted},
            {name: error for name, error in self.failed.items() if name in wanted},
        )

    def figures(self) -> dict[str, Any]:
        """Counts, and the files that were not or not wholly understood with their first errors."""
        skips = SkipCounts()
        for reason, errors in (("parsed with errors", self.partly), ("not parsed", self.failed)):
            for name, error in sorted(errors.items()):
                skips.add(reason, f"{name}: {error}")
        return {
            "parsed": len(self.parsed),
            "references": sum(len(each.lines) for each in self.files.values()),
            "incomplete": skips.to_dict(),
        }


@dataclass(frozen=True)
class SemanticPlan:
    """The way to read one project; `digest` changes with what decides the result besides its files."""

    database: Database | None
    digest: str

    def figures(self) -> dict[str, Any]:
        """The source of the flags, and those that were left out."""
        if self.database is None:
            return {"database": "", "entries": 0, "left_out": {}}
        return {
            "database": "/".join(self.database.path.parts[-2:]),
            "entries": len(self.database.flags),
            "left_out": self.database.skips.to_dict(),
        }


def plan_semantics(settings: CorpusSettings, project: Project) -> SemanticPlan | None:
    """The plan for a project; None without --semantic, and for the headers of a system.

    Raises:
        UserError: libclang is missing, or the compilation database cannot be read.
    """
    if not settings.semantic or project.bare_headers:
        return None
    named = settings.compile_commands is not None
    path = (
        settings.compile_commands.expanduser() if settings.compile_commands else find_database(project.roots)
    )
    database = read_database(path, project.roots, named=named) if path is not None else None
    flags = database.digest(project.roots[0]) if database is not None else "no database"
    return SemanticPlan(database, sha256(f"libclang {libclang_version()} {flags}".encode()))


def read_semantics(
    project: Project,
    files: Sequence[SourceFile],
    includes: Mapping[str, Iterable[str]],
    *,
    database: Database | None = None,
    workers: int = 1,
    cpu_seconds: int = CPU_SECONDS,
    quiet: bool = False,
) -> Semantics:
    """Parse a project with libclang.

    Args:
        project: the project.
        files: its files.
        includes: files of the project that each file includes, as far as names tell.
        database: its compilation database, if it has one.
        workers: processes at one time.
        cpu_seconds: limit for one file.
        quiet: without a progress bar.

    Raises:
        UserError: libclang, the compiler's own headers or the standard library are not installed.
    """
    reader = _ReferenceReader(project, files, includes, database, workers=workers, cpu_seconds=cpu_seconds)
    with progress_bar(None, f"libclang {project.name}", "file", disable=quiet) as bar:
        for share in (reader.by_sources, reader.by_includers, reader.alone):
            reader.run(share(), bar)
    return reader.result()


_Rank = tuple[bool, bool]  # whether the file, and whether the unit has an error
_UNREAD = (True, True, True)


class _ReferenceReader:
    """Rounds of jobs, until each file was read or failed."""

    def __init__(
        self,
        project: Project,
        files: Sequence[SourceFile],
        includes: Mapping[str, Iterable[str]],
        database: Database | None,
        *,
        workers: int,
        cpu_seconds: int,
    ) -> None:
        self._files = list(files)
        self._numbers = {file.name: number for number, file in enumerate(files)}
        self._includes = includes
        self._flags = ClangFlags(project, files, database)
        self._workers = workers
        self._cpu_seconds = cpu_seconds
        self._answers: list[tuple[ParseJob, ParseResult]] = []
        self._left = set(range(len(files)))
        self._failed: dict[int, str] = {}
        builtin = builtin_headers()
        self._setup: WorkerSetup = {
            "files": [str(file.path.resolve()) for file in files],
            "digests": [file.digest for file in files],
            "roots": [str(root.resolve()) for root in project.roots],
            "readable": _readable(project, database, builtin),
            "memory_bytes": MEMORY_BYTES,
            "builtin": builtin,
            "probe": _PROBE,
        }

    def by_sources(self) -> dict[int, list[int]]:
        """Each source with the headers that no source before it includes; those with own flags first."""
        sources = [number for number, file in enumerate(self._files) if is_source(file.name)]
        sources.sort(key=lambda number: not self._flags.has_entry(self._files[number]))
        return self._share(sources, set(sources))

    def by_includers(self) -> dict[int, list[int]]:
        """Headers through the best unit that was seen to read them; those that none reads, by one another.

        A header may have been read in a unit that lacks something, and cleanly in a later one.
        """
        best: dict[int, tuple[_Rank, int]] = {}
        current: dict[int, _Rank] = {}
        for job, answer in self._answers:
            for number in answer["seen"]:
                rank = (str(number) in answer["errors"], bool(answer["errors"]))
                if number not in best or rank < best[number][0]:
                    best[number] = rank, job["file"]
                if str(number) in answer["references"]:
                    current[number] = rank
        jobs: dict[int, list[int]] = defaultdict(list)
        for number, (rank, reader) in sorted(best.items()):
            if rank < current.get(number, _UNREAD):
                jobs[reader].append(number)
        unseen = sorted(self._left - best.keys())
        included = {other for number in unseen for other in self._included(number)}
        unseen.sort(key=lambda number: number in included)
        return {**jobs, **self._share(unseen, set())}

    def alone(self) -> dict[int, list[int]]:
        """Each of the rest by itself."""
        return {number: [number] for number in sorted(self._left - self._failed.keys())}

    def _share(self, starts: list[int], apart: set[int]) -> dict[int, list[int]]:
        """Give every unread file to the first start that includes it; those of `apart` to themselves only."""
        jobs: dict[int, list[int]] = {}
        free = self._left - apart
        for start in starts:
            if start in free or start in apart:
                mine = (self._reach(start) & free) | {start}
                free -= mine
                jobs[start] = sorted(mine)
        return jobs

    def _included(self, number: int) -> Iterator[int]:
        names = self._includes.get(self._files[number].name, ())
        return (self._numbers[name] for name in names if name in self._numbers)

    def _reach(self, start: int) -> set[int]:
        """All files that including one brings in, itself among them."""
        seen: set[int] = set()
        waiting = [start]
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                waiting.extend(self._included(number))
        return seen

    def run(self, share: dict[int, list[int]], bar: Any) -> None:
        """One round: parse, and note what was read and what failed."""
        jobs: list[ParseJob] = [
            {
                "file": start,
                "flags": self._flags.of(self._files[start]),
                "walk": walk,
                "cpu_seconds": self._cpu_seconds,
            }
            for start, walk in share.items()
        ]
        bar.total = (bar.total or 0) + len(jobs)
        answers = run_parse_jobs(jobs, self._setup, workers=self._workers, report=bar.update)
        for job, answer in zip(jobs, answers, strict=True):
            if "failed" in answer:
                self._failed.setdefault(job["file"], answer["failed"])
            else:
                self._answers.append((job, answer))
                self._left -= {int(number) for number in answer["references"]}

    def result(self) -> Semantics:
        """All answers as one, declarations linked across units."""
        names = [file.name for file in self._files]
        linked = Redeclarations([answer for _, answer in self._answers], names)
        read: dict[str, FileReferences] = {}
        errors: dict[str, str] = {}
        for _, answer in self._answers:
            targets = linked.targets(answer)
            for key in answer["references"]:  # a later reading of a file is a better one
                name = names[int(key)]
                read[name] = _file_references(answer, key, targets)
                errors.pop(name, None)
                if key in answer["errors"]:
                    errors[name] = answer["errors"][key]
        return Semantics(
            {name: read[name] for name in names if name in read},
            frozenset(read.keys() - errors.keys()),
            dict(sorted(errors.items())),
            {names[number]: self._failed[number] for number in sorted(self._left)},
        )


def _file_references(answer: ParseResult, key: str, targets: list[frozenset[Target]]) -> FileReferences:
    """One file of an answer, with tables of its own, so that it can be sent alone.

    Left open are the lines with an error, where the parser may have made up a declaration, and in a unit with
    errors what seems to lie outside the project, which may be another guess.
    """
    flat = answer["references"][key]
    triples = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
    flat = answer["open"][key]
    left_open = set(zip(flat[::2], flat[1::2], strict=True))
    if answer["errors"]:
        bad = set(answer["doubtful"].get(key, ()))
        sound = [
            (line, name, target) for line, name, target in triples if targets[target] and line not in bad
        ]
        left_open.update((line, name) for line, name, _ in set(triples).difference(sound))
        triples = sound
    pairs = sorted(left_open)
    used_names = sorted({name for _, name, *_ in (*triples, *pairs)})
    used_targets = sorted({target for _, _, target in triples})
    name_at = {name: place for place, name in enumerate(used_names)}
    target_at = {target: place for place, target in enumerate(used_targets)}
    return FileReferences(
        tuple(answer["names"][name].encode("utf-8", "surrogateescape") for name in used_names),
        tuple(targets[target] for target in used_targets),
        array("I", (line for line, _, _ in triples)),
        array("I", (name_at[name] for _, name, _ in triples)),
        array("I", (target_at[target] for _, _, target in triples)),
        array("I", (line for line, _ in pairs)),
        array("I", (name_at[name] for _, name in pairs)),
    )


def _readable(project: Project, database: Database | None, builtin: list[list[str]]) -> list[str]:
    """Folders that a worker may read: project, toolchain, and those of a database that the user named."""
    paths = [*toolchain_paths(), *map(str, project.roots)]
    paths += [flags[1] for flags in builtin]
    if database is not None:
        paths.append(str(database.path.resolve().parent))
        if database.named:
            values = {value for flags in database.flags.values() for value in flags}
            paths += sorted(value for value in values if value.startswith("/"))
    return [path for path in dict.fromkeys(paths) if Path(path).exists()]


__all__ = ["FileReferences", "SemanticPlan", "Semantics", "Target", "plan_semantics", "read_semantics"]
