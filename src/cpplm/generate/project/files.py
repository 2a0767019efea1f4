"""The C++ files of a project in memory, kept up with the disk by their times of modification.

Nothing outside the folder is read: links are passed over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.corpus.ingest.discovery import is_cpp, normalize_source, read_raw
from cpplm.corpus.ingest.walk import SkipCounts, relative_name, walk
from cpplm.generate.project.line_index import LineIndex, places

MAX_FILE_BYTES = 500_000
_SECONDS = 1.0  # between two looks at the disk
_HEAD_LINES = 5  # by which the end of what is before a cursor is found in its file
_VOTES = 60  # lines by which a file is recognized
_RECOGNIZED = 0.5  # the share of them that it has
_TELLING = 8  # characters of a line that says where it is from


def stripped_lines(text: str) -> list[str]:
    """The lines of a text without the white space around them."""
    return [line.strip() for line in text.split("\n")]


@dataclass(frozen=True)
class ProjectFile:
    """One file as it was when it was read last."""

    path: Path
    stat: tuple[int, int]
    """Time of modification in nanoseconds, and size."""
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, without the white space around them."""
        return stripped_lines(self.text)

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """The numbers of its lines, by their text."""
        return places(self.lines)

    @cached_property
    def index(self) -> LineIndex:
        """Its lines that are not blank, by text and by pattern."""
        return LineIndex(self.text)


class ProjectFiles:
    """The files of a folder by their names in it."""

    def __init__(self, folder: Path) -> None:
        """Read the folder.

        Raises:
            UserError: it is missing, no folder, or holds no C++.
        """
        self.root = folder.expanduser().resolve()
        if not self.root.is_dir():
            what = "is a file" if self.root.exists() else "does not exist"
            raise UserError(f"--project {folder} {what}", fix="Name the folder of a C++ project.")
        self.files: dict[str, ProjectFile] = {}
        self._looked = -_SECONDS
        self.refresh()
        if not self.files:
            raise UserError(f"--project {folder} holds no C++", fix="Name the folder of a C++ project.")

    def refresh(self) -> None:
        """Read again what changed on the disk; looks there once a second at most."""
        if time.monotonic() - self._looked < _SECONDS:
            return
        known = {file.path for file in self.files.values()}
        skips, found = SkipCounts(), dict[str, ProjectFile]()
        for path in walk(self.root, skips, lambda each: each in known or is_cpp(each)):
            name = relative_name(path, self.root)
            file = self.files.get(name)
            try:
                stat = path.lstat()
            except OSError:  # it went away meanwhile
                continue
            if file is None or file.stat != (stat.st_mtime_ns, stat.st_size):
                file = self._read(path, name, (stat.st_mtime_ns, stat.st_size), skips)
            if file is not None:
                found[name] = file
        self.files = found
        self._looked = time.monotonic()

    def _read(self, path: Path, name: str, stat: tuple[int, int], skips: SkipCounts) -> ProjectFile | None:
        data = read_raw(path, self.root, name, MAX_FILE_BYTES, skips)
        return None if data is None else ProjectFile(path, stat, normalize_source(data).decode())

    def name_of(self, path: str) -> str:
        """The name in the project of a file, given by its path or its name; outside of it: UserError."""
        try:
            whole = (self.root / path).resolve()
        except (OSError, RuntimeError, ValueError):  # a loop of links, or what no path has
            whole = self.root
        if self.root not in whole.parents:
            raise UserError(f"{path!r} is not in the project {self.root}", fix="Name a file inside of it.")
        return relative_name(whole, self.root)

    def recognize(self, prefix: str, suffix: str) -> str:
        """The name of the file that has most of the lines around a cursor; "" where none has many."""
        near = [*stripped_lines(prefix)[-2::-1][:_VOTES], *stripped_lines(suffix)[1:][:_VOTES]]
        telling = {line for line in near if len(line) >= _TELLING}
        votes = {name: len(telling & file.places.keys()) for name, file in self.files.items()}
        name = max(votes, key=votes.__getitem__, default="")
        return name if name and votes[name] > _RECOGNIZED * len(telling) else ""

    def whole_prefix(self, name: str, prefix: str) -> str:
        """A prefix with what the saved file has before it, where an editor sent only the end."""
        file = self.files.get(name)
        head = "\n".join(prefix.split("\n", _HEAD_LINES)[:_HEAD_LINES])
        start = file.text.find(head) if file is not None and head.strip() else -1
        return file.text[:start] + prefix if file is not None and start > 0 else prefix
