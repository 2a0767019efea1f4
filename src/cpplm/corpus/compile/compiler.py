"""One document to the compiler and back: the command and the verdict.

Checks syntax and types only (no code is generated), in the sandbox, with the compiler's own headers, those
below /usr/include, and those of the folders that are given. C++ is tried under one standard after the other.
In C, calling what was not declared is an error, as since C99, although gcc before 14 lets it pass.

The patterns are of GCC's English messages, versions 9 to 14.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from cpplm.core.errors import UserError
from cpplm.cpp.file_suffixes import is_source
from cpplm.cpp.parser import Language
from cpplm.sandbox.compiler import COMPILE_LIMITS, require_compiler
from cpplm.sandbox.limits import RunResult
from cpplm.sandbox.sandbox import Sandbox

STANDARDS = ("c++17", "c++20")
"""Standards that C++ is compiled under: a later one where the earlier ones fail."""
_MAX_ERRORS = 20
# The limit on CPU time decides, however busy the machine is: the same text gets the same verdict.
_LIMITS = replace(COMPILE_LIMITS, wall_seconds=10 * COMPILE_LIMITS.cpu_seconds)

_NAME = "document"  # of the file in the sandbox
_COMMON = (
    "-fsyntax-only",
    "-fPIC",  # which headers of Qt ask for
    f"-fmax-errors={_MAX_ERRORS}",
    "-ftemplate-depth=256",
    "-ftabstop=1",  # so that columns count characters
    "-fno-diagnostics-show-caret",
    "-fno-diagnostics-show-option",
)
# -w would switch the last two off.
_C = ("gcc", "-x", "c", "-Werror=implicit-function-declaration", "-Werror=implicit-int")
_CXX = ("g++", "-w", "-x", "c++")

_ERROR = re.compile(
    r"^(?:[^:\n]+:\d+:\d+|g\+\+|gcc|cc1|cc1plus): "
    r"(?:fatal |internal compiler )?error: (?P<text>.*)$",
    re.MULTILINE,
)
_STRAIGHT_QUOTES = str.maketrans("\u2018\u2019", "''")
_MISSING_HEADER = re.compile(r"(.+): No such file or directory")
# The first error is one of a name that is declared nowhere, and of one that a later standard brings.
_UNDECLARED = re.compile(
    r"declared in|does not name a|has not been declared|undeclared|unknown type name|implicit declaration"
    r"|is not a (?:class|namespace|template|type\b|member)|has no member named|incomplete type|non-template"
)
_OF_LATER_STANDARDS = re.compile(
    r"\bstd\b|'(?:concept|requires|constinit|consteval|char8_t|co_await|co_return|co_yield)'"
)
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_NAMES_IN_ERRORS = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True)
class CompileResult:
    """The compiler's verdict on one text."""

    compiles: bool
    standard: str
    """Under which it compiled, or got furthest: "c", "c++17"."""
    first_error: str = ""
    """With straight quotes; empty when it compiles."""
    place: tuple[int, int] = (0, 0)
    """Line and column of the document that the first error is at, or that includes or uses what is."""
    missing_headers: tuple[str, ...] = ()
    """Headers as in the include; the compiler stops at the first."""
    later_standard: bool = False
    """True if it compiled, and not under the first standard."""
    ended_by_limit: bool = False
    """True if a limit ended the compiler before it found an error."""

    @property
    def reason(self) -> str:
        """The first error without names, so that equal causes count together; empty when it compiles."""
        if self.missing_headers:
            return "a header was not found"
        return _NAMES_IN_ERRORS.sub("...", self.first_error)


def require_standards(sandbox: Sandbox, standards: Sequence[str] = STANDARDS) -> str:
    """The version line of the compiler, which knows C and these standards of C++.

    Raises:
        UserError: there is none, or it does not.
    """
    compiler = require_compiler(sandbox)
    for standard in standards:
        if not compile_document("", "c++", sandbox, standards=(standard,)).compiles:
            raise UserError(f"{compiler} has no -std={standard}", fix=f"Try --std {' '.join(STANDARDS)}.")
    verdict = compile_document("", "c", sandbox)
    if not verdict.compiles:
        raise UserError(
            f"no C compiler in the sandbox ({verdict.first_error})", fix="Install gcc of g++'s version."
        )
    return compiler


