"""X macros: enumerators that calls of macros make in an enumeration.

Such as `enum { #define E(code, text) ERROR_##code, E(FULL, "disk full") #undef E };` on as many lines.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from cpplm.cpp.conditions import Macro, parse_define
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import IDENTIFIER
from cpplm.cpp.macros import MacroTable, closing
from cpplm.cpp.token_pasting import pasted_names

_ENUMERATION = re.compile(rb"\benum\b(?!\s+(?:class|struct)\b)[^;(){}]*\{")  # its names are known outside
_CALL = re.compile(rb"(?:[{,)]|^)\s*((\w+)\s*\(([^()]*))", re.MULTILINE)  # `E(FULL, "disk full")`
_COMMA = re.compile(rb"[ \t]*,")
_OPERATORS = (b"=", b"|", b"+", b"-", b"<", b">", b"&", b"*")


class MadeEnumerators(NamedTuple):
    """The names that one call makes, and where it stands, with the comma behind it."""

    names: list[bytes]
    start: int
    end: int


def made_enumerators(item: Item, text: bytes, macros: MacroTable) -> Iterator[MadeEnumerators]:
    """The calls in an unscoped enumeration outside of classes.

    Args:
        item: whatever it is; what is defined in it counts before all.
        text: of it, without comments.
        macros: of the project; the first argument is the name where nothing is known to be pasted to it.
    """
    enumeration = _ENUMERATION.search(text)
    if enumeration is None or (item.kind == ItemKind.TYPE and b"{" in text[: enumeration.start()]):
        return
    defines: dict[bytes, list[Macro]] = defaultdict(list)
    for name, macro in (parse_define(d.argument) for d in item.directives if d.keyword == b"define"):
        defines[name].append(macro)
    end = 0
    for call in _CALL.finditer(text, enumeration.end() - 1):
        name, start = call.group(2), call.start(1)
        if start < end or text[max(0, start - 80) : start].rstrip().endswith(_OPERATORS):
            continue  # in an argument or a value
        words = [each.strip() for each in call.group(3).split(b",")]
        if name in defines:
            made = [_made_by(macro, words) for macro in defines[name]]
        elif name in macros.pastes:
            made = sorted(pasted_names(macros.pastes[name], words))
        else:
            made = words[:1]
        end = max(closing(text, call.end(2)), call.end())
        comma = _COMMA.match(text, end)
        yield MadeEnumerators(list(filter(IDENTIFIER.fullmatch, made)), start, comma.end() if comma else end)


def _made_by(macro: Macro, arguments: list[bytes]) -> bytes:
    """The enumerator that a macro begins with."""
    values = dict(zip(macro.parameters or (), arguments, strict=False))
    parts = re.split(rb"[=,]", macro.body or b"")[0].split(b"##")
    return b"".join(values.get(part.strip(), part.strip()) for part in parts)
