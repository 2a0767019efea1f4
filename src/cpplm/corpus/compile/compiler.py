"""One document to the compiler and back: the command, the verdict, and the names in its errors.

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
MAX_ERRORS = 20
# The limit on CPU time decides, however busy the machine is: the same text gets the same verdict.
_LIMITS = replace(COMPILE_LIMITS, wall_seconds=10 * COMPILE_LIMITS.cpu_seconds)

_COMMON = (
    "-fsyntax-only",
    f"-fmax-errors={MAX_ERRORS}",
    "-ftemplate-depth=256",
    "-ftabstop=1",  # so that columns count characters
    "-fno-diagnostics-show-caret",
    "-fno-diagnostics-show-option",
)
# -w would switch the last two off.
_C = ("gcc", "-x", "c", "-Werror=implicit-function-declaration", "-Werror=implicit-int")
_CXX = ("g++", "-w", "-x", "c++")

_ERROR = re.compile(
    r"^(?:[^:\n]+:(?P<line>\d+):(?P<column>\d+)|g\+\+|gcc|cc1|cc1plus): "
    r"(?:fatal |internal compiler )?error: (?P<text>.*)$",
    re.MULTILINE,
)
_STRAIGHT_QUOTES = str.maketrans("\u2018\u2019", "''")
_MISSING_HEADER = re.compile(r"(.+): No such file or directory")
_MEMBER = re.compile(  # groups: name, scope
    r"'([^']+)' (?:is not a member of|in namespace|has not been declared in|in(?= 'class | 'struct ))"
    r" '([^']+)'"
)
_NO_MEMBER = re.compile(r"'([^']+)'(?: \{aka '[^']+'\})? has no member named '([^']+)'")
_UNDECLARED = re.compile(
    r"'([^']+)' (?:was not declared in|does not name a |has not been declared|undeclared"
    r"|is not a (?:class|namespace|template|type\b))"
    r"|variable '(?:\w+::)*([A-Z]\w*) [\w:]+' has initializer but incomplete"
    r"|(?:unknown type name|implicit declaration of function|specialization of non-template|arguments to)"
    r" '([^']+)'"
)
_INCOMPLETE = re.compile(
    r"(?:incomplete|undefined) type '([^']+)'|return type '([^']+)' is incomplete"
    r"|aggregate '(.+) \S+' has incomplete|^forward declaration of '([^']+)'"
)
_FORWARD_NOTE = re.compile(r"note: (forward declaration of '.*)$", re.MULTILINE)
# Errors that do not name what is wrong: it stands just before the place that they point to.
_BASE_BEFORE = re.compile(r"expected (?:class-name|template-name) before")
_TYPE_BEFORE = re.compile(r"has incomplete type$|is an incomplete type$|storage size of '.*' isn't known")
_SUGGESTED = re.compile(
    r"note: (?:'[^'\n]+' is (?:declared|defined) in header '(<[^'>\n]+>)'"
    r"|include '(<[^'>\n]+>)' or provide a declaration of)"
)
_NEGATED_MACRO = re.compile(
    r"\s*#\s*(?:ifndef\s+|if\s*!\s*defined\s*\(?\s*)([A-Za-z]\w*)\s*\)?\s*(?:/[/*].*)?$"
)
# Keywords of C++20 and later, which are undeclared names before.
_LATER_WORDS = (
    "concept", "requires", "constinit", "consteval", "char8_t", "co_await", "co_return", "co_yield",
)  # fmt: skip
_ALIAS = re.compile(r"^using \w+ = ")
_TAG = re.compile(r"^(?:(?:const|volatile|class|struct|union|enum|typename) )+")
_NAMES_IN_ERRORS = re.compile(r"'[^']*'|\"[^\"]*\"")
_NAME_AT_END = re.compile(r"([A-Za-z_][\w:]*)\s*\*?\s*$")


@dataclass(frozen=True)
class CompileResult:
    """The compiler's diagnostics for one text. Names are as in its messages, in order, each once."""

    compiles: bool
    standard: str
    """Under which it compiled, or got furthest: "c", "c++17"."""
    errors: int = 0
    """At most `MAX_ERRORS`; 0 with `compiles` false when a limit ended the compiler."""
    first_error: str = ""
    """With straight quotes; empty when it compiles."""
    place: tuple[int, int] = (0, 0)
    """Line and column of the document that the first error is at, or that includes or uses what is."""
    undeclared_names: tuple[str, ...] = ()
    """Names without a declaration; `scope::name` where it is the scope, or a class, that lacks it."""
    incomplete_types: tuple[str, ...] = ()
    """Types that are declared, where their definition is needed."""
    missing_headers: tuple[str, ...] = ()
    """Headers as in the include; the compiler stops at the first."""
    suggested_headers: tuple[str, ...] = ()
    """Headers of the standard library that declare undeclared names: `<cstddef>`."""
    required_macros: tuple[str, ...] = ()
    """Those without which an `#error` stands in the text."""
    later_standard: bool = False
    """True if it compiled, and not under the first standard."""

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
            the system's.
        standards: of C++, tried in this order until one fits, as long as the first error may be one of age: a
            name that is neither in `std` nor a keyword will not come with a standard. C takes gcc's default.
    """
    return compile_file("document", text, language, sandbox, headers=headers, standards=standards)


def compile_file(
    name: str,
    text: str,
    language: Language,
    sandbox: Sandbox,
    *,
    headers: Sequence[Path] = (),
    standards: Sequence[str] = STANDARDS,
    project: Path | None = None,
    options: Sequence[str] = (),
) -> CompileResult:
    """Compile a file, in its place in a project where one is given.

    Args:
        name: relative to the project; what the document is called where there is none.
        text: of the file, to look up what errors point to.
        language: what it is.
        sandbox: where the compiler runs.
        headers: as for `compile_document`.
        standards: as for `compile_document`.
        project: a folder, visible as `project` in the working folder.
        options: more for the command line, such as `-iquote` `project/src`.
    """
    folders = {f"headers{number}": folder for number, folder in enumerate(headers)}
    system = [word for folder in folders for word in ("-isystem", folder)]
    files = {} if project else {name: text.encode()}
    if project:
        folders["project"], name = project, f"project/{name}"
    results: list[CompileResult] = []
    for standard in standards if language == "c++" else ("c",):
        command = _C if language == "c" else (*_CXX, f"-std={standard}")
        result = sandbox.run(files, [*command, *_COMMON, *options, *system, name], _LIMITS, folders=folders)
        verdict = replace(parse_diagnostics(result, text, name), standard=standard)
        if verdict.compiles:
            return replace(verdict, later_standard=bool(results))
        results.append(verdict)
        if _lacks_a_name(verdict):
            break
    # The standard that the text was written for gets furthest.
    return max(results, key=lambda verdict: verdict.place)


def _lacks_a_name(verdict: CompileResult) -> bool:
    """True if the first error is the want of a header or a name that no later standard brings."""
    name = _undeclared_name(verdict.first_error)
    return bool(verdict.missing_headers) or not (name in ("", *_LATER_WORDS) or name.startswith("std::"))


def parse_diagnostics(result: RunResult, text: str = "", file: str = "document") -> CompileResult:
    """The verdict in what the compiler wrote.

    Args:
        result: of the compiler.
        text: what was compiled, for errors that point to a name and do not quote it.
        file: the name under which it was compiled.
    """
    if result.succeeded:
        return CompileResult(compiles=True, standard="")
    message = result.message().translate(_STRAIGHT_QUOTES)
    lines = text.splitlines()
    undeclared: dict[str, None] = {}
    incomplete: dict[str, None] = {}
    missing: dict[str, None] = {}
    required: dict[str, None] = {}
    errors = list(_ERROR.finditer(message))
    for error in errors:
        text_of_error = error["text"]
        if header := _MISSING_HEADER.fullmatch(text_of_error):
            missing[header[1]] = None
        elif text_of_error.startswith("#error"):
            required[_macro_around(lines, error)] = None
        elif name := _undeclared_name(text_of_error):
            undeclared[name] = None
        elif _BASE_BEFORE.search(text_of_error):
            undeclared[_name_before(lines, error)] = None
        elif match := _INCOMPLETE.search(text_of_error):
            incomplete[_bare(next(filter(None, match.groups())))] = None
        elif _TYPE_BEFORE.search(text_of_error):
            incomplete[_name_before(lines, error)] = None
    for note in _FORWARD_NOTE.finditer(message):
        if match := _INCOMPLETE.match(note[1]):
            incomplete[_bare(match[4])] = None
    return CompileResult(
        compiles=False,
        standard="",
        errors=len(errors),
        first_error=errors[0]["text"] if errors else f"the compiler was ended: {result.reason}",
        place=_first_place(message, file),
        undeclared_names=tuple(name for name in undeclared if name),
        incomplete_types=tuple(name for name in incomplete if name),
        missing_headers=tuple(missing),
        suggested_headers=tuple(dict.fromkeys(a or b for a, b in _SUGGESTED.findall(message))),
        required_macros=tuple(name for name in required if name),
    )


def _first_place(message: str, name: str) -> tuple[int, int]:
    """Line and column where messages first point into the file; (0, 0) when they do not."""
    match = re.search(rf"(?:^|from ){re.escape(name)}:(\d+)(?::(\d+))?", message, re.MULTILINE)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def _undeclared_name(error: str) -> str:
    """The name that an error says has no declaration; empty when it is about something else."""
    if member := _MEMBER.search(error):
        return f"{_bare(member[2])}::{_bare(member[1])}"
    if member := _NO_MEMBER.search(error):
        return f"{_bare(member[1])}::{_bare(member[2])}"
    match = _UNDECLARED.search(error)
    return _bare(next(filter(None, match.groups()))) if match else ""


def _bare(name: str) -> str:
    """A type's name without `class`, template arguments, parameters and pointers."""
    return re.split(r"[<(&*\[ ]", _TAG.sub("", _ALIAS.sub("", name)), maxsplit=1)[0].removeprefix("::")


def _name_before(lines: list[str], error: re.Match[str]) -> str:
    """The name that ends just before where an error points; empty when there is none."""
    if error["line"] is None or int(error["line"]) > len(lines):
        return ""
    match = _NAME_AT_END.search(lines[int(error["line"]) - 1][: int(error["column"]) - 1])
    return match[1] if match else ""


def _macro_around(lines: list[str], error: re.Match[str]) -> str:
    """The macro that the innermost `#ifndef` around an error asks for; empty when that is no such group."""
    depth = 0
    for line in reversed(lines[: int(error["line"] or 0) - 1]):
        directive = re.match(r"\s*#\s*(if|el|endif)", line)
        if directive is None:
            continue
        if directive[1] == "endif":
            depth += 1
        elif depth == 0:
            match = _NEGATED_MACRO.match(line)
            return match[1] if match else ""
        elif directive[1] == "if":
            depth -= 1
    return ""
