"""The compile button of the page: one C++ file through the compiler, in the sandbox; its complaints by line.

The compiler's plain messages are read, not its JSON: gcc 15 drops that, and the text has been the same for
twenty years. Nothing is compiled or run where no sandbox works.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePath

from pydantic import BaseModel

from cpplm.generate.tools.programs import RUN_LIMITS
from cpplm.sandbox.compiler import COMPILE_LIMITS, MAX_PROGRAM_BYTES
from cpplm.sandbox.limits import MIB, Reason, RunResult
from cpplm.sandbox.sandbox import Sandbox
from cpplm.serve.errors import ApiError

SOURCE = "main.cpp"
_PROGRAM = "program"
_COMPILER = (
    "g++", "-O1", "-g1", "-Wall", "-Wextra", "-pipe", "-fmax-errors=20", "-fdiagnostics-color=never",
    "-fno-diagnostics-show-caret", "-fdiagnostics-column-unit=byte",
)  # fmt: skip
_COMPILE_LIMITS = replace(COMPILE_LIMITS, output_bytes=MIB)  # messages about templates are long
_SHOWN_DIAGNOSTICS = 100
_SHOWN_OUTPUT = 64 * 1024
"""Characters of the compiler's messages."""

_AT = r":(?P<line>\d{1,9})(?::(?P<column>\d{1,9}))?"
_SEVERITY = r"fatal error|internal compiler error|error|warning|note|sorry, unimplemented"
_DIAGNOSTIC = re.compile(rf"(?P<file>[^:]+){_AT}: (?P<severity>{_SEVERITY}): (?P<message>.*)")
_HERE = re.escape(SOURCE) + _AT
_LEADS_HERE = re.compile(rf"(?:.*\bfrom )?{_HERE}[:,]")
"""How the compiler says where in the file a complaint about a header comes from."""
_UNDEFINED = re.compile(rf"(?:.*[/ ])?{_HERE}: (?P<message>(?:undefined reference|multiple definition).*)")
"""How the linker says it, with debug information in the object file."""


@dataclass(frozen=True)
class Diagnostic:
    """One complaint."""

    line: int | None
    """From 1; None where it is about no line of the file."""
    column: int | None
    """From 1, in UTF-16 code units, as JavaScript and the language-server protocol count."""
    severity: str
    """error, warning or note."""
    message: str


@dataclass(frozen=True)
class ProgramRun:
    """Result of a program that was run."""

    reason: Reason
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    seconds: float


class CompileResponse(BaseModel):
    """Result of a compilation."""

    ok: bool
    diagnostics: list[Diagnostic]
    output: str
    """All that the compiler said."""
    run: ProgramRun | None = None
    """When that was asked for, and there was a program."""


def compile_source(
    sandbox: Sandbox, source: str, *, standard: str, run: bool = False, stdin: str = ""
) -> CompileResponse:
    """Compile one file; with `run` link it as well, and run it.

    Args:
        sandbox: where all of that happens.
        source: the text of the file.
        standard: for -std, such as "c++20".
        run: whether to run it.
        stdin: what the program reads; at most `cpplm.sandbox.sandbox.MAX_STDIN_BYTES` bytes.

    Raises:
        ApiError: there is no g++ in the sandbox.
        SandboxError: the walls could not be built.
    """
    what = ["-o", _PROGRAM] if run else ["-c", "-o", "main.o"]
    result = sandbox.run(
        {SOURCE: source.encode()},
        [*_COMPILER, f"-std={standard}", *what, SOURCE],
        _COMPILE_LIMITS,
        fetch={_PROGRAM: MAX_PROGRAM_BYTES} if run else None,
    )
    if result.reason == "start":
        raise ApiError(
            503, "there is no g++ in the server's sandbox: install it below /usr", code="no_compiler"
        )
    compiled = _compiled(result, source)
    if not run or not compiled.ok:
        return compiled
    if _PROGRAM not in result.files:
        problem = Diagnostic(None, None, "error", f"the program has more than {MAX_PROGRAM_BYTES >> 20} MiB")
        return CompileResponse(ok=False, diagnostics=[*compiled.diagnostics, problem], output=compiled.output)
    program = {_PROGRAM: result.files[_PROGRAM]}
    ran = sandbox.run(program, [f"./{_PROGRAM}"], RUN_LIMITS, stdin=stdin.encode())
    stdout, stderr = (text.decode(errors="replace") for text in (ran.stdout, ran.stderr))
    compiled.run = ProgramRun(ran.reason, ran.exit_code, ran.signal, stdout, stderr, ran.wall_seconds)
    return compiled


def _compiled(result: RunResult, source: str) -> CompileResponse:
    text = result.message()
    diagnostics = diagnostics_of(text, source)[:_SHOWN_DIAGNOSTICS]
    if result.reason != "exit":
        diagnostics.insert(0, Diagnostic(None, None, "error", f"the compiler was stopped: {result.reason}"))
    elif not result.succeeded and not any(each.severity == "error" for each in diagnostics):
        diagnostics.append(Diagnostic(None, None, "error", _reason(text)))
    return CompileResponse(ok=result.succeeded, diagnostics=diagnostics, output=text[:_SHOWN_OUTPUT])


def _reason(text: str) -> str:
    """The line that says most, where no complaint has a place: of the linker, as a rule."""
    lines = text.strip().split("\n")
    candidates = (line for line in lines if re.search(r"undefined reference|multiple definition|error", line))
    return next(candidates, lines[-1]) or "the compiler failed without a message"


def diagnostics_of(text: str, source: str) -> list[Diagnostic]:
    """The complaints in what gcc printed, in its order.

    One about a header stands at the line that includes it, or that asks for the template in it; notes about
    headers are left out.
    """
    lines = source.encode().split(b"\n")
    diagnostics: list[Diagnostic] = []
    line: int | None = None
    column: int | None = None
    for message in text.split("\n"):
        match = _DIAGNOSTIC.fullmatch(message) or _UNDEFINED.fullmatch(message)
        if match is None:
            if place := _LEADS_HERE.match(message):
                line, column = _place(place, lines)
            continue
        parts = match.groupdict()
        severity = parts.get("severity", "error")
        severity = severity if severity in {"warning", "note"} else "error"
        file = parts.get("file", SOURCE)
        if file == SOURCE:
            diagnostics.append(Diagnostic(*_place(match, lines), severity, match["message"]))
        elif severity != "note":
            where = f"{PurePath(file).name}:{match['line']}"
            diagnostics.append(Diagnostic(line, column, severity, f"{where}: {match['message']}"))
    return diagnostics


def _place(match: re.Match[str], lines: list[bytes]) -> tuple[int | None, int | None]:
    """Line and column, as far as they are in the file: `#line` can say anything."""
    line, byte = int(match["line"]), int(match.groupdict().get("column") or 0)
    if not 1 <= line <= len(lines):
        return None, None
    before = lines[line - 1][: byte - 1].decode(errors="replace")
    return line, len(before.encode("utf-16-le")) // 2 + 1 if byte else None
