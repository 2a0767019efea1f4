"""License detection: the SPDX expression of a file, and whether the user allows it.

What is closest to the code decides: the file's own SPDX tag, then the license named by the comments at its
head, then the nearest LICENSE or COPYING file upward, at most to the project's root. Texts are recognised by
the phrases that set them apart; where several licenses are named and nothing says that one may choose, all of
them apply (AND). "" means unknown. Names as in https://spdx.org/licenses/.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

import license_expression as spdx
from boolean import Expression

from cpplm.core.errors import UserError

# Those that let code be used in any work, closed ones included, for no more than a notice.
_PERMISSIVE = (
    "0BSD AFL-3.0 Apache-1.1 Apache-2.0 Artistic-2.0 BlueOak-1.0.0 BSD-1-Clause BSD-2-Clause "
    "BSD-2-Clause-Patent BSD-3-Clause BSD-3-Clause-Clear BSL-1.0 CC0-1.0 curl FTL HPND ICU IJG ISC "
    "libpng-2.0 MIT MIT-0 MIT-CMU MS-PL MulanPSL-2.0 NCSA OpenSSL PostgreSQL PSF-2.0 TCL Unicode-3.0 "
    "Unlicense UPL-1.0 WTFPL X11 Zlib zlib-acknowledgement"
)
PERMISSIVE = frozenset(_PERMISSIVE.split())
_TAG = re.compile(rb"SPDX-License-Identifier:[ \t]*([^\n\r]{1,200})")
_TAG_END = re.compile(r"\s*(?:\*/|-->|\"|'|\\n).*$")
_NAMED_LIKE_A_LICENSE = re.compile(
    r"(?:un)?licen[cs]es?(?:[-_.].*)?|copying(?:[-_.].*)?|copyright(?:\.(?:txt|md))?|mit-licen[cs]e(?:\.txt)?",
    re.IGNORECASE,
)
_NO_TEXT = frozenset({".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".py", ".pl", ".sh", ".js", ".cmake"})
_LONGEST_LICENSE = 200_000
_WORTH_READING = re.compile(rb"icen[sc]e|LICEN[SC]E|ermission|PERMISSION|edistribution|unencumbered")

_ISC = (
    "permission to use copy modify and(?: or)? distribute this software for any purpose "
    "with or without fee is hereby granted"
)
# Phrases in text of lower-case words; the first of a group that is found counts.
_FAMILIES: tuple[tuple[tuple[str, str], ...], ...] = (
    (
        (r"apache license (?:v|version )?2.0 .*llvm exception", "Apache-2.0 WITH LLVM-exception"),
        (r"apache license(?: v2|.{0,20}version 2.0| 2.0)|apache 2.0 licen[sc]e", "Apache-2.0"),
        (r"apache software license version 1.1", "Apache-1.1"),
    ),
    ((r"boost software license", "BSL-1.0"),),
    (
        (r"permission is hereby granted free of charge to any person obtaining a copy", "MIT"),
        (r"\bmit(?: x11| software| expat)? licen[sc]e|licen[sc]ed? (?:under|is) (?:the )?mit\b", "MIT"),
    ),
    (
        (r"redistribution and use in source and binary forms.*all advertising materials", "BSD-4-Clause"),
        (
            r"redistribution and use in source and binary forms.*"
            r"(?:neither the names? |used to endorse or promote)",
            "BSD-3-Clause",
        ),
        (r"redistribution and use in source and binary forms", "BSD-2-Clause"),
        (r"3 clause bsd|bsd 3 clause", "BSD-3-Clause"),
        (r"2 clause bsd|bsd 2 clause|simplified bsd licen[sc]e", "BSD-2-Clause"),
    ),
    ((r"altered source versions must be plainly marked as such", "Zlib"), (r"\bzlib licen[sc]e", "Zlib")),
    ((_ISC + " provided", "ISC"), (_ISC, "0BSD")),
    ((r"free and unencumbered software released into the public domain", "Unlicense"),),
    ((r"\bcc0 1.0|creative commons zero", "CC0-1.0"),),
    ((r"university of illinois ncsa", "NCSA"),),
    ((r"do what the fuck you want to public license", "WTFPL"),),
    (
        (r"version mpl 1.1 gpl 2.0 lgpl 2.1", "MPL-1.1 OR GPL-2.0-or-later OR LGPL-2.1-or-later"),
        (r"mozilla public license (?:v. |version |v)?2.0", "MPL-2.0"),
        (r"mozilla public license (?:v. |version )?1.1", "MPL-1.1"),
    ),
    ((r"eclipse public license (?:v ?|version )?2.0", "EPL-2.0"), (r"eclipse public license", "EPL-1.0")),
    ((r"common development and distribution license", "CDDL-1.0"),),
    ((r"microsoft public license", "MS-PL"),),
)
_COMPILED = tuple(
    tuple((re.compile(phrase, re.DOTALL), name) for phrase, name in family) for family in _FAMILIES
)
_GNU = re.compile(r"gnu (lesser |library |affero )?(?:or lesser |or library )?general public licen[sc]e")
_GNU_SHORT = re.compile(
    r"\b(?:under|is|terms of)(?: both)?(?: the)? (?:gnu )?(a|l)?gpl"
    r"(?: ?v| version)? ?(\d(?:\.\d)?)(\+| or later| or any)?"
)
_GNU_NAMES = {"lesser": "LGPL", "library": "LGPL", "affero": "AGPL", "": "GPL", "l": "LGPL", "a": "AGPL"}
_GNU_FIRST = {"GPL": "1.0", "LGPL": "2.0", "AGPL": "1.0"}
_LATER = re.compile(r"any later version|or later|at your option any later|or newer")
_CHOICE = re.compile(
    r"dual licen[sc]ed|licen[sc]ed under both|at your option .{0,40}(?:either|one of|licen[sc]e)"
    r"|either of the|(?:may|can) (?:select|choose|use) .{0,60}(?:either|one|licen[sc]e)"
    r"|alternatively .{0,80}licen[sc]e"
)


def spdx_tag(text: bytes) -> str:
    """The expression of the first SPDX tag; "" without one, as it is when it breaks SPDX's rules."""
    match = _TAG.search(text)
    if match is None:
        return ""
    return _canonical(_TAG_END.sub("", match[1].decode("utf-8", "replace")).strip())


