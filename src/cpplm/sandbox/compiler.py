"""The C++ compiler, inside the sandbox."""

from __future__ import annotations

from cpplm.core.errors import UserError
from cpplm.sandbox.limits import MIB, Limits
from cpplm.sandbox.sandbox import Sandbox

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
