"""What a unit needs from the rest of its project: found by name in the files that its includes reach.

A document has no include folders, so what its project's headers would have given must stand in it. `Index`
reads the files of one project when they are first asked for; `Index.close` follows names from the unit's own
items through everything visible, as often as it takes. Items come in an order that every translation unit of
the project agrees with (`Includes.rank`). Names are not resolved further: a name that means something else
costs space, not correctness.

What is borrowed from other files may be shortened (`Detail`): its comments first, then the bodies of its
functions, which also shortens what those bodies would have asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from cpplm.corpus.items import FileItems, Item, Kind, read_items
from cpplm.corpus.lexing import IDENTIFIER
from cpplm.corpus.masking import MacroTable
from cpplm.corpus.pieces import Scope
from cpplm.corpus.shortening import Detail, shorten
from cpplm.corpus.sources import SourceFile, read_source
from cpplm.corpus.units import Includes, Unit

# Macros that change what system headers declare: defined for those, though no code mentions them.
_FEATURE_MACROS = (b"_GNU_SOURCE", b"_DEFAULT_SOURCE", b"_BSD_SOURCE", b"_POSIX", b"_XOPEN", b"_FILE_OFFSET_BITS")
_FEATURE_PREFIX = b"__STDC_"
Key = tuple[int, int]  # number of the file in its project, number of the item in the file


@dataclass
class Index:
    """The files of one project, taken apart when first asked for."""

    files: dict[str, SourceFile]
    includes: Includes
    macros: MacroTable
    _parsed: dict[str, FileItems] = field(default_factory=dict)
    _declared: dict[bytes, list[Key]] = field(default_factory=lambda: defaultdict(list))
    _attached: dict[bytes, list[Key]] = field(default_factory=lambda: defaultdict(list))
    _shortened: dict[tuple[Key, Detail], Item] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = list(self.files)
        self.number = {name: number for number, name in enumerate(self.names)}

    def read(self, name: str) -> FileItems:
        """The items of a file; their `file` is its number in `names`."""
        found = self._parsed.get(name)
        if found is None:
            number = self.number[name]
            found = read_items(read_source(self.files[name]), self.macros, file=number)
            self._parsed[name] = found
            for position, item in enumerate(found.items if found.sound else ()):
                for declared in _declared(item):
                    self._declared[declared].append((number, position))
                for attached in _attached(item):
                    self._attached[attached].append((number, position))
        return found

    def close(self, unit: Unit, own: list[Item], detail: Detail) -> list[Item]:
        """What `own` needs from other files of the project, and the includes of those that lead out of it."""
        files = [file.name for file in unit.files]
        visible = self.includes.reachable(files).difference(files)
        numbers = {self.number[name] for name in visible if self.read(name).sound}
        chosen = self._named(own, numbers, detail)
        extra = dict(self._everywhere(numbers, own, chosen.values()))
        chosen |= self._named(extra.values(), numbers, detail) | extra
        return [chosen[key] for key in sorted(chosen)]

    def place(self, item: Item) -> int:
        """Where the segment of an item's file stands in the order of the project."""
        return self.includes.rank(self.names[item.file], item.line)

    def _item(self, key: Key, detail: Detail) -> Item:
        """An item as a borrowed one looks."""
        found = self._shortened.get((key, detail))
        if found is None:
            found = shorten(self._parsed[self.names[key[0]]].items[key[1]], detail)
            self._shortened[key, detail] = found
        return found

    def _named(self, own: Iterable[Item], visible: set[int], detail: Detail) -> dict[Key, Item]:
        """Visible items that are named, and those that these name."""
        chosen: dict[Key, Item] = {}
        waiting = list(own)
        seen: set[bytes] = set()
        while waiting:
            item = waiting.pop()
            fresh = item.mentions - seen
            seen |= fresh
            keys = [key for name in fresh & self._declared.keys() for key in self._declared[name]]
            if item.kind in (Kind.TYPE, Kind.FORWARD):
                keys += [key for name in item.names for key in self._attached.get(name, ())]
            for key in keys:
                if key[0] in visible and key not in chosen:
                    chosen[key] = self._item(key, detail)
                    waiting.append(chosen[key])
        return chosen

    def _everywhere(
        self, visible: set[int], own: Iterable[Item], chosen: Iterable[Item]
    ) -> Iterator[tuple[Key, Item]]:
        """What counts without being named: includes of what is outside the project, `using namespace`."""
        opened = {scope for item in [*own, *chosen] for scope in _scopes(item)}
        for number in visible:
            name = self.names[number]
            targets = {argument.encode() for argument in self.includes.edges[name]}
            for position, item in enumerate(self._parsed[name].items):
                if item.kind == Kind.INCLUDE:
                    outside = [d for d in item.directives if d.keyword == b"include" and d.argument not in targets]
                    if len(outside) == len(item.directives):
                        yield (number, position), replace(item, text=_without_comments(item), local=False)
                elif item.kind == Kind.USING and b"namespace" in item.mentions:
                    target = IDENTIFIER.findall(item.text)[-1]
                    if target in opened or target == b"std":
                        yield (number, position), item
                elif item.kind == Kind.MACRO and any(
                    directive.macro.startswith((*_FEATURE_MACROS, _FEATURE_PREFIX)) for directive in item.directives
                ):
                    yield (number, position), item


def _without_comments(item: Item) -> bytes:
    return b"\n".join(directive.line for directive in item.directives)


def _scopes(item: Item) -> list[bytes]:
    return [name for frame in item.stack if isinstance(frame, Scope) for name in IDENTIFIER.findall(frame.opener)]


def _declared(item: Item) -> set[bytes]:
    """The names by which an item is found."""
    names = set(item.names)
    names.update(d.macro for d in item.directives if d.keyword in (b"define", b"undef"))
    if item.kind == Kind.CALL:  # it declares something made of its arguments
        names |= item.mentions
    if item.qualifier and item.evaluated and item.callable:
        names.add(item.callable)
    names.discard(b"")
    return names


def _attached(item: Item) -> frozenset[bytes]:
    """The types whose users need an item without naming it: free operators, specialisations."""
    is_operator = item.kind in (Kind.FUNCTION, Kind.PROTOTYPE) and any(n.startswith(b"operator") for n in item.names)
    is_special = item.kind == Kind.TYPE and item.text.find(b"template <>") + item.text.find(b"template<>") > -2
    return item.mentions if is_operator or is_special else frozenset()
