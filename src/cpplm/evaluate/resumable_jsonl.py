"""Records that a measurement keeps while it goes on: a crash loses none that was written.

A JSON Lines file. Its first line says what was measured with what; a file with another first line belongs to
another measurement and is begun anew. A torn last line is dropped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage


class Kept:
    """The records of one measurement; without a path they are only in memory."""

    def __init__(self, path: Path | None, config: dict[str, Any]) -> None:
        """Read the records of an equal measurement, or begin.

        Args:
            path: of the file; its folder is made.
            config: plain JSON that decides what the records say.

        Raises:
            UserError: the file cannot be written.
        """
        self.records: list[Any] = []
        self._file: IO[str] | None = None
        if path is None:
            return
        head = json.dumps(config, sort_keys=True)
        lines = _lines(path)
        if lines and lines[0] == head:
            self.records = [json.loads(line) for line in lines[1:]]
        else:
            lines = [head]
        Storage(path.parent, create=True).write(path.name, "".join(f"{line}\n" for line in lines).encode())
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error

    def add(self, record: Any) -> None:
        """Keep one more record and push it to the operating system."""
        self.records.append(record)
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def __enter__(self) -> Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def _lines(path: Path) -> list[str]:
    """Complete lines up to the first that is not JSON, whatever made it so."""
    found: list[str] = []
    if path.is_file():
        complete, _, _ = path.read_bytes().rpartition(b"\n")
        for line in complete.decode("utf-8", "replace").split("\n") if complete else []:
            try:
                json.loads(line)
            except ValueError:
                break
            found.append(line)
    return found
