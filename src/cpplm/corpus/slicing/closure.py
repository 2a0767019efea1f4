"""What a unit needs from the rest of its project: found by name in the files that its includes reach.

A document has no include folders, so what its project's headers would have given must stand in it. `Index`
reads the files of one project when they are first asked for; `Index.close` follows names from the unit's own
items through everything visible, as often as it takes. Items come in an order that every translation unit of
the project agrees with (`Includes.rank`). Names are not resolved further, unless libclang was asked
(`Index.understand`): a name that means something else costs space, not correctness.

What is borrowed from other files may be shortened (`Detail`): its comments first, then the bodies of its
functions, which also shortens what those bodies would have asked for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from cpplm.corpus.clang.references import Semantics
from cpplm.corpus.ingest.discovery import SourceFile, is_fragment, read_source
from cpplm.corpus.slicing.asked import NOTHING, Asked
from cpplm.corpus.slicing.resolving import Resolver
from cpplm.corpus.slicing.shortening import Detail, Shortener, without_comments
from cpplm.corpus.slicing.units import Includes, Unit
from cpplm.corpus.slicing.writer import render
from cpplm.cpp.file_suffixes import is_source
from cpplm.cpp.items import FileItems, Item, ItemKind, condition_names, read_items
from cpplm.cpp.lexer import IDENTIFIER, names_in
from cpplm.cpp.macros import MacroTable
from cpplm.cpp.parser import is_c_project, language_of
from cpplm.cpp.segments import Condition, Scope

# Macros that change what system headers declare: defined for those, though no code mentions them.
_FEATURE_MACROS = (
    b"_GNU_SOURCE",
    b"_DEFAULT_SOURCE",
    b"_BSD_SOURCE",
    b"_POSIX",
    b"_XOPEN",
    b"_FILE_OFFSET_BITS",
    b"__STDC_",
)
Visible = dict[int, tuple[Condition, ...]]  # number of a file, and the conditions around its include
ANY_SIZE = 1 << 62
_DEEPEST_FRAGMENT = 3
Key = tuple[int, int]  # number of the file in its project, number of the item in the file


@dataclass
class Index:
    """The files of one project, taken apart when first asked for."""

    files: dict[str, SourceFile]
    includes: Includes
    macros: MacroTable
    defines_std: bool = False
    resolver: Resolver | None = None
    _reach: dict[int, int] = field(default_factory=dict)
    _parsed: dict[str, FileItems] = field(default_factory=dict)
    declared: dict[bytes, list[Key]] = field(default_factory=lambda: defaultdict(list))
    attached: dict[bytes, list[Key]] = field(default_factory=lambda: defaultdict(list))
    _last_visible: tuple[object, Visible] = field(default_factory=lambda: ((), {}))
    _general: dict[str, list[tuple[Key, Item]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = list(self.files)
        self.shortener = Shortener(self.macros)
        self.number = {name: number for number, name in enumerate(self.names)}
        self.is_c = is_c_project(self.names)

    def understand(self, semantics: Semantics | None) -> None:
        """From now on names mean what libclang says; it must know the files that the next units see."""
        if semantics is not None:
            self.resolver = Resolver(semantics, self.names, self.includes.cuts)

    def read(self, name: str) -> FileItems:
        """The items of a file; their `file` is its number in `names`."""
        found = self._parsed.get(name)
        if found is None:
            number = self.number[name]
            language = language_of(name, self.is_c)
            found = read_items(
                read_source(self.files[name]),
                self.macros,
                file=number,
                language=language,
                defines_std=self.defines_std,
            )
            self._insert_fragments(name, found.items)
            self._parsed[name] = found
            for position, item in enumerate(found.items if found.sound else ()):
                for declared in _declared(item):
                    self.declared[declared].append((number, position))
                for attached in _attached(item):
                    self.attached[attached].append((number, position))
        return found

    def _insert_fragments(self, name: str, items: list[Item], depth: int = 0) -> None:
        """Put the text of files that are included in the middle of code, or made for that, in its place."""
        for position, item in enumerate(items):
            for directive in item.directives:
                target = self.includes.edges[name].get(directive.argument.decode("utf-8", "replace"))
                if target is None or not self.files[target].may_be_borrowed or depth > _DEEPEST_FRAGMENT:
                    continue
                if item.kind == ItemKind.INCLUDE and not is_fragment(target):
                    continue
                inside = read_items(read_source(self.files[target]), self.macros)
                if inside.sound:
                    self._insert_fragments(target, inside.items, depth + 1)
                items[position] = _with_fragment(items[position], directive.argument, inside)

    def answered(self, name: str) -> set[bytes]:
        """The include arguments of a file that lead to files whose text may be borrowed."""
        edges = self.includes.edges[name]
        answered = {argument for argument, target in edges.items() if self.files[target].may_be_borrowed}
        return {argument.encode() for argument in answered | self.includes.generated[name]}

    def reach(self, file: int) -> int:
        """The numbers of the files that a file brings in, itself among them, as bits."""
        if file not in self._reach:
            names = self.includes.reachable([self.names[file]])
            self._reach[file] = sum(1 << self.number[name] for name in names)
        return self._reach[file]

    def item(self, key: Key) -> Item:
        """An item of a file that was read."""
        return self._parsed[self.names[key[0]]].items[key[1]]

    def close(
        self, unit: Unit, own: list[Item], detail: Detail, limit: int, *, asked: Asked = NOTHING
    ) -> list[Item] | None:
        """What `own` needs from other files of the project, and the includes of those that lead out of it.

        None when that is more than `limit` bytes. What was asked for is found where no include leads, too.
        """
        files = [file.name for file in unit.files]
        visible = self.visible_from(files, files)
        more = self.visible_from(asked.files, files) | visible if asked.files else visible
        sources = {self.number[name] for name in asked.files if is_source(name)}

        def walk(detail: Detail, wanted: Set[bytes], limit: int) -> Walk | None:
            step = Walk(self, visible, detail, wanted, limit, brief=sources - visible.keys())
            if not step.follow(own):
                return None
            if asked.names:
                step.see(more)
                if not step.follow([asked.lookup()]):
                    return None
            extra = self.everywhere(more, own, step.chosen.values())
            step.chosen |= extra
            return step if step.follow(extra.values()) else None

        wanted: Set[bytes] = frozenset()
        if detail == Detail.SKELETON:
            declared = walk(Detail.DECLARATIONS, wanted, ANY_SIZE)
            wanted = self.shortener.wanted(own, declared.chosen.values() if declared else ()) | asked.names
        found = walk(detail, wanted, limit)
        if found is None:
            return None
        return without_includes([found.chosen[key] for key in sorted(found.chosen)], asked.without)

    def visible_from(self, starts: Iterable[str], own: Sequence[str]) -> Visible:
        """What can be borrowed from the files that `starts` bring in, a unit's own apart."""
        key = (tuple(starts), tuple(own))
        if self._last_visible[0] == key:  # of the step before on the ladder of the same unit
            return self._last_visible[1]
        found = {
            self.number[name]: conditions
            for name, conditions in self.includes.visible(starts).items()
            if name not in own
            and not is_fragment(name)
            and self.files[name].may_be_borrowed
            and self.read(name).sound
        }
        self._last_visible = (key, found)
        return found

    def place(self, item: Item) -> int:
        """Where the segment of an item's file stands in the order of the project."""
        return self.includes.rank(self.names[item.file], item.line)

    def before_include(self, item: Item) -> bool:
        """Whether the item's file includes another of the project after it."""
        cuts = self.includes.cuts[self.names[item.file]]
        return bool(cuts) and item.line < cuts[-1]

    def everywhere(self, visible: Visible, own: Iterable[Item], chosen: Iterable[Item]) -> dict[Key, Item]:
        """What counts without being named: each include that leads out of the project, `using namespace`."""
        opened = {scope for item in [*own, *chosen] for scope in _scopes(item)} | {b"std"}
        found: dict[Key, Item] = {}
        seen = {(item.text.strip(), item.stack) for item in own if item.kind == ItemKind.INCLUDE}
        for number, conditions in visible.items():
            for key, item in self._general_items(self.names[number]):
                if item.kind == ItemKind.USING and item.names[0] not in opened:
                    continue
                placed = _under(item, conditions)
                if (item.text.strip(), placed.stack) not in seen:
                    seen.add((item.text.strip(), placed.stack))
                    found[key] = placed
        return found

    def _general_items(self, name: str) -> list[tuple[Key, Item]]:
        """Those of one file; the `names` of a `using namespace` are the namespace."""
        if name in self._general:
            return self._general[name]
        found: list[tuple[Key, Item]] = []
        targets = self.answered(name)
        for position, item in enumerate(self._parsed[name].items):
            kept: list[Item] = []
            if item.kind == ItemKind.INCLUDE:
                kept = without_includes(
                    [replace(item, text=without_comments(item.text), local=False)], targets
                )
            elif item.kind == ItemKind.USING and b"namespace" in item.mentions:
                kept = [replace(item, names=(IDENTIFIER.findall(item.text)[-1],))]
            elif item.kind == ItemKind.MACRO and any(
                d.macro.startswith(_FEATURE_MACROS) for d in item.directives
            ):
                kept = [item]
            found += [((self.number[name], position), each) for each in kept]
        self._general[name] = found
        return found


