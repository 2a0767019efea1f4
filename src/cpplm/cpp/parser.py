"""The tree-sitter grammars of C and C++: which one a file is read with, and what their nodes stand for.

A C file read as C++ goes wrong at parameters declared the old way, at names such as `new`, `class` and
`template`, and at types made by a macro (`DECLARE(int) f(void);`), so C has its own grammar here. Node types
differ where it matters little: C has no classes, templates, lambdas and exceptions, and its conditions are
plain parenthesised expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import Literal

import tree_sitter
import tree_sitter_c
import tree_sitter_cpp

from cpplm.core.spans import SpanKind
from cpplm.cpp.file_suffixes import SOURCE_SUFFIXES

Language = Literal["c", "c++"]

# `case` is left out: it has no end of its own.
_STATEMENTS = (
    "expression_statement return_statement if_statement for_statement for_range_loop while_statement "
    "do_statement switch_statement break_statement continue_statement goto_statement labeled_statement "
    "try_statement throw_statement co_return_statement co_yield_statement"
)
_WITH_CONDITION = "if_statement while_statement do_statement switch_statement"
# What may hold functions beside the bodies of functions.
_CONTAINERS = (
    "class_specifier struct_specifier union_specifier field_declaration_list declaration field_declaration "
    "type_definition template_declaration friend_declaration linkage_specification declaration_list "
    "namespace_definition ERROR"
)


_ONLY_CXX = re.compile(rb"(?m)^[ \t]*(?:namespace\b[\w\s:]*\{|template\s*<|class\s[\w\s:]*\{|public:)")


@dataclass(frozen=True)
class Grammar:
    """One language. Node types are numbers here, since comparing those is what a walk spends its time on.

    Attributes:
        loaded: the grammar itself, for queries of one's own.
        parser: reuse it; it is not for two threads at once.
        roles: node type to the kind of span it is, where its parent is not in `roles_below`.
        roles_below: the same by the type of the parent.
        containers: node types that may hold functions however short they are.
        functions: the types of function definitions.
        template: the type of a template declaration; -1 in C.
    """

    loaded: tree_sitter.Language
    parser: tree_sitter.Parser
    roles: Mapping[int, SpanKind]
    roles_below: Mapping[int, Mapping[int, SpanKind]]
    containers: frozenset[int]
    functions: frozenset[int]
    template: int

    def parse(self, plain: bytes) -> tree_sitter.Node:
        """The root of the tree of a piece. Never fails: what cannot be read is a node of its own."""
        return self.parser.parse(plain).root_node


@cache
def grammar(language: Language) -> Grammar:
    """The grammar of a language, loaded once per process."""
    loaded = tree_sitter.Language(tree_sitter_c.language() if language == "c" else tree_sitter_cpp.language())
    # A name may have several numbers: the grammar's aliases.
    numbers: dict[str, list[int]] = {}
    for number in range(loaded.node_kind_count):
        name = loaded.node_kind_for_id(number)
        if name is not None and loaded.node_kind_is_named(number):
            numbers.setdefault(name, []).append(number)
    numbers["ERROR"] = [65_535]  # of every grammar, and in no table

    def types(names: str) -> list[int]:
        return [number for name in names.split() for number in numbers.get(name, ())]

    def roles(kind: SpanKind, names: str) -> dict[int, SpanKind]:
        return dict.fromkeys(types(names), kind)

    common = {
        **roles(SpanKind.STATEMENT, _STATEMENTS),
        **roles(SpanKind.BLOCK, "compound_statement"),
        **roles(SpanKind.FUNCTION, "function_definition"),
        **roles(SpanKind.ARGUMENTS, "argument_list"),
        **roles(SpanKind.CONDITION, "condition_clause"),
    }
    below = {
        "function_definition": roles(SpanKind.BODY, "compound_statement"),
        _WITH_CONDITION: common | roles(SpanKind.CONDITION, "parenthesized_expression"),
        "compound_statement case_statement": common | roles(SpanKind.STATEMENT, "declaration"),
    }
    return Grammar(
        loaded=loaded,
        parser=tree_sitter.Parser(loaded),
        roles=common,
        roles_below={number: table for names, table in below.items() for number in types(names)},
        containers=frozenset(types(_CONTAINERS)),
        functions=frozenset(types("function_definition")),
        template=next(iter(types("template_declaration")), -1),
    )


def is_c_project(names: Iterable[str]) -> bool:
    """True if most sources among these files are C, so that the `.h` files are, too."""
    sources = [suffix for name in names if (suffix := _suffix(name)) in SOURCE_SUFFIXES]
    return sources.count(".c") * 2 > len(sources)


def language_of(name: str, project_is_c: bool, text: bytes = b"") -> Language:
    """The language of a file, by its name, its text and what `is_c_project` says of its project.

    A `.c` file with classes is C++, too, but not one that asks which of both it is.
    """
    suffix = _suffix(name)
    if suffix == ".c":
        is_c = b"__cplusplus" in text or not _ONLY_CXX.search(text)
    else:
        is_c = suffix == ".h" and project_is_c and not _ONLY_CXX.search(text)
    return "c" if is_c else "c++"


def _suffix(name: str) -> str:
    """The suffix in lower case, except that `.C` and `.H` are C++ by tradition."""
    suffix = PurePosixPath(name).suffix
    return ".cc" if suffix in (".C", ".H") else suffix.lower()
