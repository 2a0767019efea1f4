"""Exact name resolution: libclang says what the items of a unit refer to and which text it reads.

The last file of each unit, its source if there is one, is parsed with the flags of `compile_commands.json`
or guessed ones. What libclang cannot parse, or does not understand, is matched by name, as all is without
it; such units are counted and named. The result depends on libclang's version and on the headers installed
in the system, not on the number of workers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.storage import sha256
from cpplm.corpus.clang.compile_commands import find_database, folders_in
from cpplm.corpus.clang.flags import INSTALL, GuessedFlags, builtin_headers, libclang_version
from cpplm.corpus.clang.process import ClangProcess, WorkerSetup
from cpplm.corpus.ingest.discovery import Project, SourceFile
from cpplm.corpus.ingest.walk import SkipCounts
from cpplm.corpus.settings import CorpusSettings
from cpplm.corpus.slicing.references import UnitReferences
from cpplm.sandbox.backends import toolchain_paths

# Of files of units: what went wrong, "" for nothing, and the first error.
Outcomes = dict[str, tuple[str, str]]


@dataclass(frozen=True)
class SemanticPlan:
    """The way to read one project; `digest` changes with what decides the result besides its files."""

    project: Project
    database: Path | None
    digest: str
    setup: WorkerSetup

    def figures(self) -> dict[str, Any]:
        """The source of the flags."""
        return {"database": "/".join(self.database.parts[-2:]) if self.database else ""}


def plan_semantics(settings: CorpusSettings, project: Project) -> SemanticPlan | None:
    """The plan for a project; None without --semantic, and for the headers of a system.

    Raises:
        UserError: libclang or the compiler's headers are missing, or the compilation database cannot be read.
    """
    if not settings.semantic or project.bare_headers:
        return None
    builtin = _checked_headers()
    roots = tuple(str(root.resolve()) for root in project.roots)
    readable = (*toolchain_paths(), builtin, *map(str, project.roots), *roots)
    named = settings.compile_commands
    database = named.expanduser() if named is not None else find_database(project.roots)
    digest = sha256(f"libclang {libclang_version()}".encode())
    if database is None:
        return SemanticPlan(project, None, digest, WorkerSetup(roots, readable, builtin))
    try:
        text = database.read_bytes()
    except OSError as failure:
        raise _bad_database(database, str(failure)) from failure
    folder = str(database.resolve().parent)
    readable = (*readable, folder, *(folders_in(text) if named is not None else ()))
    setup = WorkerSetup(roots, readable, builtin, database=folder)
    if error := _hello(setup)["error"]:
        raise _bad_database(database, error)
    digest = sha256(digest.encode() + text.replace(os.fsencode(project.roots[0]), b"."))
    return SemanticPlan(project, database, digest, setup)


def _bad_database(path: Path, error: str) -> UserError:
    return UserError(
        f"cannot read the compilation database {path}: {error}",
        fix="Write it anew, for example with cmake -DCMAKE_EXPORT_COMPILE_COMMANDS=ON.",
    )


def _hello(setup: WorkerSetup) -> dict[str, Any]:
    """The first answer of a process with this setup: its error, "" for none, and its walls."""
    process = ClangProcess(setup)
    hello = process.hello()
    process.close()
    return hello


@functools.cache
def _checked_headers() -> str:
    """The folder of the compiler's own headers, after they were tried.

    Raises:
        UserError: they are missing, or those of the standard library.
    """
    headers = builtin_headers()
    hello = _hello(WorkerSetup((), (*toolchain_paths(), headers), headers))
    if hello["error"]:
        raise UserError(
            f"libclang finds no usable compiler headers ({hello['error']})",
            fix=f"{INSTALL}, and install g++ for the standard library (Debian, Ubuntu: apt install g++).",
        )
    if "Landlock" not in hello["walls"]:
        log_info(
            "cpplm: WARNING: this kernel has no Landlock: what --semantic parses can include any file that "
            "you can read, and a line of it may be quoted in the first error that is reported."
        )
    return headers


class UnitParser:
    """Parses the units of one project with libclang, and remembers how that went."""

    def __init__(self, plan: SemanticPlan, files: Sequence[SourceFile]) -> None:
        """Nothing is started yet."""
        self._process = ClangProcess(plan.setup)
        self._guessed = GuessedFlags(plan.project, files)
        self._is_guess = plan.database is None
        self._files = {file.name: file for file in files}
        self._names = {str(file.path.resolve()): file.name for file in files}
        self._last: tuple[tuple[str, tuple[bytes, ...]], UnitReferences | None] | None = None
        self.outcomes: Outcomes = {}

    def __call__(self, name: str, defined: Sequence[bytes]) -> UnitReferences | None:
        """The references that the compiler finds in a file; None where it fails.

        `defined` are macros that it needs, where its flags are not known.
        """
        key = (name, tuple(defined))
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        file = self._files[name]
        macros = [f"-D{macro.decode()}" for macro in defined] if self._is_guess else []
        flags = [*self._guessed.include_folders(file), *macros]
        answer = self._process.parse(str(file.path.resolve()), self._guessed.language(file), flags)
        reason = "not parsed" if "failed" in answer else "parsed with errors" if answer["error"] else ""
        self.outcomes.setdefault(name, (reason, answer.get("failed") or answer.get("error") or ""))
        names = [self._names.get(path, "") for path in answer.get("paths", ())]
        references = UnitReferences.from_answer(answer, names) if "failed" not in answer else None
        self._last = (key, references)
        return references

    def close(self) -> None:
        """End the process."""
        self._process.close()


def semantic_figures(outcomes: Outcomes) -> dict[str, Any]:
    """For the manifest: files that were understood, and those that were not or not wholly."""
    skips = SkipCounts()
    for name, (reason, error) in outcomes.items():
        if reason:
            skips.add(reason, f"{name}: {error}")
    return {"parsed": sum(not reason for reason, _ in outcomes.values()), "incomplete": skips.to_dict()}
