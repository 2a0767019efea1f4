"""Headers of the standard library that a document needs though nothing that it holds includes them.

A build would have them from a header that it writes, or from whoever includes a file that includes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

# ISO C 7.20, 7.18, 7.19; whatever else is known to declare the same with glibc and libstdc++.
_HEADERS = (
    (
        re.compile(rb"\bu?int(?:_fast|_least)?(?:8|16|32|64|ptr|max)_t\b"),
        b"stdint.h",
        re.compile(rb"(?:stdint|inttypes|netinet/\w+|arpa/inet|netdb|ifaddrs|resolv|linux/\w+|elf|link)\.h"),
    ),
    (re.compile(rb"\bbool\b"), b"stdbool.h", re.compile(rb"stdbool\.h|curses\.h")),
    (re.compile(rb"\bwchar_t\b"), b"stddef.h", re.compile(rb"(?:stddef|stdlib|wchar|wctype|inttypes)\.h")),
    (
        re.compile(rb"\b(?:S?TAILQ|S?LIST)_(?:ENTRY|HEAD)\b(?= ?\()"),
        b"sys/queue.h",
        re.compile(rb".*queue\.h"),
    ),
    (
        re.compile(rb"\b__NR_\w+"),
        b"asm/unistd.h",
        re.compile(rb"(?:(?:sys/)?syscall|(?:asm|linux)/unistd)\.h"),
    ),
)
# Where nothing is included at all.
_ALONE = (
    (re.compile(rb"\b(?:size_t|NULL|ptrdiff_t)\b"), b"stddef.h"),
    (re.compile(rb"\b(?:ssize_t|off_t)\b"), b"sys/types.h"),
    (re.compile(rb"\bFILE\b"), b"stdio.h"),
    (re.compile(rb"\bva_list\b"), b"stdarg.h"),
    (re.compile(rb"\btime_t\b"), b"time.h"),
)
# What the headers of libraries leave to others: a name, and the line that there has to be without it.
_ASKED_BY_LIBRARIES = {
    b"jpeglib.h": (b"stdio", b"#include <stdio.h>"),
    b"gi18n-lib.h": (b"GETTEXT_PACKAGE", b'#define GETTEXT_PACKAGE ""'),
}
# A header with the types of <stdint.h>, as by AX_CREATE_STDINT_H: GCint.h, _stdint.h.
_INTEGER_HEADER = re.compile(r"(?:(?<![a-z])|std)int(?:types)?\.h[\">]")
_INCLUDED = re.compile(rb'#[ \t]*include[ \t]*[<"]([^>"\n]+)')


def missing_lines(
    text: bytes, dropped: Iterable[str], is_declared: Callable[[bytes], bool], *, is_c: bool
) -> list[bytes]:
    """The includes for names in a text that the project does not declare itself, and what libraries ask for.

    Args:
        text: of a document.
        dropped: arguments of includes of headers that only a build can have written (`"GCint.h"`).
        is_declared: whether a file of the project declares a name.
        is_c: the text is C, which has no type `bool` or `wchar_t` of its own.
    """
    included = [
        match.group(1)
        for match in _INCLUDED.finditer(text)
        if not text[text.rfind(b"\n", 0, match.start()) + 1 : match.start()].strip()  # `// #include <a.h>`
    ]
    wanted = list(_ALONE) if not included else []
    if is_c or not included or any(map(_INTEGER_HEADER.search, dropped)):
        wanted += [
            (names, header)
            for names, header, others in _HEADERS[: None if is_c else 1]
            if not any(map(others.fullmatch, included))
        ]
    used = ((header, {*names.findall(text)}) for names, header in wanted)
    missing = {header for header, names in used if names and not any(map(is_declared, names))}
    lines = {b"#include <%b>" % header for header in missing}
    for header, (name, line) in _ASKED_BY_LIBRARIES.items():
        before, found, _ = text.partition(header)
        if found and name not in before:
            lines.add(line)
    return sorted(lines, key=lambda line: (line.startswith(b"#define"), line))
