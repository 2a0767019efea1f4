"""Names that macros paste of their arguments (`LIB_##kind##_##name`), also by calls of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cpplm.cpp.lexer import IDENTIFIER

_PARAMETER = b"\x04"  # and its number, in what is pasted and in simple calls
_PASTE = re.compile(rb"\x04?\w+(?:\s*##\s*\x04?\w+)+")
_SIMPLE_CALL = re.compile(rb"\b([A-Za-z_]\w*)\s*\(([\x04\w\s,#]*)\)")
_PASTED_PART = re.compile(rb"\x04?\w+")
_DEEPEST_PASTE = 3
# By the name of a macro what it pastes: words, and numbers of its parameters.
Pastes = dict[bytes, frozenset[tuple[bytes | int, ...]]]


def numbered(body: bytes, parameters: list[bytes]) -> bytes:
    """The body with numbers for the parameters that it pastes or passes on."""
    numbers = {name.strip(): _PARAMETER + b"%d" % number for number, name in enumerate(parameters)}

    def number(match: re.Match[bytes]) -> bytes:
        return IDENTIFIER.sub(lambda word: numbers.get(word.group(), word.group()), match.group())

    body = _PASTE.sub(number, body) if b"##" in body else body
    return _SIMPLE_CALL.sub(number, body)


def chains_and_calls(body: bytes) -> list[bytes]:
    """The parts of a body that matter for what it pastes."""
    return [match.group() for pattern in (_PASTE, _SIMPLE_CALL) for match in pattern.finditer(body)]


def through_others(pastes: Pastes, bodies: dict[bytes, set[bytes]]) -> Pastes:
    """A macro that calls one that pastes, pastes too: `#define DECLARE(x) extern int FLAG(x)`."""
    expanded = dict(pastes)
    for _ in range(_DEEPEST_PASTE):
        inherited = {
            name: frozenset(
                template
                for text in texts
                for other, arguments in _SIMPLE_CALL.findall(text)
                for inner in expanded.get(other, ())
                if (template := _passed_on(inner, arguments.split(b",")))
            )
            for name, texts in sorted(bodies.items())
            if name not in pastes
        }
        expanded = pastes | {name: templates for name, templates in inherited.items() if templates}
    return expanded


def _passed_on(inner: tuple[bytes | int, ...], arguments: list[bytes]) -> tuple[bytes | int, ...]:
    """The pastes of a macro by a call of another one, with these arguments; empty where none is its own."""
    parts: list[bytes | int] = []
    for part in inner:
        if isinstance(part, bytes):
            parts.append(part)
        elif part < len(arguments):
            parts += _parts(arguments[part])
        else:
            return ()
    return tuple(parts) if any(isinstance(part, int) for part in parts) else ()


def _parts(chain: bytes) -> list[bytes | int]:
    """The words and the parameters of `a ## b`."""
    parts = _PASTED_PART.findall(chain)
    return [int(part[1:]) if part.startswith(_PARAMETER) else part for part in parts]


def pasted_by(body: bytes) -> Iterator[tuple[bytes | int, ...]]:
    """The pastes in a body, of parameters and other words."""
    for chain in _PASTE.findall(body) if b"##" in body else ():
        parts = _parts(chain)
        if any(isinstance(part, int) for part in parts):
            yield tuple(parts)
