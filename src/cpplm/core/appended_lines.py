"""Lines that are appended to a file, read as it grows."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_LINE = 1 << 20  # bytes; a longer line comes in pieces
READ_BYTES = 32 << 20  # at once, so that other files have their turn
_CHECKED_BYTES = 64  # that must still stand before the place from which a file is read on


class AppendedLines:
    """Complete lines of a file since the last look; another process may write, replace or remove it."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.path = path
        self.modified = 0.0
        """Unix seconds of the last change."""
        self.is_behind = False
        """There is more to be read already."""
        self._seen: tuple[int, ...] = ()
        self._offset, self._before = 0, b""

    def read(self) -> tuple[bool, list[bytes]]:
        """The new lines, and whether they are the first of a file that is another one, or was written anew.

        A line that is not complete has to wait.

        Raises:
            OSError: it is gone, cannot be read, or is no file of its own but a link.
        """
        was_behind = self.is_behind
        self.is_behind = False  # of a file that is gone nothing more is to be read
        now = self.path.lstat()
        seen = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
        if seen == self._seen and not was_behind:
            return False, []
        is_other, lines = seen[:2] != self._seen[:2], list[bytes]()
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{self.path} is no file")
            self._seen, self.modified = seen, status.st_mtime
            file.seek(max(0, self._offset - len(self._before)))
            if is_other or file.read(len(self._before)) != self._before:
                is_other, self._offset, self._before = True, 0, b""
                file.seek(0)
            end = self._offset + READ_BYTES
            while self._offset < end:
                line = file.readline(MAX_LINE)
                if not line or (not line.endswith(b"\n") and len(line) < MAX_LINE):
                    break
                self._offset += len(line)
                self._before = line[-_CHECKED_BYTES:]
                lines.append(line)
            self.is_behind = self._offset >= end
        return is_other, lines
