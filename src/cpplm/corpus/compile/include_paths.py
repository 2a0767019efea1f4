"""Guesses the `-I` that a file of a project needs from where the project's files lie.

An include that names a file of the project by the end of its path (`#include "util/hash.h"` and
`src/util/hash.h`) asks for the folder before that end (`src`). This is done for the file and for everything
that it includes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from cpplm.corpus.include_index import IncludeIndex

_INCLUDE = re.compile(
    rb'^[ \t]*#[ \t]*(?:include|include_next|import)[ \t]*([<"])([^">\n]+)[">]', re.MULTILINE
)

Include = tuple[bool, str]  # whether in quotes, and what it names


class IncludePaths:
    """The files of one project, by name. Reads each file that is asked about once; changes nothing."""

    def __init__(self, root: Path, system: Sequence[Path] = ()) -> None:
        """List the project's files.

        Args:
            root: the project's folder. Links to folders are not followed.
            system: folders that the compiler searches by itself; what `<...>` finds there is not looked for
                in the project, so that its own `string.h` does not take the place of the system's.
        """
        self._root = root
        self._system = tuple(system)
        names = []
        for folder, inside, files in os.walk(root):
            inside[:] = sorted(name for name in inside if not name.startswith("."))
            parent = Path(folder).relative_to(root)
            names += [(parent / name).as_posix() for name in sorted(files)]
        self._files = IncludeIndex(names)
        self._read: dict[str, list[Include]] = {}

    def options(self, name: str, *, prefix: str) -> list[str]:
        """Arguments for the compiler, nearest includes first.

        Args:
            name: the file, relative to the project.
            prefix: what the project's folder is called where the compiler runs.
        """
        folders: dict[tuple[str, str], None] = {}
        visited, queue = {name}, [name]
        while queue:
            current = queue.pop(0)
            for quoted, target in self._includes(current):
                path, folder = self._resolve(current, quoted, target)
                if folder is not None:
                    folders["-iquote" if quoted else "-I", folder] = None
                if path is not None and path not in visited:
                    visited.add(path)
                    queue.append(path)
        return [word for flag, folder in folders for word in (flag, f"{prefix}/{folder}".rstrip("/."))]

    def _includes(self, name: str) -> list[Include]:
        if name not in self._read:
            try:
                data = (self._root / name).read_bytes()
            except OSError:  # the compiler will say so too
                data = b""
            self._read[name] = [
                (match[1] == b'"', match[2].decode("utf-8", "replace").strip())
                for match in _INCLUDE.finditer(data)
            ]
        return self._read[name]

    def _resolve(self, name: str, quoted: bool, target: str) -> tuple[str | None, str | None]:
        """The file that an include names, and the folder that has to be searched for it, if any."""
        if quoted and (beside := self._files.beside(name, target)):
            return beside, None
        if not quoted and any((folder / target).exists() for folder in self._system):
            return None, None
        path = self._files.nearest(name, target)
        if path is None or not f"/{path}".endswith(f"/{target}"):
            return None, None
        return path, path.removesuffix(target).strip("/") or "."
