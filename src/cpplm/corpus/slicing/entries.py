"""Index of names by the files that declare them, searched by the files that a unit reads.

A name such as `type` is declared by thousands of files; a unit reads few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


class EntriesByName(dict[bytes, dict[int, list[T]]]):
    """Entries by name and file."""

    def add(self, name: bytes, file: int, entry: T) -> None:
        """Add what a file, by its number in the project, says of a name."""
        self.setdefault(name, {}).setdefault(file, []).append(entry)

    def find(self, name: bytes, files: Mapping[int, object]) -> list[T]:
        """The entries of a name in these files, file by file, whichever was read first."""
        by_file = self.get(name, {})
        return [entry for file in sorted(by_file.keys() & files.keys()) for entry in by_file[file]]
