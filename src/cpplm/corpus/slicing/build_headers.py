"""Headers that a build writes: which includes name such, and what they hold by default."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path, PurePosixPath

# <math.h> is the system's, even where a project has a file of that name (ISO C17 7.1.2, POSIX.1-2017).
_SYSTEM_NAMES = """
assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg
stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype
aio cpio dirent dlfcn fcntl fmtmsg fnmatch ftw glob grp iconv langinfo libgen monetary mqueue ndbm netdb
nl_types poll pthread pwd regex sched search semaphore spawn strings stropts syslog tar termios trace
ulimit unistd utime utmpx wordexp alloca malloc memory getopt execinfo features endian byteswap
arpa/inet net/if netinet/in netinet/tcp sys/ipc sys/mman sys/msg sys/param sys/resource sys/select
sys/sem  sys/shm sys/socket sys/stat sys/statvfs sys/time sys/times sys/types sys/uio sys/un sys/utsname
sys/wait
"""
SYSTEM_HEADERS = frozenset(f"{name}.h" for name in _SYSTEM_NAMES.split())
_PLACEHOLDER = re.compile(rb"@(\w+)@|\$\{(\w+)\}")
_SIZES = {
    b"CHAR": b"1", b"SHORT": b"2", b"INT": b"4", b"LONG": b"8", b"LONG_LONG": b"8", b"FLOAT": b"4",
    b"DOUBLE": b"8", b"VOID_P": b"8", b"VOIDP": b"8", b"INT_P": b"8", b"SIZE_T": b"8", b"SSIZE_T": b"8",
    b"OFF_T": b"8", b"WCHAR_T": b"4", b"TIME_T": b"8", b"LONG_INT": b"8", b"LONG_DOUBLE": b"16",
}  # fmt: skip
# `option(NAME "help" ON)`
_OPTION = re.compile(rb'(?mi)^[ \t]*option[ \t]*\(\s*(\w+)\s+"[^"]*"\s+(?:ON|TRUE|YES|1)\s*\)')
# As on most machines: the order of bytes, and types of ISO C and POSIX.
_IS_DEFAULT = re.compile(
    rb"LITTLE_?ENDIAN|IS_LITTLE|^HAVE_(?:U?INT(?:8|16|32|64|PTR|MAX)|S?SIZE|SOCKLEN|OFF|PID)_T$"
)
_HAVE_HEADERS = frozenset(
    f"HAVE_{re.sub('[./]', '_', name).upper()}".encode() for name in SYSTEM_HEADERS if name != "stropts.h"
)
# Of libraries, also where they are included in quotes.
_LIBRARY_HEADERS = frozenset(
    [
        "zlib.h",
        "expat.h",
        "sqlite3.h",
        "png.h",
        "jpeglib.h",
        "bzlib.h",
        "lzma.h",
        "curl.h",
        "ncurses.h",
        "curses.h",
        "SDL.h",
        "Python.h",
        "lua.h",
        "lauxlib.h",
        "lualib.h",
        "mpi.h",
        "ft2build.h",
        "tiff.h",
        "tiffio.h",
        "windows.h",
        "Windows.h",
        "winsock2.h",
        "jni.h",
    ]
)
_INCLUDE_ROOTS = (
    "include",
    "includes",
    "inc",
    "src",
    "source",
    "sources",
    "lib",
    "libs",
    "api",
    "public",
    "code",
)


def include_target(argument: str) -> str:
    """`a/b.h` of `"a/b.h"` and `<a/b.h>`, whatever follows."""
    return argument[1:].split(">" if argument[0] == "<" else '"', maxsplit=1)[0]


def is_build_written(argument: str, folders: frozenset[str]) -> bool:
    """True for an include that nothing answers, of a header that only a build can have written.

    Such are headers in quotes and those below a folder where the project's own headers lie, but for what
    libraries are included by.

    Args:
        argument: of the include (`"a.h"`, `<b/c.h>`).
        folders: from `include_folders`.
    """
    folder, _, base = include_target(argument).rpartition("/")
    if folder:
        return folder.split("/")[0] in folders or folder.startswith(".")
    return (
        base == "config.h"
        or export_macros(base) != ()
        or (argument[0] == '"' and base not in SYSTEM_HEADERS and base not in _LIBRARY_HEADERS)
    )


def include_folders(names: Iterable[str]) -> frozenset[str]:
    """The folders that includes in angle brackets may begin with: those in a place where headers lie."""
    return frozenset(
        part
        for name in names
        for folders in [PurePosixPath(name).parts[:-1]]
        for number, part in enumerate(folders)
        if number == 0 or folders[number - 1].lower() in _INCLUDE_ROOTS
    )


def export_macros(base: str) -> tuple[bytes, ...]:
    """The macros that CMake's `generate_export_header` defines in a header `NAME_export.h`."""
    name = base.removesuffix(".hpp").removesuffix(".h")
    if not name.endswith("_export") or name == base:
        return ()
    stem = name.removesuffix("_export").upper().encode()
    return tuple(
        stem + ending for ending in (b"_EXPORT", b"_NO_EXPORT", b"_DEPRECATED", b"_DEPRECATED_EXPORT")
    )


def default_options(roots: Iterable[Path]) -> frozenset[bytes]:
    """The options that CMake files of a project set by default, in its folders and those right below."""
    found: set[bytes] = set()
    for root in roots:
        for path in (root / "CMakeLists.txt", *sorted(root.glob("*/CMakeLists.txt"))):
            with suppress(OSError):
                found.update(_OPTION.findall(path.read_bytes()))
    return frozenset(found)


def configured(template: bytes, options: Set[bytes] = frozenset()) -> bytes:
    """A header as a build would write it of its template, with every choice in its default.

    Defined are `options`, which the project sets by default; all else is not defined, or 0.

    For autoconf's `config.h.in` and CMake's `configure_file`. What x86-64 Linux has is defined: headers of
    POSIX, the sizes of types, the order of bytes.
    """

    def size(match: re.Match[bytes]) -> bytes:  # of CMake's check_type_size
        value = _configured_value(match.group(1) or b"")
        return b"#define " + match.group(1) + b" " + value if value else b""

    def choice(match: re.Match[bytes]) -> bytes:
        value = b"1" if match.group(2) in options else _configured_value(match.group(2))
        if match.group(1) == b"cmakedefine01":
            return b"#define " + match.group(2) + b" " + (value or b"0")
        return b"#define " + match.group(2) + b" " + value if value else b""

    text = re.sub(rb"(?m)^@(?:(SIZEOF_\w+)_CODE|\w+)@$", size, template)
    text = re.sub(rb"(?m)^[ \t]*#[ \t]*(undef|cmakedefine(?:01)?)[ \t]+(\w+)[^\n]*$", choice, text)
    return _PLACEHOLDER.sub(lambda match: _configured_value(match.group(1) or match.group(2)) or b"0", text)


def _configured_value(name: bytes) -> bytes | None:
    if name in _HAVE_HEADERS or name == b"STDC_HEADERS" or _IS_DEFAULT.search(name):
        return b"1"
    return _SIZES.get(name.removeprefix(b"SIZEOF_").rstrip(b"_")) if name.startswith(b"SIZEOF_") else None
