"""The n-gram index of a project's files, made anew in the background as they change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from cpplm.generate.ngram_mixture import NgramIndex, NgramMixture
from cpplm.generate.project.files import ProjectFile

Encode = Callable[[str], list[int]]
MAX_TOKENS = 5_000_000  # of all files; about 15 MB
_MAX_CHARS = 32_000  # of the file with the cursor, on each side
_PAUSE = 50  # times as long as making an index takes nobody makes the next one


class ProjectNgrams:
    """An n-gram index that follows a project's files."""

    def __init__(self, encode: Encode, files: Mapping[str, ProjectFile]) -> None:
        """Read all files.

        Args:
            encode: text to ids.
            files: of the project, by their names.
        """
        self._encode = encode
        self._lock = threading.Lock()
        self._ids: dict[str, tuple[ProjectFile, npt.NDArray[np.int32]]] = {}
        self._build(files)

    def mixture(self, files: Mapping[str, ProjectFile], name: str, prefix: str, suffix: str) -> NgramMixture:
        """The mixture for a cursor.

        Args:
            files: of the project as they are now.
            name: of the file with the cursor.
            prefix: all of it before the cursor.
            suffix: all behind.
        """
        if files != self._files and time.monotonic() >= self._next and self._lock.acquire(blocking=False):
            threading.Thread(target=partial(self._rebuild, files), daemon=True).start()
        near = {"prefix": self._encode(prefix[-_MAX_CHARS:]), "suffix": self._encode(suffix[:_MAX_CHARS])}
        return NgramMixture(self._index, NgramIndex(near), name)

    def _rebuild(self, files: Mapping[str, ProjectFile]) -> None:
        try:
            self._build(files)
        finally:
            self._lock.release()

    def _build(self, files: Mapping[str, ProjectFile]) -> None:
        begin, left = time.monotonic(), MAX_TOKENS
        ids: dict[str, tuple[ProjectFile, npt.NDArray[np.int32]]] = {}
        for name, file in sorted(files.items(), key=lambda item: -item[1].stat[0]):  # the newest first
            known = self._ids.get(name)
            if known is None or known[0] != file:
                known = file, np.array(self._encode(file.text), np.int32)
            left -= len(known[1])
            if left < 0:
                break
            ids[name] = known
        self._index = NgramIndex({name: each for name, (_, each) in ids.items()})
        self._ids, self._files = ids, files
        self._next = time.monotonic() + _PAUSE * (time.monotonic() - begin)
