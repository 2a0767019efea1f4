"""Compiling and running what a model wrote, in the sandbox and nowhere else."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import replace
from pathlib import Path

from cpplm.sandbox.compiler import COMPILE_LIMITS, MAX_PROGRAM_BYTES, check_mounts, require_compiler
from cpplm.sandbox.limits import MIB, ResourceLimits, RunResult
from cpplm.sandbox.sandbox import MAX_STDIN_BYTES, Sandbox

RUN_LIMITS = ResourceLimits(wall_seconds=10, cpu_seconds=10, memory_bytes=512 * MIB, processes=8)
_PROJECT = "project"
_COMPILER = (
    "g++", "-std=c++20", "-O0", "-pipe", "-Wall", "-Wextra", "-fmax-errors=5", "-ftemplate-depth=256",
    "-fno-diagnostics-show-caret", "-fdiagnostics-color=never",
    "-I", _PROJECT, "-I", f"{_PROJECT}/include", "program.cpp",
)  # fmt: skip

# Behind the program, as <cassert> defines its own assert anew wherever it is included. A failed assertion is
# told and the next one is tried.
_BEFORE_TESTS = """
#include <cstdio>
#undef assert
#define assert(...) \\
    (cpplm_checks.total++, static_cast<bool>(__VA_ARGS__) ? (void)cpplm_checks.held++ : \\
     (void)std::fprintf(stderr, "failed: assert(%s)\\n", #__VA_ARGS__))
namespace { struct { int total = 0, held = 0; } cpplm_checks; }
int main() {
#line 1 "tests"
"""
_BEHIND_TESTS = """
;std::fprintf(stderr, "%d of %d assertions held\\n", cpplm_checks.held, cpplm_checks.total);
return cpplm_checks.held == cpplm_checks.total && cpplm_checks.total > 0 ? 0 : 1;
}
"""
_QUOTES = str.maketrans("\u2018\u2019", "''")  # as models know them from most compilers' texts
_SUMMARY = re.compile(r"^(\d+) of (\d+) assertions held$", re.MULTILINE)


class Programs:
    """Compiles and runs single C++ files, which may include the headers of a project."""

    def __init__(self, sandbox: Sandbox, root: Path) -> None:
        """Look whether it can be done.

        Raises:
            UserError: no compiler in the sandbox, or the root cannot be read in there.
        """
        require_compiler(sandbox)
        check_mounts(sandbox, [root])
        self._sandbox, self._folders = sandbox, {_PROJECT: root}

    def compile(self, deadline: float, source: str) -> str:
        """Compile a file and return what the compiler says; by a deadline of `time.monotonic`.

        Raises:
            SandboxError: the sandbox failed.
        """
        return self._compile(deadline, source)[0]

    def run(self, deadline: float, source: str, stdin: str = "") -> str:
        """Run a program and return how it ended and what it printed, or why it does not compile.

        Raises:
            SandboxError: the sandbox failed.
        """
        data = stdin.encode("utf-8", errors="replace")
        if len(data) > MAX_STDIN_BYTES:
            return f"the input may have {MAX_STDIN_BYTES:,} bytes, not {len(data):,}"
        message, program = self._compile(deadline, source)
        if program is None:
            return message
        result = self._run(deadline, program, data)
        printed = result.stdout.decode("utf-8", errors="replace")
        errors = f"stderr:\n{result.message()}" if result.stderr else ""
        return "\n".join(part.rstrip("\n") for part in (_ending(result), printed, errors) if part)

    def test(self, deadline: float, source: str, tests: str) -> str:
        """Run assertions, the body of a main function, and return which of them hold.

        Raises:
            SandboxError: the sandbox failed.
        """
        message, program = self._compile(deadline, f"{source}{_BEFORE_TESTS}{tests}{_BEHIND_TESTS}")
        if program is None:
            return message
        result = self._run(deadline, program, b"")
        counts = _SUMMARY.search(result.message())
        if counts is None:
            message = f"{_ending(result)} before the end of the tests"
        elif counts[2] == "0":
            message = "the tests assert nothing"
        else:
            message = "passed" if result.succeeded else "failed"
        return f"{message}\n{result.message()}".rstrip("\n")

    def _compile(self, deadline: float, source: str) -> tuple[str, bytes | None]:
        """Return a message for the model, and the program if there is one."""
        result = self._sandbox.run(
            {"program.cpp": source.encode("utf-8", errors="replace")},
            [*_COMPILER, "-o", "program"],
            _until(COMPILE_LIMITS, deadline),
            fetch={"program": MAX_PROGRAM_BYTES},
            folders=self._folders,
        )
        message = result.message().rstrip("\n").translate(_QUOTES)
        program = result.files.get("program")
        if result.succeeded and program is not None:
            return (f"compiled, with warnings:\n{message}" if message else "compiled"), program
        if result.succeeded:
            return f"the program is larger than {MAX_PROGRAM_BYTES // MIB} MiB", None
        why = "" if result.reason == "exit" else f" (the compiler {_ending(result)})"
        return f"does not compile{why}\n{message}".rstrip("\n"), None

    def _run(self, deadline: float, program: bytes, stdin: bytes) -> RunResult:
        limits = _until(RUN_LIMITS, deadline)
        return self._sandbox.run({"program": program}, ["./program"], limits, stdin=stdin)


def _until(limits: ResourceLimits, deadline: float) -> ResourceLimits:
    """These limits, and no later than a moment of `time.monotonic`."""
    left = max(0.001, deadline - time.monotonic())
    return replace(limits, wall_seconds=min(limits.wall_seconds, left))


def _ending(result: RunResult) -> str:
    """Describe how a program ended."""
    if result.reason == "exit":
        return f"ended with exit code {result.exit_code}"
    if result.reason == "signal" and result.signal is not None:
        return f"ended by signal {result.signal} ({_signal_name(result.signal)})"
    return f"was stopped: {result.reason}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
