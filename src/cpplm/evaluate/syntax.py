"""Whether the parser can read a text as C++: the least to ask of code, and a score that moves early.

The parser is tree-sitter with its C++ grammar (extra `[corpus]`); it knows no types. Nothing is preprocessed:
as in `cpplm.corpus`, directives and comments are blank, and so are macros whose names say that they hide the
shape of a declaration (`FOO_EXPORT`, `FOO_BEGIN_NAMESPACE`): it stumbles over half of all headers otherwise.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from cpplm.core.errors import UserError


def corpus_module(name: str) -> Any:
    """A module of `cpplm.corpus` that stands on the extra `[corpus]`.

    Raises:
        UserError: the extra is not installed.
    """
    try:
        return importlib.import_module(f"cpplm.corpus.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("cpplm"):
            raise
        raise UserError(
            f"reading the syntax of code needs the package {error.name}, which is not installed",
            fix="pip install 'cpplm[corpus]'",
        ) from error


def parser_version() -> str:
    """The grammar's version, to be kept with results.

    Raises:
        UserError: the extra is not installed.
    """
    corpus_module("grammar")
    return f"tree-sitter-cpp {version('tree-sitter-cpp')}"


def parse(text: str) -> tuple[Any, Any]:
    """A text taken apart (`corpus.lexing.Lexed`), and the root of its tree. For one thread at a time.

    Offsets in both are bytes of the text's UTF-8.

    Raises:
        UserError: the extra is not installed.
    """
    masking = corpus_module("masking")
    lexed = corpus_module("lexing").lex(text.encode("utf-8", errors="replace"))
    _, plain = masking.mask(lexed, masking.MacroTable())
    return lexed, corpus_module("grammar").grammar("c++").parse(plain)


def syntax_valid(text: str) -> bool:
    """Whether the tree of a text has neither an ERROR nor a MISSING node. For one thread at a time.

    Raises:
        UserError: the extra is not installed.
    """
    _, root = parse(text)
    return not root.has_error
