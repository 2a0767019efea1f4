"""Feature test macros, macros that configure the header of a library, and what else counts unnamed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cpplm.corpus.slicing.build_headers import SYSTEM_HEADERS, include_target
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import Directive

# Feature test macros (POSIX.1-2017, 2.2.1; feature_test_macros(7)): they change what system headers declare.
_FEATURE_MACROS = (
    b"_GNU_SOURCE", b"_DEFAULT_SOURCE", b"_BSD_SOURCE", b"_POSIX", b"_XOPEN", b"__STDC_",
    b"_FILE_OFFSET_BITS",
)  # fmt: skip
_MOST_MACROS = 6  # for a library in one place; more are a configuration


def unnamed_items(items: Sequence[Item]) -> set[int]:
    """The positions of the items that code needs though it does not name them.

    Such are includes, `using namespace` or a macro alone (`USING_LIBRARY_NAMESPACE`), feature test macros and
    the macros for the header of a library.
    """
    return _library_macros(items) | {number for number, item in enumerate(items) if _counts_unnamed(item)}


def _counts_unnamed(item: Item) -> bool:
    return (
        item.kind == ItemKind.INCLUDE
        or (item.kind == ItemKind.USING and b"namespace" in item.mentions)
        or (item.kind == ItemKind.CALL and item.text.split()[-1:] == [*item.mentions])  # a macro for that
        or (item.kind == ItemKind.MACRO and any(d.macro.startswith(_FEATURE_MACROS) for d in item.directives))
    )


def _library_macros(items: Sequence[Item]) -> set[int]:
    """The macros that stand right before a library's header and that nothing else in the file names.

    They are for that header: `#define PCRE2_CODE_UNIT_WIDTH 8`, `#define CATCH_CONFIG_MAIN`.
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
