"""`compile_commands.json`: the flags with which a project compiles each of its files.

Format: "JSON Compilation Database Format Specification" of the Clang documentation. The database comes with
the project, so it is not trusted: only flags that change what the front end reads are kept, from a list.
Whatever runs, loads or writes something (`-fplugin`, `-Xclang -load`, `-mllvm`, `-B`, `--config`, `-specs`,
outputs, dependency files) is not on it; what is left out is counted by name. Response files (`@file`) are
opened only inside the project and the database's folder, to a bounded depth, number and size.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from cpplm.core.errors import UserError
from cpplm.corpus.ingest.walk import SkipCounts

NAME = "compile_commands.json"
_PLACES = ("", "build*/", "cmake-build*/", "out/", "out/*/")
_LAUNCHERS = frozenset({"ccache", "sccache", "distcc", "icecc", "buildcache", "gomacc", "rewrapper", "env"})
_PATHS = ("-isystem", "-iquote", "-idirafter", "-isysroot", "--sysroot", "-I", "/I")
_FILES = ("-include", "-imacros", "/FI")
_DEFINES = ("-D", "-U", "/D", "/U")
# They take the next argument along when they are left out.
_DROPPED_WITH_VALUE = frozenset((
    "-o", "-MF", "-MT", "-MQ", "-MJ", "-Xclang", "-Xlinker", "-Xassembler", "-Xpreprocessor", "-Xanalyzer",
    "-mllvm", "-L", "-l", "-T", "-u", "-z", "-e", "-G", "-A", "-B", "--param", "--config", "-framework",
    "-F", "-iframework", "-include-pch", "-ivfsoverlay", "-wrapper", "-aux-info", "-dumpbase", "-dumpdir",
    "-imultilib", "-iprefix", "-iwithprefix", "-iwithprefixbefore", "-working-directory", "-arch",
    "--serialize-diagnostics", "-serialize-diagnostics", "-dependency-file", "-load", "-add-plugin",
))  # fmt: skip
# Of no meaning for what is read; anything else that is left out is counted.
_HARMLESS = re.compile(r"-(?:[OgvwcSE]|M|W(?![alp],)|pipe|[lL]|rdynamic|shared|static).*")
# What changes the text or the meaning of what is read and is known to Clang.
_KEPT = re.compile(
    r"-(?:std=[\w+:]+|ansi|undef|trigraphs|nostdinc(?:\+\+)?|nostdlibinc|pthread|stdlib=[\w+]+"
    r"|-?target=[\w.-]+|ftemplate-depth[=-]\d{1,4}"
    r"|m(?:32|64|x32|thumb|(?:arch|cpu)=[\w.+-]+|(?:no-)?(?:sse[\w.]*|ssse3|avx[\w-]*|fma|bmi2?"
    r"|aes|pclmul|popcnt|lzcnt|f16c|rdrnd|movbe|crc32))"
    r"|f(?:no-)?(?:exceptions|rtti|char8_t|short-enums|short-wchar|signed-char|unsigned-char|ms-extensions"
    r"|ms-compatibility|delayed-template-parsing|openmp|blocks|PIC|pic|PIE|pie|freestanding"
    r"|builtin(?:-\w+)?|gnu-keywords|declspec|operator-names|access-control|sized-deallocation"
    r"|aligned-new|aligned-allocation|relaxed-template-template-args|dollars-in-identifiers|fast-math"
    r"|finite-math-only|math-errno|coroutines|sanitize=[\w,-]+))"
)
_LANGUAGES = frozenset({"c", "c++", "c-header", "c++-header"})
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_MOST_DATABASE_BYTES = 512_000_000
_MOST_RESPONSE_BYTES = 1_000_000
_MOST_RESPONSE_FILES = 64
_DEEPEST_RESPONSE = 8


@dataclass(frozen=True)
class Database:
    """The kept flags by resolved source file, and what was left out, by reason.

    The folders of a database that the user `named` may be read; those of one that was found may not.
    """

    path: Path
    flags: dict[Path, tuple[str, ...]]
    named: bool = False
    skips: SkipCounts = field(default_factory=SkipCounts)

    def digest(self, root: Path) -> str:
        """Changes with any flag; the same when the project is moved as a whole."""
        lines = [repr((str(file), *flags)).replace(str(root), ".") for file, flags in self.flags.items()]
        return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogatepass")).hexdigest()


def find_database(roots: Sequence[Path]) -> Path | None:
    """The database of a project: in its folder, else in `build*`, `cmake-build*`, `out` or `out/*`."""
    for root in roots:
        for place in _PLACES:
            for path in sorted(root.glob(place + NAME)):
                if path.is_file():
                    return path
    return None


def read_database(path: Path, roots: Sequence[Path], *, named: bool = False) -> Database:
    """Read a database.

    Args:
        path: the JSON file.
        roots: folders of the project, in which response files may lie too.
        named: the user gave this path.

    Raises:
        UserError: no such file, or not a compilation database.
    """
    try:
        if path.stat().st_size > _MOST_DATABASE_BYTES:
            raise UserError(f"{path} is larger than {_MOST_DATABASE_BYTES:,} bytes", fix="Name another one.")
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"cannot read the compilation database {path}: {error}",
            fix="Write it anew, for example with cmake -DCMAKE_EXPORT_COMPILE_COMMANDS=ON.",
        ) from error
    if not isinstance(entries, list):
        raise UserError(f"{path} is not a compilation database: no list", fix="Name another one.")
    allowed = tuple(folder.resolve() for folder in (path.resolve().parent, *roots))
    database = Database(path, {}, named)
    for number, entry in enumerate(entries):
        _add(database, entry, number, allowed)
    return database


def _add(database: Database, entry: Any, number: int, allowed: tuple[Path, ...]) -> None:
    """Take one entry in, or count why not."""
    skips = database.skips
    parsed = _command_line(entry)
    if parsed is None:
        skips.add("entry without directory, file or command", f"entry {number}")
        return
    folder, name, arguments = parsed
    directory = database.path.resolve().parent / folder
    try:
        file = (directory / name).resolve()
        if file in database.flags:
            skips.add("second entry for one file (the first is used)", name)
            return
        expanded = list(_expand(arguments, directory, allowed, skips))
        database.flags[file] = tuple(_keep(expanded, directory, file, skips))
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name with NUL in it
        skips.add("entry with a path that cannot be", f"entry {number}")


def _command_line(entry: Any) -> tuple[str, str, list[str]] | None:
    """Directory, file and arguments of an entry; None when something is missing or of the wrong type."""
    if not isinstance(entry, dict):
        return None
    directory, name = entry.get("directory", ""), entry.get("file")
    arguments, command = entry.get("arguments"), entry.get("command")
    if not (isinstance(directory, str) and isinstance(name, str) and name):
        return None
    if isinstance(arguments, list) and all(isinstance(argument, str) for argument in arguments):
        return directory, name, list(arguments)
    if not isinstance(command, str):
        return None
    try:
        return directory, name, split_command(command, windows=bool(_WINDOWS.match(directory)))
    except ValueError:  # a quote that is never closed
        return None


def split_command(command: str, *, windows: bool = False) -> list[str]:
    """Arguments of a command line; nothing is expanded.

    Args:
        command: the line.
        windows: by the rules of the Windows C runtime, where a backslash is plain except before a quote.

    Raises:
        ValueError: a quote is not closed.
    """
    if not windows:
        return shlex.split(command)
    arguments: list[str] = []
    word: list[str] | None = None
    quoted = False
    for slashes, quote, space, other in re.findall(r'(\\*)(?:(")|(\s)|([^\\"\s])|$)', command):
        if slashes:
            word = [*(word or []), slashes if not quote else slashes[: len(slashes) // 2]]
        if quote and len(slashes) % 2 == 0:
            quoted, word = not quoted, word or []
        elif quote or other or (space and quoted):
            word = [*(word or []), quote or other or space]
        elif space and word is not None:
            arguments.append("".join(word))
            word = None
    if quoted:
        raise ValueError("no closing quotation")
    return arguments if word is None else [*arguments, "".join(word)]


def _expand(
    arguments: list[str], directory: Path, allowed: tuple[Path, ...], skips: SkipCounts
) -> Iterator[str]:
    """Response files replaced by what stands in them."""
    waiting = [(argument, 0) for argument in reversed(arguments)]
    opened = 0
    while waiting:
        argument, depth = waiting.pop()
        if not argument.startswith("@") or len(argument) == 1:
            yield argument
            continue
        path = (directory / argument[1:]).resolve()
        opened += 1
        inside = any(folder in path.parents for folder in allowed)
        if not inside or not path.is_file() or opened > _MOST_RESPONSE_FILES or depth >= _DEEPEST_RESPONSE:
            skips.add("response file outside the project, missing, or one too many", argument)
            continue
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(_MOST_RESPONSE_BYTES)
            inner = split_command(text, windows=bool(_WINDOWS.match(str(directory))))
        except (OSError, ValueError):
            skips.add("response file that cannot be read", argument)
            continue
        waiting += [(each, depth + 1) for each in reversed(inner)]


def _keep(arguments: list[str], directory: Path, source: Path, skips: SkipCounts) -> Iterator[str]:
    """The flags that libclang gets: without compiler, source, outputs and whatever is not known."""
    queue = list(reversed(arguments))
    compiler = _pop_compiler(queue)
    if compiler.endswith(("++", "++.exe")) and source.suffix in (".c", ".h"):
        yield from ("-x", "c++")
    is_msvc = compiler in ("cl", "cl.exe", "clang-cl", "clang-cl.exe")
    while queue:
        argument = queue.pop()
        if is_msvc:
            argument = _from_microsoft(argument)
        prefix = next((each for each in (*_PATHS, *_FILES, *_DEFINES) if argument.startswith(each)), "")
        if argument in _DROPPED_WITH_VALUE:
            value = queue.pop() if queue else ""
            if not _HARMLESS.fullmatch(argument) and argument != "-o":
                skips.add(f"flag {argument}", value)
        elif prefix and (is_msvc or prefix[0] == "-"):
            value = argument[len(prefix) :].removeprefix("=" if prefix == "--sysroot" else "")
            if not value and queue:
                value = queue.pop()
            if value:
                yield from _with_value(prefix, value, directory)
        elif argument.startswith("-x"):
            language = argument[2:] or (queue.pop() if queue else "")
            yield from ("-x", language) if language in _LANGUAGES else ()
        elif argument in ("-target", "--target") and queue:
            yield from (f"--target={each}" for each in (queue.pop(),) if re.fullmatch(r"[\w.-]+", each))
        elif _KEPT.fullmatch(argument):
            yield argument
        elif argument.startswith("-") and not _HARMLESS.fullmatch(argument):
            skips.add(f"flag {re.split('[=:]', argument)[0][:24]}", argument)


def _pop_compiler(queue: list[str]) -> str:
    """Take launchers and the compiler off a reversed command line; the compiler's bare name."""
    while queue and not queue[-1].startswith("-"):
        name = PurePosixPath(queue.pop().replace("\\", "/")).name.lower()
        # `env NAME=value ccache g++ ...`
        if name.removesuffix(".exe") not in _LAUNCHERS and "=" not in name:
            return re.sub(r"-\d[\d.]*(?=$|\.exe$)", "", name)
    return ""


def _from_microsoft(argument: str) -> str:
    """Flags of cl that have a counterpart of another spelling."""
    if argument.startswith(("/std:", "-std:")):
        return "-std=" + argument[5:].replace("latest", "23")
    return {"/TP": "-xc++", "/TC": "-xc", "/GR-": "-fno-rtti"}.get(argument, argument)


def _with_value(prefix: str, value: str, directory: Path) -> tuple[str, ...]:
    """A flag and its value in one spelling, relative paths made absolute."""
    if prefix in _DEFINES:
        return (f"-{prefix[1]}{value}",)
    flag = {"/I": "-I", "/FI": "-include"}.get(prefix, prefix)
    path = directory / value
    if prefix in _FILES:  # looked for beside the compilation first, then among the includes
        return (flag, str(path) if path.is_file() else value)
    return (flag, value if value.startswith("=") else str(path))


__all__ = ["Database", "find_database", "read_database", "split_command"]
