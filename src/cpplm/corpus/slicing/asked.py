"""What a unit is built with besides what its includes bring, since its documents failed to compile without.

`repair.py` finds out what that is; `Index.close` and `merging.closed` add it.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.lexer import Directive


@dataclass(frozen=True)
class Asked:
    """Additions to one unit, and includes to leave out of it.

    Attributes:
        names: to be looked up in `files`, and in what these include.
        files: of the project, where no include of the unit leads; of sources only declarations are taken.
        headers: of the system, as in `#include <cstdint>`.
        macros: to be defined, with nothing behind the name.
        without: arguments of includes, `"config.h"`.
    """

    names: frozenset[bytes] = frozenset()
    files: frozenset[str] = frozenset()
    headers: frozenset[bytes] = frozenset()
    macros: frozenset[bytes] = frozenset()
    without: frozenset[bytes] = frozenset()

    def __bool__(self) -> bool:
        """Whether anything is asked for."""
        return self != NOTHING

    def __or__(self, other: Asked) -> Asked:
        """Both together."""
        return Asked(
            self.names | other.names,
            self.files | other.files,
            self.headers | other.headers,
            self.macros | other.macros,
            self.without | other.without,
        )

    def directives(self, file: int) -> list[Item]:
        """The definitions and includes, as items of this file that stand on no line of it."""
        found = []
        for kind, keyword, arguments in (
            (ItemKind.MACRO, b"define", self.macros),
            (ItemKind.INCLUDE, b"include", self.headers),
        ):
            for argument in sorted(arguments):
                directive = Directive(0, 0, keyword, argument)
                names = frozenset({argument} if kind == ItemKind.MACRO else ())
                text = b"#" + keyword + b" " + argument
                found.append(Item(kind, text, (), names, file, -1, -1, directives=(directive,)))
        return found

    def lookup(self) -> Item:
        """An item of no file that mentions the names."""
        return Item(ItemKind.COMMENT, b"", (), self.names, -1, -1, -1)


NOTHING = Asked()