@dataclass
class Walk:
    """Follows names from item to item; `chosen` are the items found, as they will be written."""

    index: Index
    visible: Visible
    detail: Detail
    wanted: Set[bytes]
    limit: int
    brief: Set[int] = frozenset()  # files of which only declarations are taken
    chosen: dict[Key, Item] = field(default_factory=dict)
    size: int = 0
    _found: dict[bytes, list[Key]] = field(default_factory=dict)
    _seen: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    _among: set[int] = field(default_factory=set)  # the files that the unit sees, its own among them

    def follow(self, items: Iterable[Item]) -> bool:
        """Add what the items name and what that names; False as soon as it is too much."""
        attached = self.index.attached
        waiting = list(items)
        self._among.update(self.visible, (item.file for item in waiting))
        while waiting and self.size <= self.limit:
            item = waiting.pop()
            keys, names = self._meant(item)
            seen = self._seen[item.file]
            fresh = names - seen
            seen |= fresh
            keys += [
                key
                for name in fresh & self.index.declared.keys()
                for key in self.near(item.file, self.candidates(name))
            ]
            if item.kind in (ItemKind.TYPE, ItemKind.FORWARD):
                keys += [key for name in item.names if name in attached for key in attached[name]]
            for key in keys:
                if key[0] in self.visible and key not in self.chosen:
                    taken = self.taken(key)
                    if taken is not None:
                        self.chosen[key] = _under(taken, self.visible[key[0]])
                        self.size += len(taken.text)
                        waiting.append(self.chosen[key])
        return self.size <= self.limit

    def taken(self, key: Key) -> Item | None:
        """An item as it is to be written; None when it is not taken."""
        detail = max(self.detail, Detail.DECLARATIONS) if key[0] in self.brief else self.detail
        return self.index.shortener.shorten(self.index.item(key), detail, self.wanted)

    def see(self, visible: Visible) -> None:
        """Look up names in these files from now on."""
        self.visible = visible
        self._found.clear()

    def candidates(self, name: bytes) -> list[Key]:
        """What declares a name, anywhere in the files that are seen."""
        found = self._found.get(name)
        if found is None:
            found = [key for key in self.index.declared[name] if key[0] in self.visible]
            self._found[name] = found
        return found

    def near(self, file: int, found: list[Key]) -> list[Key]:
        """What a name may stand for in a file: what its own includes bring; else what its includers bring.

        A class that the file only declares is defined where its includers say.
        """
        if file not in self.visible or len(found) < 2:
            return found
        reach = self.index.reach(file)
        near = [key for key in found if reach >> key[0] & 1]
        is_open = all(self.index.item(key).kind == ItemKind.FORWARD for key in near)
        return found if is_open else near

    def _meant(self, item: Item) -> tuple[list[Key], frozenset[bytes]]:
        """What those names of an item mean that libclang understood, and the rest of its names."""
        resolver = self.index.resolver
        if resolver is None:
            return [], item.mentions
        resolved = resolver.resolved(item, self._among)
        keys: list[Key] = []
        for name in item.mentions & resolved.keys() & self.index.declared.keys():
            found = [
                key
                for key in self.candidates(name)
                if resolver.admits(self.index.item(key), name, resolved[name])
            ]
            keys += self.near(item.file, found)
        return keys, item.mentions - resolved.keys()


