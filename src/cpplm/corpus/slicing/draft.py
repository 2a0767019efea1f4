"""A document that is still being added to: what it declares, and whether another item would change a meaning.

Two files that never see each other may use one name for two things. Within one document they must not: a
static function, a type or a macro of one of them would be a second one of its name in the other, or would be
expanded in its text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from cpplm.corpus.slicing.closure import Key
from cpplm.corpus.slicing.shortening import without_comments
from cpplm.corpus.slicing.units import SYSTEM_HEADERS
from cpplm.cpp.items import Item, ItemKind, condition_names
from cpplm.cpp.lexer import IDENTIFIER
from cpplm.cpp.segments import Frame, Scope

_NAMESPACE = re.compile(rb"\bnamespace\b\s*([\w:]*)")
_ANONYMOUS = re.compile(rb"namespace\s*\{")
_STATIC = re.compile(rb"\bstatic\b")
_CONDITIONS = (b"if", b"ifdef", b"ifndef", b"elif", b"elifdef", b"elifndef")
_CPP_HEADER = re.compile(rb"<\w+>")
# What declares nothing of its own, or may be said twice.
WEAK = frozenset(
    {
        ItemKind.COMMENT,
        ItemKind.INCLUDE,
        ItemKind.PRAGMA,
        ItemKind.USING,
        ItemKind.FORWARD,
        ItemKind.PROTOTYPE,
        ItemKind.OTHER,
    }
)


@dataclass
class Draft:
    """The items of a document, and what matters of them for adding more.

    Attributes:
        own: numbers of the files that the document is for.
        items: those that stand in a file, by their numbers.
        size: of all, in the unit of the budget.
        types: definitions of types, by name.
        prototypes: of free functions, by name.
        bodies: class (or empty) and name of the functions that are defined.
        asked: the macros on which anything depends.
    """

    own: frozenset[int]
    items: dict[Key, Item] = field(default_factory=dict)
    size: int = 0
    types: dict[bytes, list[Item]] = field(default_factory=lambda: defaultdict(list))
    prototypes: dict[bytes, list[Item]] = field(default_factory=lambda: defaultdict(list))
    bodies: set[tuple[bytes, bytes]] = field(default_factory=set)
    asked: set[bytes] = field(default_factory=set)
    _aliases: dict[bytes, list[Item]] = field(default_factory=lambda: defaultdict(list))
    _includes: set[bytes] = field(default_factory=set)
    _declared: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    _macros: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    _mentions: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))

    def add(self, item: Item, key: Key | None, size: int) -> None:
        """One more item; without a key it stands in no file."""
        if key is not None:
            self.items[key] = item
        self.size += size
        self._macros[item.file] |= _macros(item)
        self._mentions[item.file] |= item.mentions
        self.asked |= asked_by(item)
        if item.kind not in WEAK:
            self._declared[item.file].update(item.names)
        by_name = {
            ItemKind.TYPE: self.types,
            ItemKind.PROTOTYPE: self.prototypes,
            ItemKind.ALIAS: self._aliases,
        }
        if item.kind in by_name:
            for name in item.names:
                by_name[item.kind][name].append(item)
        elif item.kind == ItemKind.FUNCTION:
            self.bodies.add((item.qualifier, item.function_name))
        elif item.kind == ItemKind.INCLUDE and not item.stack and len(item.directives) == 1:
            self._includes.add(item.directives[0].argument)

    def types_of(self, body: Item) -> set[bytes]:
        """The names in the types that a body names or is a member of: it may reach into these."""
        near = [item for name in body.mentions | {body.qualifier} for item in self._named(name)]
        names = set().union(*(item.mentions for item in near))
        return names.union(*(item.mentions for name in names for item in self._aliases.get(name, ())))

    def _named(self, name: bytes) -> list[Item]:
        return [*self.types.get(name, ()), *self._aliases.get(name, ())]

    def includes(self, item: Item) -> bool:
        """Whether an item is an include of nothing new."""
        return item.kind == ItemKind.INCLUDE and self._includes.issuperset(
            d.argument for d in item.directives
        )

    def admits(self, item: Item, sight: Container[int]) -> bool:
        """Whether an item means here what it means in its file, and takes no other's meaning.

        Args:
            item: to be added.
            sight: the files that its file sees: with those it gets on. A macro has to be the only one of its
                name even so, since what stands behind it here is not what stands behind it there.
        """
        if _is_of_a_library(item):
            return False
        macros = _macros(item)
        names = set() if item.kind in WEAK else set(item.names)
        for file, mentions in self._mentions.items():
            others = self._macros[file]
            if file != item.file and macros & others:
                return False
            if file not in sight and (
                names & self._declared[file] or macros & mentions or item.mentions & others
            ):
                return False
        return True


def _is_of_a_library(item: Item) -> bool:
    """Whether an item brings a header of neither the language nor the system, under no condition."""
    if item.kind != ItemKind.INCLUDE or item.stack or len(item.directives) != 1:
        return False
    argument = item.directives[0].argument
    is_system = argument[1:-1].decode("utf-8", "replace") in SYSTEM_HEADERS
    return not is_system and not _CPP_HEADER.fullmatch(argument)


def asked_by(item: Item) -> set[bytes]:
    """The macros in the conditions in and around an item."""
    inside = (d.argument for d in item.directives if d.keyword in _CONDITIONS)
    return condition_names(item.stack).union(*(IDENTIFIER.findall(argument) for argument in inside))


def _macros(item: Item) -> set[bytes]:
    return {d.macro for d in item.directives if d.keyword in (b"define", b"undef")}


def scope_of(stack: Iterable[Frame]) -> tuple[bytes, ...] | None:
    """The namespaces around an item; None where a macro opens one, since its name is not known."""
    names: list[bytes] = []
    for frame in stack:
        if isinstance(frame, Scope):
            found = _NAMESPACE.search(frame.opener)
            if found:
                names += found.group(1).split(b"::")
            elif b'"' not in frame.opener:  # extern "C"
                return None
    return tuple(names)


def is_local(item: Item) -> bool:
    """Whether a function can be named in its own file only."""
    if any(isinstance(frame, Scope) and _ANONYMOUS.match(frame.opener) for frame in item.stack):
        return True
    if b"static" not in item.mentions or item.qualifier:
        return False
    return _STATIC.search(without_comments(item.text).partition(b"(")[0]) is not None
