"""`compile_commands.json`: where it lies, and which of its flags libclang gets.

libclang reads the database itself, response files included, and gives a file without an entry, headers above
all, the flags of the entry that fits best (in the process of `worker`). The database comes with the project,
so it is not trusted: only flags that change what the front end reads are kept, from a list. Whatever runs,
loads or writes something (`-fplugin`, `-Xclang -load`, `-mllvm`, `-B`, `--config`, `-specs`, outputs,
dependency files) is not on it.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

NAME = "compile_commands.json"
_PLACES = ("", "build*/", "cmake-build*/", "out/", "out/*/")
_FOLDERS = ("-isystem", "-iquote", "-idirafter", "-isysroot", "--sysroot", "-I")
_FILES = ("-include", "-imacros")
_DEFINES = ("-D", "-U")
# They take the next argument along, which may look like a flag that is kept.
_DROPPED_WITH_VALUE = frozenset(
    ("-Xclang", "-Xlinker", "-Xassembler", "-Xpreprocessor", "-Xanalyzer", "-mllvm", "-include-pch", "-o")
)
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
_LANGUAGES = ("c", "c++")
_DEFINITION = re.compile(r"-D([A-Za-z_]\w*)(?:=(.*))?")
# An absolute path behind one of these, in a command line or a list of arguments.
_FOLDER_IN_TEXT = re.compile(rb'-(?:I|isystem|iquote|idirafter|isysroot|-sysroot)[\s",=]*(/[^\s",\\]+)')


def find_database(roots: Sequence[Path]) -> Path | None:
    """The database of a project: in its folder, else in `build*`, `cmake-build*`, `out` or `out/*`."""
    for root in roots:
        for place in _PLACES:
            for path in sorted(root.glob(place + NAME)):
                if path.is_file():
                    return path
    return None


def folders_in(database: bytes) -> list[str]:
    """The absolute include folders that a database names."""
    return sorted({path.decode("utf-8", "surrogateescape") for path in _FOLDER_IN_TEXT.findall(database)})


def front_end_flags(arguments: Iterable[str], directory: Path) -> list[str]:
    """The flags that libclang gets: without compiler, source, outputs and whatever is not known.

    Args:
        arguments: of an entry, the compiler first.
        directory: of the entry; relative paths count from it.
    """
    following = itertools.islice(arguments, 1, None)
    kept: list[str] = []
    for word in itertools.takewhile(lambda each: each != "--", following):
        argument = f"--target={next(following, '')}" if word in ("-target", "--target") else word
        prefix = next((each for each in (*_FOLDERS, *_FILES, *_DEFINES) if argument.startswith(each)), "")
        if argument in _DROPPED_WITH_VALUE:
            next(following, "")
        elif prefix:
            value = argument[len(prefix) :].removeprefix("=" if prefix == "--sysroot" else "")
            value = value or next(following, "")
            kept += _with_value(prefix, value, directory) if value else ()
        elif argument.startswith("-x"):
            language = (argument[2:] or next(following, "")).removesuffix("-header")
            kept += ("-x", language) if language in _LANGUAGES else ()
        elif argument == "--driver-mode=g++":  # of a compiler called so, as libclang says
            kept += ("-x", "c++")
        elif _KEPT.fullmatch(argument):
            kept.append(argument)
    return kept


def _with_value(prefix: str, value: str, directory: Path) -> tuple[str, ...]:
    """A flag and its value in one spelling, relative paths made absolute."""
    if prefix in _DEFINES:
        return (f"{prefix}{value}",)
    path = directory / value
    if prefix in _FILES:  # looked for beside the compilation first, then among the includes
        return (prefix, str(path) if path.is_file() else value)
    return (prefix, value if value.startswith("=") else str(path))


def command_macros(database: bytes) -> dict[bytes, bytes]:
    """The macros that the commands of a database define, the first value of each."""
    macros: dict[bytes, bytes] = {}
    with suppress(ValueError, TypeError, AttributeError, KeyError):  # it comes from the project
        for entry in json.loads(database or b"[]"):
            words = entry.get("arguments") or shlex.split(entry["command"])
            for match in filter(None, map(_DEFINITION.fullmatch, front_end_flags(words, Path("/")))):
                value = "1" if match[2] is None else match[2]
                macros.setdefault(match[1].encode(), value.encode())
    return macros