def _with_fragment(item: Item, argument: bytes, inside: FileItems) -> Item:
    line = rb"(?m)^[ \t]*#[ \t]*include[ \t]*" + re.escape(argument) + rb"[^\n]*(?:\n|\Z)"
    text = render(inside.items)[0] if inside.sound else inside.lexed.data
    return replace(
        item,
        kind=ItemKind.REGION if item.kind == ItemKind.INCLUDE else item.kind,
        text=re.sub(line, lambda _: text.strip(b"\n") + b"\n", item.text),
        mentions=item.mentions.union(*(part.mentions for part in inside.items)),
        names=item.names + tuple(name for part in inside.items for name in part.names),
        functions=item.functions + inside.functions,
        directives=tuple(d for d in item.directives if d.argument != argument)
        + tuple(d for part in inside.items for d in part.directives),
        spans=b"",
        pairs=b"",
    )


def _under(item: Item, conditions: tuple[Condition, ...]) -> Item:
    """An item of a file that is only brought in under conditions."""
    if not conditions:
        return item
    stack = conditions + item.stack
    return replace(item, stack=stack, mentions=item.mentions | condition_names(stack))


def without_includes(items: Iterable[Item], arguments: Set[bytes]) -> list[Item]:
    """The items without the includes that have one of these arguments."""
    rest: list[Item] = []
    for item in items:
        if item.kind != ItemKind.INCLUDE or not any(
            directive.argument in arguments for directive in item.directives
        ):
            rest.append(item)
        elif len(item.directives) > 1:
            text = item.text
            for argument in arguments:
                line = rb"(?m)^[ \t]*#[ \t]*include[ \t]*" + re.escape(argument) + rb"[^\n]*\n"
                text = re.sub(line, b"", text)
            rest.append(replace(item, text=text))
    return rest


def _scopes(item: Item) -> list[bytes]:
    return [name for frame in item.stack if isinstance(frame, Scope) for name in names_in(frame.opener)]


def _declared(item: Item) -> set[bytes]:
    """The names by which an item is found."""
    names = set(item.names)
    names.update(d.macro for d in item.directives if d.keyword in (b"define", b"undef"))
    if item.kind == ItemKind.CALL:  # it declares something made of its arguments
        names |= item.mentions
    if item.qualifier and item.body_required and item.function_name:
        names.add(item.function_name)
    names.discard(b"")
    return names


def _attached(item: Item) -> frozenset[bytes]:
    """The types whose users need an item without naming it: free operators, specialisations."""
    is_operator = item.kind in (ItemKind.FUNCTION, ItemKind.PROTOTYPE) and any(
        n.startswith(b"operator") for n in item.names
    )
    is_special = (
        item.kind == ItemKind.TYPE and item.text.find(b"template <>") + item.text.find(b"template<>") > -2
    )
    return item.mentions if is_operator or is_special else frozenset()