@functools.cache
def _canonical(expression: str) -> str:
    parsed = _parse(expression)
    return expression if parsed is None else str(parsed)


_licensing = functools.cache(spdx.get_spdx_licensing)  # 16 ms to build


@functools.cache
def _parse(expression: str) -> Expression | None:
    try:
        return _licensing().parse(expression)
    except (spdx.ExpressionError, spdx.ExpressionParseError):
        return None


def detect_license(text: bytes) -> str:
    """The license that a notice or a license text speaks of, as an SPDX expression; "" when none is known."""
    if not _WORTH_READING.search(text):
        return ""
    return _detect_in_words(re.sub(rb"[^a-z0-9.+]+", b" ", text.lower()).decode("ascii"))


@functools.lru_cache(maxsize=4_096)
def _detect_in_words(words: str) -> str:
    title = _GNU.search(words[:400])
    if title and re.match(r" (?:version )?\d", words[title.end() :]) and " preamble " in words[:5_000]:
        return _gnu(words, title, whole_text=True)[0]  # such a text speaks of its sister licenses, too
    names = [
        next((name for phrase, name in family if phrase.search(words)), "")
        for family in _COMPILED
    ]  # fmt: skip
    gnu = _gnu_names(words)
    expressions = list(dict.fromkeys(name for name in [*names, *gnu] if name))
    return _joined(expressions, " OR " if _CHOICE.search(words) else " AND ")


def _gnu_names(words: str) -> list[str]:
    """One expression per GNU license that is named, from the first mention that has a version."""
    found: dict[str, tuple[bool, str]] = {}
    for match in _GNU.finditer(words):
        name, versioned = _gnu(words, match)
        family = name.partition("-")[0]
        if family not in found or (versioned and not found[family][0]):
            found[family] = versioned, name
    if found:
        return [name for _, name in found.values()]
    return [
        f"{_GNU_NAMES[match[1] or '']}-{_dotted(match[2])}-{'or-later' if match[3] else 'only'}"
        for match in _GNU_SHORT.finditer(words)
    ]


def _gnu(words: str, match: re.Match[str], *, whole_text: bool = False) -> tuple[str, bool]:
    """A GNU license, and whether a version is named near by; without one any version may be chosen."""
    name = _GNU_NAMES[(match[1] or "").strip()]
    near = words[match.end() : match.end() + 250]
    version = re.search(r"\b(?:version|v) ?(\d(?:\.\d)?)", near)
    if version is None:
        version = re.search(
            r"version (\d(?:\.\d)?) of the\s*$", words[max(0, match.start() - 40) : match.start()]
        )
    if version is None:
        return f"{name}-{_GNU_FIRST[name]}-or-later", False
    later = not whole_text and _LATER.search(near)
    expression = f"{name}-{_dotted(version[1])}-{'or-later' if later else 'only'}"
    if "gcc runtime library exception" in words:
        return f"{expression} WITH GCC-exception-3.1", True
    return expression, True


