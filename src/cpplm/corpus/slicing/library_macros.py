"""Macros that no code names, since headers of the system or of libraries ask for them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cpplm.corpus.slicing.build_headers import SYSTEM_HEADERS, include_target
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import Directive

# Macros that change what system headers declare: defined for those, though no code mentions them.
_FEATURE_MACROS = (
    b"_GNU_SOURCE", b"_DEFAULT_SOURCE", b"_BSD_SOURCE", b"_POSIX", b"_XOPEN", b"__STDC_",
    b"_FILE_OFFSET_BITS",
)  # fmt: skip
_MOST_MACROS = 6  # for a library in one place; more are a configuration


def counts_unnamed(item: Item) -> bool:
    """True for includes, `using namespace` and macros that change what system headers declare."""
    return (
        item.kind == ItemKind.INCLUDE
        or (item.kind == ItemKind.USING and b"namespace" in item.mentions)
        or (item.kind == ItemKind.MACRO and any(d.macro.startswith(_FEATURE_MACROS) for d in item.directives))
    )


def library_macros(items: Sequence[Item]) -> set[int]:
    """The macros that stand right before a library's header and that nothing else in the file names.

    They are for that header: `#define PCRE2_CODE_UNIT_WIDTH 8`, `#define CATCH_CONFIG_MAIN`.

    Returns:
        Their positions in `items`.
    """
    found: set[int] = set()
    before: list[int] = []
    for position, item in enumerate(items):
        if item.kind == ItemKind.MACRO and [each.keyword for each in item.directives] == [b"define"]:
            before.append(position)
            continue
        if (
            0 < len(before) <= _MOST_MACROS
            and item.kind == ItemKind.INCLUDE
            and any(map(_is_library, item.directives))
        ):
            found.update(before)
        before = []
    if not found:
        return found
    named = frozenset[bytes]().union(*(each.mentions for each in items if each.kind != ItemKind.MACRO))
    return {each for each in found if items[each].directives[0].macro not in named}


def _is_library(directive: Directive) -> bool:
    """True for an include in angle brackets of a header that is not the system's."""
    argument = directive.argument.decode("utf-8", "replace")
    target = include_target(argument) if argument.startswith("<") else ""
    return bool(re.search("[./]", target)) and target not in SYSTEM_HEADERS
