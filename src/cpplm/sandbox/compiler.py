"""The C++ compiler, inside the sandbox."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.sandbox.limits import MIB, Limits
from cpplm.sandbox.sandbox import Sandbox, SandboxError

COMPILE_LIMITS = Limits(
    wall_seconds=30,
    cpu_seconds=20,
    memory_bytes=1024 * MIB,
    processes=16,
    scratch_bytes=64 * MIB,
    open_files=256,
)


def require_compiler(sandbox: Sandbox) -> str:
    """The compiler's version line, as seen from inside the sandbox.

    Raises:
        UserError: g++ is missing or does not work in there; the message has the fix.
    """
    result = sandbox.run({}, ["g++", "--version"], COMPILE_LIMITS)
    if not result.succeeded:
        raise UserError(
            f"no C++ compiler in the sandbox ({result.reason}: {result.message().strip()[:200]})",
            fix="Install g++ below /usr (Debian, Ubuntu: 'sudo apt-get install g++').",
        )
    return result.stdout.decode(errors="replace").split("\n", 1)[0]


def include_folders(sandbox: Sandbox) -> list[Path]:
    """The folders that g++ searches for `<...>` by itself, in its order."""
    result = sandbox.run({}, ["g++", "-E", "-v", "-x", "c++", "/dev/null"], COMPILE_LIMITS)
    listing = re.search(r"search starts here:\n((?: .*\n)+)End of search list", result.message())
    return [Path(line.strip()) for line in listing[1].splitlines()] if listing else []


def require_folders(sandbox: Sandbox, folders: Iterable[Path]) -> None:
    """See that each folder of the host can be read from inside.

    Raises:
        UserError: one cannot; the message names it.
    """
    for folder in folders:
        try:
            result = sandbox.run({}, ["ls", "folder/"], COMPILE_LIMITS, folders={"folder": folder})
            trouble = "" if result.succeeded or result.reason == "output limit" else result.message()
        except (SandboxError, ValueError) as error:
            trouble = str(error)
        if trouble:
            raise UserError(
                f"{folder} cannot be read in the sandbox ({trouble.strip()[:200]})",
                fix="Programs run there as an ordinary user: move it out of private folders, or open them.",
            )
