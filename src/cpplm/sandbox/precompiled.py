"""Precompiled headers: gcc then maps a file into memory instead of parsing them for every program.

A set of headers is compiled inside the sandbox, from nothing but their names, and given to compilations as a
folder that they can only read. It is kept among the machine's temporary files under the hash of all that it
stands for: what the headers expand to, the flags, the compiler. After an upgrade of any of these it is made
anew. One takes 20 to 100 MB.

Source: GCC manual, "Using Precompiled Headers".
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cpplm.core.storage import sha256
from cpplm.sandbox.compiler import COMPILE_LIMITS
from cpplm.sandbox.limits import MIB
from cpplm.sandbox.sandbox import Sandbox

MAX_PCH_BYTES = 256 * MIB
_FOLDER, _HEADER = "headers", "all.h"
FLAGS = ("-include", f"{_FOLDER}/{_HEADER}")
"""For compilations with the folders of `pch_include_dir`; gcc takes what is compiled beside the header, and
the header itself where it cannot use that."""
_BUILD_LIMITS = replace(COMPILE_LIMITS, scratch_bytes=MAX_PCH_BYTES, output_bytes=MAX_PCH_BYTES)


def pch_include_dir(path: Path) -> dict[str, Path]:
    """Folders to mount for a compilation with `FLAGS`."""
    return {_FOLDER: path}


def precompile(
    sandbox: Sandbox, headers: Sequence[str], command: Sequence[str], compiler: str
) -> Path | None:
    """The folder of a set of headers, compiled now unless it is there.

    Args:
        sandbox: where they are compiled.
        headers: names as in `#include <...>`.
        command: compiler and flags, the same as of the compilations that use them.
        compiler: its version.

    Returns:
        None when the compiler does not accept them together, or there is no place for what it makes.
    """
    text = "".join(f"#include <{name}>\n" for name in headers).encode()
    source, root = {_HEADER: text}, cache_folder()
    expansion = sandbox.run(source, [*command, "-E", "-dD", "-x", "c++-header", _HEADER], _BUILD_LIMITS)
    if root is None or not expansion.succeeded:
        return None
    what = "\0".join([*command, compiler, sha256(expansion.stdout)])
    folder = root / sha256(what.encode())[:32]
    if folder.is_dir():
        return folder
    output = f"{_HEADER}.gch"
    result = sandbox.run(
        source,
        [*command, "-x", "c++-header", "-o", output, _HEADER],
        _BUILD_LIMITS,
        fetch={output: MAX_PCH_BYTES},
    )
    if not result.succeeded or output not in result.files:
        return None
    return folder if _store(folder, {_HEADER: text, output: result.files[output]}) else None


def cache_folder() -> Path | None:
    """A folder of this user that the user of the sandbox can look into; None where it is somebody else's."""
    as_root = os.geteuid() == 0
    base = Path("/tmp" if as_root else tempfile.gettempdir())  # noqa: S108  (TMPDIR of root may be closed)
    root = base / f"cpplm-headers-{os.geteuid()}"
    root.mkdir(mode=0o755, exist_ok=True)
    facts = root.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        return None
    root.chmod(0o755)
    return root


def _store(folder: Path, files: dict[str, bytes]) -> bool:
    """Write the folder as a whole, or not at all; whether it is there."""
    new = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        for name, data in files.items():
            (new / name).write_bytes(data)
            (new / name).chmod(0o644)
        new.chmod(0o755)
        new.rename(folder)
    except OSError:  # no room, or another process was faster
        shutil.rmtree(new, ignore_errors=True)
    return folder.is_dir()
