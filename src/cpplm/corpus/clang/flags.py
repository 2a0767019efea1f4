"""The flags with which libclang reads each file, beside those of the compilation database.

Include folders are guessed from where the files lie; they come after those of the database.

libclang's wheel has none of the headers that belong to the compiler itself (stddef.h, immintrin.h), and
without them every unit ends in a fatal error. They are taken from the `clang-tidy` wheel, which ships them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.corpus.compile.include_paths import IncludePaths
from cpplm.corpus.ingest.discovery import Project, SourceFile, find_cxx_headers
from cpplm.cpp.file_suffixes import SOURCE_SUFFIXES, is_source
from cpplm.cpp.parser import Language

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


def builtin_headers() -> str:
    """The folder of the compiler's own headers.

    Raises:
        UserError: the package that has them is not installed, or another version of it.
    """
    wheel = importlib.util.find_spec("clang_tidy")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        headers = Path(folder, "data", "lib", "clang", libclang_version().split(".")[0])
        if headers.is_dir():
            return str(headers)
    raise UserError("--semantic needs the headers of clang-tidy, in the version of libclang", fix=INSTALL)


class GuessedFlags:
    """The language and the include folders of every file of one project."""

    def __init__(self, project: Project, files: Sequence[SourceFile]) -> None:
        """Make ready; nothing is read yet.

        Raises:
            UserError: there is no g++, and so no standard library.
        """
        system = [Path("/usr/include"), *find_cxx_headers()]
        self._guessed = [(root, IncludePaths(root, system)) for root in project.roots]
        suffixes = {file.path.suffix.lower() for file in files} & SOURCE_SUFFIXES
        self._headers_are_c = suffixes == {".c"}

    def language(self, file: SourceFile) -> Language:
        """The language of a file that the database does not name."""
        is_c_header = self._headers_are_c and not is_source(file.name)
        return "c" if file.path.suffix == ".c" or is_c_header else "c++"

    def include_folders(self, file: SourceFile) -> list[str]:
        """The `include` folders above the file, so that no installed copy of them is read; then guesses."""
        for root, paths in self._guessed:
            if root in file.path.parents:
                inside = file.path.relative_to(root)
                folders = [root / each / "include" for each in inside.parents]
                near = [str(folder) for folder in folders if folder.is_dir()]
                guessed = paths.options(inside.as_posix(), prefix=str(root))
                return [*(word for folder in near for word in ("-I", folder)), *guessed]
        return []
