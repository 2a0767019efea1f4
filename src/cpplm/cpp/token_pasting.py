"""Names that macros paste of their arguments (`LIB_##kind##_##name`), also by calls of each other."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Set

from cpplm.cpp.lexer import IDENTIFIER

_PARAMETER = b"\x04"  # and its number, in what is pasted and in simple calls
_PASTE = re.compile(rb"\x04?\w+(?:\s*##\s*\x04?\w+)+")
_SIMPLE_CALL = re.compile(rb"\b([A-Za-z_]\w*)\s*\(([\x04\w\s,#]*)\)")
# `X(red)`, where the parameter X is given a macro: `#define COLORS(X) X(red) X(green)`.
_PARAMETER_CALL = re.compile(rb"(\x04\d+)\s*\(([\x04\w\s,]*)\)")
_DEFINITION = re.compile(rb"#[ \t]*define[ \t]+\w+\(([^()]*)\)(?:\\\n|[^\n])*")
_CALL = re.compile(rb"\b([A-Za-z_]\w*+)\s*+\((?=([^()]*))")  # also within the arguments of another
_IS_PART = re.compile(rb"\x04?\w*")
_IS_WORD = re.compile(rb"\w*")
_PASTED_PART = re.compile(rb"\x04?\w+")
_DEEPEST_PASTE = 3
_MOST_PASTES = 64  # of one template that names macros
# What a macro pastes: words, and numbers of its parameters. For a call of a parameter: "(", that, arguments.
Template = tuple[bytes | int, ...]
Pastes = dict[bytes, frozenset[Template]]  # by the name of the macro


def numbered(body: bytes, parameters: list[bytes]) -> bytes:
    """The body with numbers for the parameters that it pastes or passes on."""
    numbers = {name.strip(): _PARAMETER + b"%d" % number for number, name in enumerate(parameters)}

    def number(match: re.Match[bytes]) -> bytes:
        return IDENTIFIER.sub(lambda word: numbers.get(word.group(), word.group()), match.group())

    body = _PASTE.sub(number, body) if b"##" in body else body
    return _SIMPLE_CALL.sub(number, body)


def chains_and_calls(body: bytes) -> list[bytes]:
    """The parts of a body that matter for what it pastes."""
    patterns = (_PASTE, _SIMPLE_CALL, _PARAMETER_CALL)
    return [match.group() for pattern in patterns for match in pattern.finditer(body)]


def find_pastes(
    bodies: dict[bytes, set[bytes]], known: Pastes | None = None
) -> tuple[Pastes, dict[bytes, frozenset[bytes]]]:
    """The templates that macros of these bodies paste, and the words that others stand for, see `_renames`.

    `known` is what others paste that they may call.
    """
    direct: Pastes = {}
    for name, texts in sorted(bodies.items()):
        if templates := frozenset(each for text in texts for each in _pasted_by(text)):
            direct[name] = templates
    pastes = (known or {}) | direct
    for _ in range(_DEEPEST_PASTE):
        pastes = pastes | {
            name: templates | direct.get(name, frozenset())
            for name, texts in sorted(bodies.items())
            if (templates := _pasted_through(texts, pastes))
        }
    for name in bodies.keys() & pastes.keys():
        pastes[name] = frozenset(each for template in pastes[name] for each in _with_macros(template, bodies))
    return pastes, _renames(pastes, bodies)


def _pasted_through(texts: Iterable[bytes], pastes: Pastes) -> frozenset[Template]:
    """The templates of a macro that calls one that pastes: `#define DECLARE(x) extern int FLAG(x)`."""
    return frozenset(
        template
        for text in texts
        for other, arguments in _SIMPLE_CALL.findall(text)
        for inner in pastes.get(other, ())
        if _has_parameters(template := _passed_on(inner, arguments.split(b",")))
    )


def _with_macros(template: Template, bodies: dict[bytes, set[bytes]]) -> Iterator[Template]:
    """A template, and what it is with words that macros stand for: `#define TYPE(a) CONCAT(a, SUFFIX)`."""
    choices = [
        sorted({part, *filter(_IS_WORD.fullmatch, (text[1:] for text in bodies.get(part, ())))})
        if isinstance(part, bytes)
        else [part]
        for part in template
    ]
    if math.prod(map(len, choices)) > _MOST_PASTES:
        return iter([template])
    return itertools.product(*choices)


def _passed_on(inner: Template, arguments: list[bytes]) -> Template:
    """The pastes of a macro by a call of another one, with these arguments; empty where one is not given."""
    parts: list[bytes | int] = []
    for part in inner:
        if isinstance(part, bytes):
            parts.append(part)
        elif part < len(arguments):
            parts += _parts(arguments[part])
        else:
            return ()
    return tuple(parts)


def _has_parameters(template: Template) -> bool:
    return any(isinstance(part, int) for part in template)


def pasted_names(templates: Iterable[Template], arguments: list[bytes]) -> set[bytes]:
    """The names that a call with these arguments makes.

    Of a macro with several definitions those count that use the last argument, if any does: of
    `FUNCTION(name)` and `FUNCTION(type, name)` the one of as many parameters.
    """
    words = [argument.strip() for argument in arguments]
    pasting = [template for template in templates if template[0] != b"("]
    usable = [template for template in pasting if _last_parameter(template) < len(words)]
    exact = [template for template in usable if _last_parameter(template) == len(words) - 1]
    made = (
        b"".join(part if isinstance(part, bytes) else words[part] for part in template)
        for template in exact or usable
    )
    return set(filter(IDENTIFIER.fullmatch, made))


def pasted_by_calls(macros: Set[bytes], text: bytes, pastes: Pastes) -> set[bytes]:
    """The names that calls of these macros make in a text."""
    text = _DEFINITION.sub(_without_parameters, text)
    return {
        name
        for macro, arguments in set(_CALL.findall(text))
        if macro in macros
        for name in _pasted_by_call(macro, [each.strip() for each in arguments.split(b",")], pastes)
    }


def _pasted_by_call(macro: bytes, words: list[bytes], pastes: Pastes) -> set[bytes]:
    """The names that one call makes, also by the macros that it is given to call."""
    names = pasted_names(pastes[macro], words)
    for _, called, *arguments in (each for each in pastes[macro] if each[0] == b"("):
        given = [called, *arguments]
        if _last_parameter(tuple(given)) < len(words):
            name, *inner = (part if isinstance(part, bytes) else words[part] for part in given)
            names |= pasted_names(pastes.get(name, ()), inner)
    return names


def _without_parameters(definition: re.Match[bytes]) -> bytes:
    """A `#define` with no words for its parameters: what others paste of these is no name."""
    parameters = set(IDENTIFIER.findall(definition.group(1)))
    return IDENTIFIER.sub(
        lambda word: _PARAMETER if word.group() in parameters else word.group(), definition.group()
    )


def _last_parameter(template: Template) -> int:
    return max((part for part in template if isinstance(part, int)), default=-1)


def _renames(pastes: Pastes, bodies: dict[bytes, set[bytes]]) -> dict[bytes, frozenset[bytes]]:
    """The words that each macro in capitals stands for: `#define TYPE table_int`, later another.

    What a header that is read under several of them declares has each of these names.
    """
    found: dict[bytes, frozenset[bytes]] = {}
    for name in sorted(filter(bytes.isupper, bodies)):
        values = [text[1:].strip() for text in bodies[name] if text[:1] == b" "]
        words = set(filter(IDENTIFIER.fullmatch, values))
        for call in filter(None, map(_SIMPLE_CALL.fullmatch, values)):
            called = (_passed_on(each, call.group(2).split(b",")) for each in pastes.get(call.group(1), ()))
            words |= pasted_names((each for inner in called for each in _with_macros(inner, bodies)), [])
        if words:
            found[name] = frozenset(words)
    return found


def _parts(chain: bytes) -> list[bytes | int]:
    """The words and the parameters of `a ## b`."""
    parts = _PASTED_PART.findall(chain)
    return [int(part[1:]) if part.startswith(_PARAMETER) else part for part in parts]


def _pasted_by(body: bytes) -> Iterator[Template]:
    """The pastes in a body, of parameters and other words, and the calls of parameters."""
    for called, arguments in _PARAMETER_CALL.findall(body):
        words = [each.strip() for each in arguments.split(b",")]
        if all(map(_IS_PART.fullmatch, words)):
            yield (b"(", int(called[1:]), *(_parts(each)[0] if each else b"" for each in words))
    for chain in _PASTE.findall(body) if b"##" in body else ():
        parts = _parts(chain)
        if _has_parameters(tuple(parts)):
            yield tuple(parts)
