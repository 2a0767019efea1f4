"""With which flags libclang reads each file: from the compilation database, its neighbours, or guessed.

A file of the database gets its own flags. Another file of a project that has one, headers above all, gets
those of the entry that lies nearest to it, as clangd does. Without a database the language standard is what
compilers of today default to, and include folders are guessed from where the files lie.

libclang's wheel has none of the headers that belong to the compiler itself (stddef.h, immintrin.h), and
without them every unit ends in a fatal error. They are taken from the `clang-tidy` wheel, which ships them;
else from an installed clang; else from GCC, whose intrinsics Clang cannot read.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.corpus.clang.compile_commands import Database
from cpplm.corpus.compile.include_paths import IncludePaths
from cpplm.corpus.ingest.discovery import Project, SourceFile, find_cxx_headers
from cpplm.cpp.file_suffixes import SOURCE_SUFFIXES, is_source

# The GNU dialects: POSIX functions are declared, `unix` is a macro, as where the projects are built.
_STANDARDS = {"c": "-std=gnu11", "c++": "-std=gnu++17"}
INSTALL = "pip install 'cpplm[semantic]'"


def libclang_version() -> str:
    """The version of the installed libclang.

    Raises:
        UserError: it is not installed.
    """
    try:
        return version("libclang")
    except PackageNotFoundError as error:
        raise UserError("--semantic needs libclang", fix=INSTALL) from error


def builtin_headers() -> list[list[str]]:
    """Flags that may lead to the compiler's own headers, the best first; the worker tries them."""
    choices: list[list[str]] = []
    wheel = importlib.util.find_spec("clang_tidy")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        own = Path(folder, "data", "lib", "clang", libclang_version().split(".")[0])
        choices += [["-resource-dir", str(own)]] if own.is_dir() else []
    for compiler, question, flag in (
        ("clang", "-print-resource-dir", "-resource-dir"),
        ("gcc", "-print-file-name=include", "-isystem"),
    ):
        path = shutil.which(compiler)
        if path is not None:
            asked = subprocess.run(
                [path, question], capture_output=True, text=True, check=False, timeout=60
            ).stdout.strip()
            choices += [[flag, asked]] if Path(asked).is_dir() else []
    return choices


class ClangFlags:
    """The flags of every file of one project."""

    def __init__(self, project: Project, files: Sequence[SourceFile], database: Database | None) -> None:
        """Make ready; nothing is read yet.

        Args:
            project: the project.
            files: its files.
            database: how it is compiled, if that is known.

        Raises:
            UserError: there is no g++, and so no standard library.
        """
        system = [Path("/usr/include"), *find_cxx_headers()]
        self._guessed = [(root, IncludePaths(root, system)) for root in project.roots]
        suffixes = {file.path.suffix.lower() for file in files} & SOURCE_SUFFIXES
        self._headers_are_c = suffixes == {".c"}
        self._flags = {} if database is None else database.flags
        self._entries = sorted((str(path), flags) for path, flags in self._flags.items())

    def has_entry(self, file: SourceFile) -> bool:
        """True if the database says how this very file is compiled."""
        return file.path.resolve() in self._flags

    def of(self, file: SourceFile) -> list[str]:
        """The flags of one file."""
        own = self._flags.get(file.path.resolve())
        language = "c" if file.path.suffix == ".c" or self._is_c_header(file) else "c++"
        flags = list(own if own is not None else self._of_neighbour(str(file.path.resolve()), language))
        if "-x" not in flags:  # a header would become a precompiled one, and `.tcc` is not known at all
            flags = ["-x", language, *flags]
        if not any(flag.startswith("-std=") for flag in flags):
            flags.append(_STANDARDS[flags[flags.index("-x") + 1]])
        return flags if own is not None else [*flags, *self._include_folders(file)]

    def _is_c_header(self, file: SourceFile) -> bool:
        return self._headers_are_c and not is_source(file.name)

    def _of_neighbour(self, path: str, language: str) -> list[str]:
        """Flags of the entry that shares the longest beginning of its path, without another language's."""
        if not self._entries:
            return []
        # By characters: foo.h shares more with foo.cc than with its other neighbours.
        nearest = max(self._entries, key=lambda entry: len(os.path.commonprefix([entry[0], path])))[1]  # noqa: RUF071
        before = ["", *nearest]
        return [
            flag
            for last, flag in zip(before, nearest, strict=False)
            if "-x" not in (last, flag)
            and not (flag.startswith("-std=") and ("++" in flag) != (language == "c++"))
        ]

    def _include_folders(self, file: SourceFile) -> list[str]:
        """The `include` folders above the file, so that no installed copy of them is read; then guesses."""
        for root, paths in self._guessed:
            if root in file.path.parents:
                inside = file.path.relative_to(root)
                folders = [root / each / "include" for each in inside.parents]
                near = [str(folder) for folder in folders if folder.is_dir()]
                guessed = paths.options(inside.as_posix(), prefix=str(root))
                return [*(word for folder in near for word in ("-I", folder)), *guessed]
        return []


__all__ = ["INSTALL", "ClangFlags", "builtin_headers", "libclang_version"]
