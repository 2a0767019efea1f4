"""Headers of problems: those that this machine lacks, and those that can be compiled beforehand.

Only what a program's own text includes before the place where a model writes is compiled beforehand, so that
a program which lacks an include goes on failing to compile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from cpplm.judge.scoring import TOKEN
from cpplm.sandbox.compiler import missing_headers
from cpplm.sandbox.sandbox import Sandbox

LIBRARIES = {"boost": ("libboost-dev", ()), "openssl": ("libssl-dev", ("-lcrypto",))}
"""Folder of headers: the package of Debian and Ubuntu that has them, and what to link."""

_INCLUDE = re.compile(r"[ \t]*#[ \t]*include[ \t]*<([\w./+-]+)>[ \t\r]*")


@lru_cache(4096)
def included_headers(text: str) -> tuple[str, ...]:
    """The headers in `#include <...>`, anywhere in a text, in order."""
    return tuple(match[1] for line in _lines(text) if (match := _INCLUDE.fullmatch(line)))


@lru_cache(4096)
def leading_headers(text: str) -> tuple[str, ...]:
    """The headers that a text includes before anything else, sorted."""
    headers = set()
    for line in _lines(text):
        if match := _INCLUDE.fullmatch(line):
            headers.add(match[1])
        elif line.strip():
            break
    return tuple(sorted(headers))


def _lines(text: str) -> list[str]:
    """The lines of a text without its comments."""
    code = (" " if token.lastgroup == "comment" else token.group() for token in TOKEN.finditer(text))
    return "".join(code).split("\n")


def link_flags(headers: Iterable[str]) -> tuple[str, ...]:
    """The linker's flags of a program that includes these."""
    folders = dict.fromkeys(header.split("/")[0] for header in headers)
    return tuple(flag for folder in folders for flag in LIBRARIES.get(folder, ("", ()))[1])


def find_missing_headers(headers: Iterable[str], sandbox: Sandbox) -> dict[str, str]:
    """For each header that is not there what is needed: "libboost-dev (<boost/any.hpp>)"."""
    names = sorted(set(headers))
    missing = missing_headers(sandbox, names) if names else []
    return {header: f"needs {_package(header)}(<{header}>)" for header in missing}


def _package(header: str) -> str:
    package = LIBRARIES.get(header.split("/", maxsplit=1)[0], ("", ()))[0]
    return f"{package} " if package else "the header "