def _dotted(version: str) -> str:
    version = version.rstrip(".")
    return version if "." in version else f"{version}.0"


class LicenseFiles:
    """The license files of one project, each folder read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._by_folder: dict[Path, str] = {}

    def of_file(self, path: Path, head: bytes) -> str:
        """The license of a file, given the comments at its head.

        A file named as it is with `.license` at the end speaks for it (https://reuse.software). A head that
        only points to another file ("see LICENSE") leaves the word to that.
        """
        beside = spdx_tag(_read(path.with_name(f"{path.name}.license")))
        return beside or spdx_tag(head) or detect_license(head) or self.nearest(path.parent)

    def nearest(self, folder: Path) -> str:
        """The expression that holds for a folder: its own license files', else its parent's."""
        if folder not in self._by_folder:
            expression = self._in_folder(folder)
            if not expression and folder != self._root and self._root in folder.parents:
                expression = self.nearest(folder.parent)
            self._by_folder[folder] = expression
        return self._by_folder[folder]

    @staticmethod
    def _in_folder(folder: Path) -> str:
        paths = sorted(path for path in folder.glob("*") if _NAMED_LIKE_A_LICENSE.fullmatch(path.name))
        texts = [_read(path) for path in paths if path.suffix.lower() not in _NO_TEXT]
        expressions = list(dict.fromkeys(spdx_tag(text[:2_000]) or detect_license(text) for text in texts))
        return _joined([expression for expression in expressions if expression], " AND ")


def _read(path: Path) -> bytes:
    """The text of a license file; nothing when it cannot be read: the license is then unknown."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_LONGEST_LICENSE)
    except OSError:
        return b""


def combine(expressions: Iterable[str]) -> str:
    """The license of a text taken from files under these; NOASSERTION stands for unknown ones among known."""
    names = sorted(set(expressions))
    return _joined([name or "NOASSERTION" for name in names], " AND ") if any(names) else ""


def _joined(expressions: list[str], by: str) -> str:
    return by.join(f"({name})" if " OR " in name and len(expressions) > 1 else name for name in expressions)


@functools.cache
def _wanted(names: tuple[str, ...]) -> frozenset[str]:
    allowed: set[str] = set()
    for name in names:
        allowed |= PERMISSIVE if name == "permissive" else {_canonical(name)}
    return frozenset(allowed)


def check_names(names: tuple[str, ...]) -> None:
    """Refuse an allow-list that cannot be meant.

    Raises:
        UserError: an unknown SPDX identifier, an expression instead of one, or `any` beside others.
    """
    fix = "Use any, permissive, or identifiers such as MIT, Apache-2.0, GPL-3.0-or-later."
    if not names:
        raise UserError("--licenses names none", fix=fix)
    if "any" in names and len(names) > 1:
        raise UserError("--licenses any leaves nothing for other names to do", fix="Leave the others out.")
    for name in names:
        if name in ("any", "permissive") or name.startswith("LicenseRef-"):
            continue
        parsed = _parse(name)
        if not isinstance(parsed, spdx.LicenseSymbol | spdx.LicenseWithExceptionSymbol):
            raise UserError(f"--licenses {name!r} is not an SPDX identifier", fix=fix)
        if _licensing().unknown_license_keys(parsed):
            raise UserError(f"--licenses: SPDX knows no {name!r}", fix=fix)


def is_allowed(expression: str, names: tuple[str, ...]) -> bool:
    """True if a file under `expression` may be learned from when `names` are allowed.

    Of licenses joined by OR one has to be allowed, of those joined by AND all; WITH adds permissions, so the
    license alone suffices. Unknown ("" or no valid expression) is allowed by `any` only.
    """
    if names == ("any",):
        return True
    parsed = _parse(expression) if expression else None
    return parsed is not None and _is_allowed(parsed, _wanted(names))


def _is_allowed(node: Expression, wanted: frozenset[str]) -> bool:
    if isinstance(node, spdx.OR):
        return any(_is_allowed(part, wanted) for part in node.args)
    if isinstance(node, spdx.AND):
        return all(_is_allowed(part, wanted) for part in node.args)
    if isinstance(node, spdx.LicenseWithExceptionSymbol):
        return str(node) in wanted or node.license_symbol.key in wanted
    return str(node) in wanted
