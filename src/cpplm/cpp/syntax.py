"""Syntax of one text, apart from any project: its tree, and whether the parser can read all of it.

The parser is tree-sitter with its C++ grammar; it knows no types. Nothing is preprocessed:
directives and comments are blank, and so are macros whose names say that they hide the shape of a declaration
(`FOO_EXPORT`, `FOO_BEGIN_NAMESPACE`): it stumbles over half of all headers otherwise. Of generated code,
whether it can be read is a score that moves before code compiles.
"""

from __future__ import annotations

from importlib.metadata import version

from tree_sitter import Node

from cpplm.cpp.lexer import LexedSource, lex
from cpplm.cpp.macros import MacroTable, mask
from cpplm.cpp.parser import Language, grammar


def parser_version() -> str:
    """The grammar's version, to be kept with results."""
    return f"tree-sitter-cpp {version('tree-sitter-cpp')}"


def parse(data: bytes, language: Language = "c++") -> tuple[LexedSource, Node]:
    """Lex a text and parse it. For one thread at a time."""
    lexed = lex(data)
    _, plain = mask(lexed, MacroTable())
    return lexed, grammar(language).parse(plain)


def syntax_valid(text: str) -> bool:
    """True if the tree of a text has neither an ERROR nor a MISSING node. For one thread at a time."""
    _, root = parse(text.encode("utf-8", errors="replace"))
    return not root.has_error
