"""What the files of a project say of a name, found by the files that a unit reads.

A name such as `type` is declared by thousands of files; a unit reads few of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, KeysView
from typing import Generic, TypeVar

T = TypeVar("T")


class EntriesByName(Generic[T]):
    """Entries by name and file."""

    def __init__(self) -> None:
        """Without entries."""
        self._entries: dict[bytes, dict[int, list[tuple[int, T]]]] = {}
        self._numbers = itertools.count()

    def __contains__(self, name: bytes) -> bool:
        return name in self._entries

    def names(self) -> KeysView[bytes]:
        """The names that have entries."""
        return self._entries.keys()

    def add(self, name: bytes, file: int, entry: T) -> None:
        """Add what a file, by its number in the project, says of a name."""
        self._entries.setdefault(name, {}).setdefault(file, []).append((next(self._numbers), entry))

    def find(self, name: bytes, files: Collection[int]) -> list[T]:
        """The entries of a name in these files, in the order in which they were added."""
        by_file = self._entries.get(name, {})
        smaller = by_file if len(by_file) <= len(files) else files
        found = [each for file in smaller if file in by_file and file in files for each in by_file[file]]
        found.sort(key=lambda numbered: numbered[0])
        return [entry for _, entry in found]
