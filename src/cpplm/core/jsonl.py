"""JSON Lines files that only grow: kill -9 and a full disk cost the record being written, and no other.

Each record is one line, written at once. A line that was torn is no record for whoever reads the file; who
appends to it next replaces the file without it or, where others may be writing too, ends it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage


def read_jsonl(path: Path, *, damaged: Literal["refuse", "stop", "skip"] = "refuse") -> Iterator[Any]:
    """The records of a file, oldest first; none of a file that is not there. A torn last line is ignored.

    Args:
        path: of the file.
        damaged: whether a complete line that is not JSON is an error, ends the records, or is passed over.

    Raises:
        UserError: a line is damaged and `damaged` is "refuse"; names it.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if damaged == "refuse":
                message = f"{path}:{number} is not valid JSON: {error}"
                raise UserError(message, fix="Remove that line.") from error
            if damaged == "stop":
                return
            continue
        yield record


class JsonlFile:
    """A file to which records are appended."""

    def __init__(self, path: Path, records: Iterable[Any] | None = None) -> None:
        """Open for appending; the folder is made.

        Args:
            path: of the file.
            records: what the file shall hold to begin with: it is replaced at once, or stays as it was. None
                appends to what there is, also beside other processes.

        Raises:
            UserError: the file cannot be written.
        """
        self.path = path
        if records is not None:
            text = "".join(f"{json.dumps(record)}\n" for record in records)
            Storage(path.parent, create=True).write(path.name, text.encode())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
            size = self._file.seek(0, os.SEEK_END)
            self._file.seek(max(0, size - 1))
            self._torn = self._file.read(1) not in (b"", b"\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error

    def append(self, record: Any) -> None:
        """Write a record and hand it to the operating system.

        Raises:
            UserError: the disk is full; nothing of the record is left in the file.
        """
        line = b"\n" * self._torn + json.dumps(record).encode() + b"\n"
        try:
            written = self._file.write(line)
        except OSError as error:
            raise self._cannot_write(str(error.strerror)) from error
        if written < len(line):
            end = self._file.tell()
            if end == os.fstat(self._file.fileno()).st_size:  # no other process has written behind it
                self._file.truncate(end - written)
            raise self._cannot_write(os.strerror(errno.ENOSPC))
        self._torn = False

    def _cannot_write(self, why: str) -> UserError:
        return UserError(
            f"cannot write {self.path}: {why}",
            fix="Free some space, then run the same command again; what was written before is kept.",
        )

    def close(self, *, sync: bool = True) -> None:
        """Close, by default once everything is on the disk."""
        if not self._file.closed:
            if sync:
                os.fsync(self._file.fileno())
            self._file.close()


class ResumableJsonl:
    """The records of one job, which a later call with an equal header continues; a context manager.

    The header is the file's first line: what the records depend on. A file with another header belongs to
    another job and is begun anew. Without a path the records are only in memory.
    """

    def __init__(
        self, path: Path | None, header: Any, *, damaged: Literal["refuse", "stop"] = "stop"
    ) -> None:
        """Read the records of an equal job, or begin.

        Args:
            path: of the file; its folder is made.
            header: plain JSON.
            damaged: what comes of a damaged line, as in `read_jsonl`.

        Raises:
            UserError: the file is damaged or cannot be written; it stays as it was.
        """
        self.path = path
        header = json.loads(json.dumps(header))
        lines = list(read_jsonl(path, damaged=damaged)) if path else []
        self.records: list[Any] = lines[1:] if lines[:1] == [header] else []
        self._file = JsonlFile(path, [header, *self.records]) if path else None

    def append(self, record: Any) -> None:
        """Add a record and hand it to the operating system."""
        self.records.append(record)
        if self._file is not None:
            self._file.append(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
