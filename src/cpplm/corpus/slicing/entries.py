"""Index of names by the files that declare them, searched by the files that a unit reads.

A name such as `type` is declared by thousands of files; a unit reads few of them.
"""

from __future__ import annotations

from collections.abc import Collection, KeysView
from typing import TypeVar

T = TypeVar("T")


class EntriesByName(dict[bytes, dict[int, list[T]]]):
    """Entries by name and file."""

    def names(self) -> KeysView[bytes]:
        """The names that have entries."""
        return self.keys()

    def add(self, name: bytes, file: int, entry: T) -> None:
        """Add what a file, by its number in the project, says of a name."""
        self.setdefault(name, {}).setdefault(file, []).append(entry)

    def find(self, name: bytes, files: Collection[int]) -> list[T]:
        """The entries of a name in these files, file by file, whichever was read first."""
        by_file = self.get(name, {})
        smaller = by_file if len(by_file) <= len(files) else files
        common = sorted(file for file in smaller if file in by_file and file in files)
        return [entry for file in common for entry in by_file[file]]
