"""One writer at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from cpplm.core.errors import UserError
from cpplm.core.storage import is_bucket, sha256


@contextmanager
def exclusive_lock(folder: str | Path) -> Iterator[None]:
    """Hold `folder` until this process ends, however it ends.

    The lock lies among the machine's temporary files, so the folder stays clean; processes on other machines
    and writers to a bucket are not seen.

    Raises:
        UserError: another process holds it.
    """
    if is_bucket(folder):
        yield
        return
    user = os.getuid() if hasattr(os, "getuid") else "user"
    locks = Path(tempfile.gettempdir()) / f"cpplm-locks-{user}"
    locks.mkdir(mode=0o700, exist_ok=True)
    name = sha256(str(Path(folder).expanduser().resolve()).encode())[:32]
    try:
        with filelock.FileLock(locks / f"{name}.lock", timeout=0):
            yield
    except filelock.Timeout as error:
        raise UserError(
            f"another cpplm process is writing {folder}", fix="Wait for it, or name another --out."
        ) from error
