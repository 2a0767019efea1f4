"""Reading and searching the files below one folder, for a model that may ask for any path.

Every part of a path is opened by its name in the folder before it, and links are never followed. So neither
`..`, nor a link, nor one that is put there between a check and its use, leads out of the root. Only plain
files are read; sizes, counts and the time of a search are bounded.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from cpplm.core.errors import UserError

LARGEST_FILE = 4 << 20
"""Bytes of a file that is read; a search leaves larger ones out."""
LONGEST_PATTERN = 200
"""Characters that are looked for."""
_MOST_FILES, _MOST_BYTES, _DEEPEST = 20_000, 256 << 20, 32
_MOST_HITS, _SHOWN_CHARACTERS = 50, 200
_SEARCHED_CHARACTERS = 1000  # of a line
_CHUNK = 20  # lines matched between two looks at the clock
_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class RefusedError(ValueError):
    """A path or pattern that is not served; the text says why."""


class ProjectFiles:
    """The files below a root."""

    def __init__(self, root: Path) -> None:
        """Look whether the root is a folder that can be read, else UserError."""
        self.root = root.expanduser()
        if not self.root.is_dir() or not os.access(self.root, os.R_OK | os.X_OK):
            raise UserError(f"{root}: no such folder, or it cannot be read")

    def read(self, path: str, first: int = 1, last: int = 0) -> str:
        """Lines `first` to `last` of a file (0: its last one), behind a line that says which these are.

        Raises:
            RefusedError: outside the root, no text file, too large, or no such lines.
        """
        with self._opened(path) as descriptor:
            content = _content(descriptor, path)
        if b"\0" in content:
            raise RefusedError(f"{path} is no text")
        lines = _lines(content)
        last = min(last or len(lines), len(lines))
        if not 1 <= first <= last:
            raise RefusedError(f"{path} has lines 1 to {len(lines)}, not {first} to {last}")
        return "\n".join([f"{path}, lines {first} to {last} of {len(lines)}:", *lines[first - 1 : last]])

    def search(self, deadline: float, pattern: str, regex: bool = False, path: str = "") -> str:
        """The lines with a text or a regular expression, as "path:line: text", and how many there are.

        Args:
            deadline: when to stop, by `time.monotonic`.
            pattern: literal, or of RE2's syntax, whose time grows with the text and not exponentially.
            regex: whether it is a regular expression.
            path: the folder or file to search; "" for all. Hidden ones in it are left out.

        Raises:
            RefusedError: the path is outside the root or missing, or the pattern is none.
        """
        search = _Search(deadline, pattern, regex=regex)
        with self._opened(path) as descriptor:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                search.add_folder(descriptor, path.strip("/"))
            else:
                search.add(path, _content(descriptor, path))
        return search.report()

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """A descriptor of a plain file or a folder."""
        opened: list[int] = []
        try:
            self._open(_parts(path) or ["."], opened, path)
            yield opened[-1]
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _open(self, names: list[str], opened: list[int], path: str) -> None:
        """Open folder after folder, each in the one before it, and at last what the path names."""
        *folders, name = names
        try:
            opened.append(os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            for folder in folders:
                opened.append(os.open(folder, _FOLDER, dir_fd=opened[-1]))
            opened.append(_open(name, opened[-1]))
        except (OSError, ValueError) as error:  # ValueError: a NUL byte, or half a surrogate pair
            raise RefusedError(f"{path[:200]!r} is no file or folder that can be read here") from error


def _parts(path: str) -> list[str]:
    """The names along a path, which has to stay below the root."""
    if path.startswith("/") or ".." in path.split("/"):
        raise RefusedError(f"{path[:200]!r} leads out of the project; paths begin at its root, without ..")
    names = [name for name in path.split("/") if name not in {"", "."}]
    if len(names) > _DEEPEST:
        raise RefusedError(f"a path may have {_DEEPEST} parts, not {len(names)}")
    return names


def _open(name: str, folder: int) -> int:
    """A descriptor of a plain file or a folder; opening anything else could already do something.

    Raises:
        OSError: it is something else, or it cannot be opened.
    """
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        return os.open(name, _FOLDER, dir_fd=folder)
    if not stat.S_ISREG(mode):
        raise OSError(f"{name} is no plain file")
    return os.open(name, _PLAIN, dir_fd=folder)


def _content(descriptor: int, path: str) -> bytes:
    """All bytes of an open plain file.

    Raises:
        RefusedError: it is none, or too large.
    """
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise RefusedError(f"{path} is no file")
    if facts.st_size > LARGEST_FILE:
        raise RefusedError(f"{path} has {facts.st_size:,} bytes, files of up to {LARGEST_FILE:,} are read")
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read(LARGEST_FILE)


def _lines(content: bytes) -> list[str]:
    """Without their ends; counted as compilers do, which know no end but this."""
    text = content.decode("utf-8", errors="replace").removesuffix("\n")
    return [line.removesuffix("\r") for line in text.split("\n")]


class _Search:
    """A search with its hits so far."""

    def __init__(self, deadline: float, pattern: str, *, regex: bool) -> None:
        """No hits yet; RefusedError for a pattern that is empty or too long."""
        if not 0 < len(pattern) <= LONGEST_PATTERN:
            raise RefusedError(f"look for 1 to {LONGEST_PATTERN} characters, not {len(pattern)}")
        self._deadline, self._pattern, self._regex = deadline, pattern, regex
        self._hits: list[str] = []
        self._files = self._bytes = 0
        self._stopped = ""  # why, before all was searched
        try:
            self._bare = pattern.encode()
            if regex:
                pc.match_substring_regex(pa.array([""]), pattern)
        except (UnicodeEncodeError, pa.ArrowInvalid) as error:
            raise RefusedError(f"not a pattern: {error}") from error

    def report(self) -> str:
        """The lines that were found, and what was searched."""
        if len(self._hits) > _MOST_HITS:
            self._late()
        count = f"{len(self._hits)} lines found, {self._files} files searched"
        return "\n".join([*self._hits, f"{count}; {self._stopped}" if self._stopped else count])

    def add_folder(self, folder: int, path: str) -> None:
        """Search all texts below an open folder, in the order of their names; skips what cannot be read."""
        for place, folders, names, descriptor in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
            deep = place.count("/") >= _DEEPEST
            folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
            for name in sorted(name for name in names if not name.startswith(".")):
                if self._late():
                    return
                self._add_file(name, descriptor, "/".join(filter(None, [path, place[2:], name])))
            if self._late():
                return

    def _add_file(self, name: str, folder: int, path: str) -> None:
        try:
            descriptor = _open(name, folder)
        except OSError:
            return
        try:
            self.add(path, _content(descriptor, path))
        except (OSError, RefusedError):
            return
        finally:
            os.close(descriptor)

    def add(self, path: str, content: bytes) -> None:
        """Search one file."""
        self._files += 1
        self._bytes += len(content)
        if b"\0" in content or not (self._regex or self._bare in content):
            return
        lines = _lines(content)
        for first in range(0, len(lines), _CHUNK):
            if self._late():
                return
            chunk = [line[:_SEARCHED_CHARACTERS] for line in lines[first : first + _CHUNK]]
            for place in self._matching(chunk):
                shown = chunk[place].strip()[:_SHOWN_CHARACTERS]
                self._hits.append(f"{path}:{first + place + 1}: {shown}")

    def _late(self) -> bool:
        """True if it is time to stop."""
        if len(self._hits) > _MOST_HITS:
            self._stopped = "there are more, look for something rarer"
            del self._hits[_MOST_HITS:]
        elif self._files >= _MOST_FILES or self._bytes >= _MOST_BYTES:
            self._stopped = "there are more files, name a folder"
        elif time.monotonic() > self._deadline:
            self._stopped = "the time is up"
        return bool(self._stopped)

    def _matching(self, lines: list[str]) -> list[int]:
        """Indices of the lines that have the pattern in them."""
        if not self._regex:
            return [place for place, line in enumerate(lines) if self._pattern in line]
        mask = pc.match_substring_regex(pa.array(lines), self._pattern)
        return [int(place) for place in pc.indices_nonzero(mask).to_pylist()]