def main_source(files: Sequence[str]) -> str:
    """The file that a document stands for: its first, or the source of the same name."""
    stem = PurePosixPath(files[0]).stem
    sources = (name for name in files if is_source(name))
    return next((name for name in sources if PurePosixPath(name).stem == stem), files[0])


def compile_document(
    text: str,
    language: Language,
    sandbox: Sandbox,
    headers: Sequence[Path] = (),
    standards: Sequence[str] = STANDARDS,
) -> CompileResult:
    """Compile one text on its own.

    Args:
        text: the document.
        language: what it is.
        sandbox: where the compiler runs; `sandbox.compiler.require_compiler` was asked before.
        headers: folders of further headers, searched after those of the compiler's command line and before
            the system's; of several versions of one library each is tried before the others.
        standards: of C++, tried in this order until one fits, as long as the first error may be one of age: a
            name that is neither in `std` nor a keyword will not come with a standard. C takes gcc's default.
    """
    first, *later = standards if language == "c++" else ("c",)
    results: list[CompileResult] = []
    given, *others = _header_orders(headers)
    for ordered in (given, *others):
        folders = {f"headers{number}": folder for number, folder in enumerate(ordered)}
        system = [word for folder in folders for word in ("-isystem", folder)]
        for standard in (first, *later):
            command = _C if language == "c" else (*_CXX, f"-std={standard}")
            arguments = [*command, *_COMMON, *system, _NAME]
            result = sandbox.run({_NAME: text.encode()}, arguments, _LIMITS, folders=folders)
            verdict = replace(parse_diagnostics(result), standard=standard)
            if verdict.compiles:
                return replace(verdict, later_standard=standard != first)
            results += [verdict] if ordered is given else []
            if _lacks_a_name(verdict):
                break
    # The standard that the text was written for gets furthest.
    return max(results, key=lambda verdict: verdict.place)


def _header_orders(headers: Sequence[Path]) -> list[list[Path]]:
    """The folders in their order, and with each further version of a library (`gtk-3.0`, `gtk-4.0`) first."""
    versions: dict[str, list[Path]] = {}
    folders = list(dict.fromkeys(headers))
    for folder in folders:
        versions.setdefault(_VERSION.sub("", folder.as_posix()), []).append(folder)
    orders = [folders]
    for number in range(1, max(map(len, versions.values()), default=1)):
        preferred = [each[number] for each in versions.values() if number < len(each)]
        orders.append(list(dict.fromkeys((*preferred, *folders))))
    return orders


def _lacks_a_name(verdict: CompileResult) -> bool:
    """True if the first error is the want of a header or a name that no later standard brings."""
    error = verdict.first_error.partition(";")[0]  # behind it is what the compiler suggests
    is_older = _UNDECLARED.search(error) and not _OF_LATER_STANDARDS.search(error)
    return bool(verdict.missing_headers or is_older)


def parse_diagnostics(result: RunResult) -> CompileResult:
    """The verdict in what the compiler wrote."""
    if result.succeeded:
        return CompileResult(compiles=True, standard="")
    message = result.message().translate(_STRAIGHT_QUOTES)
    errors = [error["text"] for error in _ERROR.finditer(message)]
    missing = filter(None, map(_MISSING_HEADER.fullmatch, errors))
    return CompileResult(
        compiles=False,
        standard="",
        ended_by_limit=not errors,
        first_error=errors[0] if errors else f"the compiler was ended: {result.reason}",
        place=_first_place(message),
        missing_headers=tuple(dict.fromkeys(header[1] for header in missing)),
    )


def _first_place(message: str) -> tuple[int, int]:
    """Line and column where messages first point into the document; (0, 0) when they do not."""
    match = re.search(rf"(?:^|from ){_NAME}:(\d+)(?::(\d+))?", message, re.MULTILINE)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)
