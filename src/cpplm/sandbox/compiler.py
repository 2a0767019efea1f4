"""The C++ compiler, inside the sandbox."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.sandbox.limits import MIB, ResourceLimits
from cpplm.sandbox.sandbox import Sandbox, SandboxError

COMPILE_LIMITS = ResourceLimits(
    wall_seconds=30,
    cpu_seconds=20,
    memory_bytes=1024 * MIB,
    processes=16,
    scratch_bytes=64 * MIB,
    open_files=256,
)
MAX_PROGRAM_BYTES = 48 * MIB
_LINKERS = {
    "mold": ("-fuse-ld=mold", "-Wl,--no-threads"),
    "lld": ("-fuse-ld=lld", "-Wl,--threads=1"),
    "gold": ("-fuse-ld=gold",),
}
"""Faster than GNU ld, the fastest first; as many threads as a large machine has cores would break a limit."""


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


def check_mounts(sandbox: Sandbox, folders: Iterable[Path]) -> None:
    """Check that each folder of the host can be read from inside, else UserError, which names it."""
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


def fast_linker(sandbox: Sandbox) -> tuple[str, ...]:
    """Flags that choose the fastest linker that works in there; none for the compiler's own choice."""
    for name, flags in _LINKERS.items():
        if shutil.which(f"ld.{name}"):
            source = {"main.cpp": b"int main() {}"}
            if sandbox.run(source, ["g++", *flags, "-o", "main", "main.cpp"], COMPILE_LIMITS).succeeded:
                return flags
    return ()


def missing_headers(sandbox: Sandbox, headers: Sequence[str]) -> list[str]:
    """Headers that `#include <...>` does not find.

    Raises:
        UserError: there is no compiler in the sandbox.
    """
    lines = (f"#if !__has_include(<{name}>)\nmissing {place}\n#endif" for place, name in enumerate(headers))
    source = {"headers.cpp": "\n".join([*lines, ""]).encode()}
    result = sandbox.run(source, ["g++", "-std=c++17", "-E", "-P", "headers.cpp"], COMPILE_LIMITS)
    if not result.succeeded:
        require_compiler(sandbox)
        raise SandboxError(f"the preprocessor failed: {result.message()[:500]}")
    return [
        headers[int(place)] for place in re.findall(r"^missing (\d+)$", result.stdout.decode(), re.MULTILINE)
    ]
