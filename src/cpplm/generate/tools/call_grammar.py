"""Grammar of calls of a client's functions, as `tool_call_format` reads them: what an answer must be where a
client demands a call.

    name("text", 12, true)

Arguments stand by place, in the order of the function's schema. Texts are written as JSON has them, in such
escapes as C++ reads alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cpplm.core.errors import UserError
from cpplm.generate.grammar import GrammarSpec, check_schema

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TYPES = ("string", "integer", "boolean")
_ESCAPES = {"json_allowed_escapes": 'nrtf"\\u'}
_MOST = 10**18 - 1  # the largest whole number in a call


def call_grammar(functions: Mapping[str, Mapping[str, Any]]) -> GrammarSpec:
    """A grammar that matches one call of one of the functions.

    Args:
        functions: their JSON schemas of parameters, by name.

    Raises:
        UserError: no call of one can be written: its name, or what an argument has to be.
    """
    rules = [f"start: {' | '.join(f'call{number}' for number in range(len(functions)))}"]
    for number, (name, parameters) in enumerate(functions.items()):
        if not _NAME.fullmatch(name):
            raise UserError(f"the function {name!r} cannot be called: its name is none of C++")
        required = _required(name, parameters)
        schemas = _arguments(name, parameters, required)
        count = max((place for place, each in enumerate(schemas, 1) if each in required), default=0)
        names = [f"argument{number}x{place}" for place in range(len(schemas))]
        # From the right: what may be left out stands in brackets, with all that follows it.
        rest = ""
        for place in range(len(names) - 1, -1, -1):
            comma = '", " ' if place else ""
            rest = f"{comma}{names[place]} {rest}" if place < count else f"({comma}{names[place]} {rest})?"
        rules.append(f'call{number}: "{name}(" {rest} ")"')
        rules += [
            f"{rule}: %json {json.dumps(each)}" for rule, each in zip(names, schemas.values(), strict=True)
        ]
    return GrammarSpec("grammar", "\n".join(rules))


def _required(function: str, parameters: Mapping[str, Any]) -> set[str]:
    """Names of the arguments that a call must have."""
    names, properties = parameters.get("required") or [], parameters.get("properties") or {}
    known = isinstance(properties, dict) and isinstance(names, list)
    if not known or not all(isinstance(name, str) and name in properties for name in names):
        raise UserError(f"the function {function!r} has parameters that are no JSON schema of an object")
    return set(names)


def _arguments(function: str, parameters: Mapping[str, Any], required: set[str]) -> dict[str, dict[str, Any]]:
    """Schemas of the arguments by name, up to the first that no call can hold and none needs."""
    shared = {name: parameters[name] for name in ("$defs", "definitions") if name in parameters}
    found: dict[str, dict[str, Any]] = {}
    properties = parameters.get("properties") or {}
    for name, schema in properties.items():
        if not isinstance(schema, dict) or not _is_simple(schema):
            if not required.isdisjoint(list(properties)[len(found) :]):
                raise UserError(f"the function {function!r}: {name!r} is no text, whole number or boolean")
            break
        try:
            check_schema(schema)
        except ValueError as error:
            raise UserError(f"the function {function!r}: {name!r} has a schema with an {error}") from error
        limits = {"minimum": -_MOST, "maximum": _MOST} if schema.get("type") == "integer" else {}
        found[name] = {**limits, **schema, **shared, "x-guidance": _ESCAPES}
    return found


def _is_simple(schema: Mapping[str, Any]) -> bool:
    """True if all values are such as a call can hold."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return schema.get("type") in _TYPES
    return all(isinstance(v, str | bool) or (isinstance(v, int) and abs(v) <= _MOST) for v in values)
