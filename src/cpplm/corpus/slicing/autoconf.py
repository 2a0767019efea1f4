"""The header that autoconf's `configure.ac` describes, for projects without its `config.h.in`.

That file is written by autoheader and seldom kept under version control. What the script would find out on
this machine is left to `build_headers.configured`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

# GNU Autoconf 2.72, sections 5, 6 and 7: macros that define something for each word of their first argument.
_CHECKS = re.compile(
    rb"\bA[CX]_(CHECK_(?:HEADERS|FUNCS|TYPES|MEMBERS|DECLS|SIZEOF)|REPLACE_FUNCS)(?:_ONCE)?\s*\("
)
_DEFINITION = re.compile(rb"(?m)^(.*)\bAC_DEFINE(?:_UNQUOTED)?\s*\(")
_EXTENSIONS = re.compile(rb"\b(?:AC_USE_SYSTEM_EXTENSIONS|AC_GNU_SOURCE|gl_EARLY)\b")
COMMENT = re.compile(rb"(?m)(?:^[ \t]*#|\bdnl\b).*$")
_GNU = b"Free Software Foundation"
_NO_VALUE = re.compile(rb"\A[01]?\Z|[\n$]")
_COMPUTED = re.compile(rb"([\"']?)\$[\w{]")  # of a script's variable
_VARIABLE = re.compile(rb"\$(?:\w+|\{\w+\})")
_ASSIGNED_NUMBER = re.compile(rb"\b(\w+)=(\d+)\b")  # `with_link_size=2`
# Which are nothing but for other systems or compilers: `extern @LIB_DLL_VARIABLE@ int n;`
ATTRIBUTE = re.compile(
    rb"(?:^|_)(?:(?:DLL|EXPORT|IMPORT|ATTRIBUTE|DEPRECATED|VISIBILITY|UNUSED|NORETURN|RESTRICT|INLINE"
    rb"|THREAD_LOCAL)(?:_|$)|API$)"
)
_PREFIXES = {b"CHECK_DECLS": b"HAVE_DECL_", b"CHECK_SIZEOF": b"SIZEOF_"}
_ALWAYS = b"PACKAGE VERSION".split() + [
    b"PACKAGE_" + part for part in b"BUGREPORT NAME STRING TARNAME URL VERSION".split()
]
# What its checks look for before all else (section 5.1.2).
_INCLUDES = b"INTTYPES_H STDINT_H STDLIB_H STRINGS_H STRING_H SYS_STAT_H SYS_TYPES_H UNISTD_H".split()


def header_template(script: bytes) -> bytes:
    """The text of `config.h.in` for a `configure.ac`: `#undef` for what depends on the machine."""
    text = COMMENT.sub(b"", script)
    values = always_defined(script)
    lines = [b"#define _GNU_SOURCE 1"] if _EXTENSIONS.search(text) else []
    checked = list(_checked(text))
    included = [b"HAVE_" + header for header in _INCLUDES if checked]
    for name in dict.fromkeys([*_ALWAYS, *included, *checked, *(name for name, _, _ in _definitions(text))]):
        if re.fullmatch(rb"[A-Za-z_]\w*", name):
            lines.append(b"#define %b %b" % (name, values[name]) if name in values else b"#undef " + name)
    return b"\n".join(lines) + b"\n"


def always_defined(script: bytes) -> dict[bytes, bytes]:
    """The macros that a `configure.ac` defines whatever it finds, with the values that it has for them."""
    values: dict[bytes, list[bytes]] = defaultdict(list)
    everywhere: dict[bytes, bytes] = {}
    for name, value, in_branch in _definitions(COMMENT.sub(b"", script)):
        values[name].append(value)
        if not in_branch:
            everywhere[name] = value
    # What is defined in one way or the other is always defined, and as on Linux.
    for name, found in values.items():
        if len(set(found)) > 1:
            everywhere[name] = next((value for value in found if b"__declspec" not in value), found[0])
    return {
        name: _VARIABLE.sub(b"", value)
        for name, value in everywhere.items()
        if value and b"\n" not in value and (value[:1] == b'"' or b"$" not in value)
    }


def defined_by_checks(script: bytes) -> dict[bytes, bytes]:
    """The macros that a script defines by what it finds, each with the first of its values; no switches.

    Attributes stand for nothing, values that the script computes for `""` or 0. What may replace a name of
    the system is left out: macros of GNU's own scripts, names in lower case but for those of headers.
    """
    values: dict[bytes, bytes] = {}
    numbers = dict(reversed(_ASSIGNED_NUMBER.findall(script)))  # the first that a variable has
    for name, value, _ in _definitions(COMMENT.sub(b"", script)) if _GNU not in script else ():
        is_attribute = value.startswith(b"__attribute__")
        if name.isupper() and (computed := _COMPUTED.match(value)):
            if name.endswith(b"_TYPE"):  # a number is none
                continue
            number = numbers.get(value.strip(b"${}"), b"0")
            is_empty = ATTRIBUTE.search(name) and b"HAVE_" not in name
            text = b'""' if computed.group(1) else b"" if is_empty else number
            values.setdefault(name, text)
        elif (name.isupper() or value[:1] == b"<" or is_attribute) and not _NO_VALUE.search(value):
            values.setdefault(name, b"" if is_attribute else value)
    return values


def _definitions(text: bytes) -> Iterator[tuple[bytes, bytes, bool]]:
    """Macros that the script itself defines: name, value, and whether that is in a branch of it."""
    for match in _DEFINITION.finditer(text):
        name, value, *_ = *_arguments(text, match.end()), b"1", b"1"
        yield name, value, bool(match.group(1))


def _checked(text: bytes) -> Iterator[bytes]:
    """The names of macros that the script's checks define."""
    for match in _CHECKS.finditer(text):
        listed = next(_arguments(text, match.end()), b"")
        check = match.group(1)
        separator = rb"," if check in (b"CHECK_TYPES", b"CHECK_MEMBERS", b"CHECK_SIZEOF") else rb"[\s,\\]+"
        for word in re.split(separator, listed):
            upper = re.sub(rb"\W", b"_", word.strip().replace(b"*", b"P")).upper()
            if upper:
                yield _PREFIXES.get(check, b"HAVE_") + upper


def _arguments(text: bytes, start: int) -> Iterator[bytes]:
    """The arguments of an m4 call, from behind its parenthesis on, without the quotes around each."""
    depth, begin = 0, start
    for match in re.compile(rb"[][(),]").finditer(text, start):
        byte = match.group()
        if byte in b"[(":
            depth += 1
        elif depth and byte in b"])":
            depth -= 1
        elif depth == 0:
            argument = text[begin : match.start()].strip()
            while argument[:1] == b"[" and argument[-1:] == b"]":
                argument = argument[1:-1].strip()
            yield argument
            begin = match.end()
            if byte == b")":
                return
