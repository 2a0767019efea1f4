"""Names in borrowed declarations that a declaration of a type is enough for, so that its members may go."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Set

from cpplm.corpus.slicing.members import METHOD, members_and_bodies
from cpplm.cpp.items import ItemKind
from cpplm.cpp.lexer import IDENTIFIER

_EXPRESSION = re.compile(
    rb"=(?!\s*(?:0|default|delete)\s*;?\s*\Z)|\b(?:decltype|noexcept\s*\(|sizeof|requires|enable_if\w*|using|typedef|friend)\b"
)
# A data member that is a pointer or a reference: `const T* a = nullptr`.
_POINTER = re.compile(
    rb"\s*(?:(?:const|mutable|struct|class)\s+)*[\w:]+\s*(?:const\s*)?[*&]+\s*(?:const\s+)?\w+\s*"
    rb"(?:=\s*(?:nullptr|NULL|0)\s*)?"
)
_DIRECTIVE = re.compile(rb"(?m)^[ \t]*+#(?:[^\n\\]++|\\.)*+", re.DOTALL)  # with the lines that continue it
_INITIALIZERS = re.compile(rb"\)[\w\s]*+:(?!:)")  # `Table() : size(DEFAULT) {}`
_SCOPE_OF = re.compile(rb"\b(\w+)\s*(?:<[^;{}<>]*>)?\s*::")
_VALUE_TYPE = re.compile(rb"(?<!\w)([A-Za-z_]\w*+)\s*+(?:<[^;{}()]*>\s*+)?\Z")  # `Range<T *>`
_LONGEST_TYPE = 300
# A parameter: `const ns::T &a`, `T a = {}`.
_CONVERTED = re.compile(
    rb"\s*+(?:const\s++(?:\w++::)*+(\w++)\s*+&?|(?:\w++::)*+(\w++)(?=\s+\w|\s*\Z))\s*+\w*+\s*+(?:=.*)?",
    re.DOTALL,
)
MEMBER_END = re.compile(rb"[;{}]|\b(?:public|private|protected)\s*:(?!:)")


@functools.lru_cache(maxsize=1_024)
def needs_only_declared(text: bytes, kind: ItemKind) -> Mapping[bytes, frozenset[bytes]]:
    """The names in an item that a declaration of a type is enough for, each with what is declared with it.

    In declarations of functions: the types of parameters and results; in classes the types that members point
    to. Not what a member is taken of (`A::b`), nor what default arguments and expressions mention.
    """
    weak: dict[bytes, set[bytes]] = defaultdict(set)
    strong: set[bytes] = set()
    reached_by_macros: set[bytes] = set()
    parts, bodies = _declarations(text, kind)
    if kind == ItemKind.TYPE:
        strong.update(IDENTIFIER.findall(bodies))
        reached_by_macros.update(IDENTIFIER.findall(b"".join(_DIRECTIVE.findall(text))))
    for names, reached, declared, needed in map(_part_names, parts):
        strong.update(names if declared in reached_by_macros else needed)
        for name in names:
            weak[name]  # parameters are not reached through the function
        for name in reached:
            weak[name].add(declared)
    return {name: frozenset(declared) for name, declared in weak.items() if name not in strong}


@functools.lru_cache(maxsize=1_024)
def values_returned(text: bytes, kind: ItemKind) -> Mapping[bytes, Set[bytes]]:
    """The types that functions declared in an item return values of, each with these functions."""
    found: dict[bytes, set[bytes]] = defaultdict(set)
    for part in _declarations(text, kind)[0]:
        function = METHOD.search(part)
        if function is None:
            continue
        end = function.start()
        type_ = _VALUE_TYPE.search(part, max(end - _LONGEST_TYPE, 0), end)
        if type_ is not None:
            found[type_.group(1)].add(function.group(1))
    return found


@functools.lru_cache(maxsize=1_024)
def values_taken(text: bytes, kind: ItemKind) -> Mapping[bytes, Set[bytes]]:
    """The types that functions declared in an item take values of or constant references to, each with these
    functions: an argument may be converted to them."""
    found: dict[bytes, set[bytes]] = defaultdict(set)
    for part in _declarations(text, kind)[0]:
        function = METHOD.search(part)
        if function is not None:
            for parameter in part[function.end() : part.rfind(b")")].split(b","):
                taken = _CONVERTED.fullmatch(parameter)
                if taken is not None:
                    found[taken.group(1) or taken.group(2)].add(function.group(1))
    return found


@functools.lru_cache(maxsize=1_024)
def converts_to(text: bytes, name: bytes) -> bool:
    """True if a class has a constructor that converts: of one argument, and not `explicit`."""
    constructors = re.finditer(
        rb"(\bexplicit\s+)?(?<![~\w:])" + name + rb"\s*\(([^()]*)\)\s*(?:noexcept\s*)?[{;:]", text
    )
    return any(
        explicit is None and parameters.strip() and name not in IDENTIFIER.findall(parameters)
        and all(b"=" in each for each in parameters.split(b",")[1:])
        for explicit, parameters in (each.groups() for each in constructors)
    )  # fmt: skip


def _declarations(text: bytes, kind: ItemKind) -> tuple[list[bytes], bytes]:
    """The declarations of an item, a prototype or members, and the bodies of these."""
    if kind == ItemKind.PROTOTYPE:
        return [text], b""
    if kind == ItemKind.TYPE:
        members, bodies = members_and_bodies(_DIRECTIVE.sub(b"", text))
        return MEMBER_END.split(members), bodies
    return [], b""


@functools.lru_cache(maxsize=8_192)
def _part_names(part: bytes) -> tuple[list[bytes], list[bytes], bytes, list[bytes]]:
    """Of a declaration the names that only have to be declared, those through which what it declares is
    reached, and that; the names that need more."""
    part, *initializers = _INITIALIZERS.split(part, maxsplit=1)
    used = IDENTIFIER.findall(b"".join(initializers))
    names = IDENTIFIER.findall(part)
    function = METHOD.search(part) if not _EXPRESSION.search(part) else None
    if function is not None and function.group(1).isupper():
        function = None  # a macro, which does whatever with its arguments
    if function is None and not _POINTER.fullmatch(part):
        return [], [], b"", names + used
    declared = function.group(1) if function is not None else part.partition(b"=")[0].split()[-1]
    reached = IDENTIFIER.findall(part, 0, function.start()) if function is not None else names
    return names, reached, declared.lstrip(b"*&"), _SCOPE_OF.findall(part) + used
