"""Bodies of functions that a unit calls and other source files define: nearest first, while there is room.

A name leads to a definition where the document declares it: a free function by a prototype in the same
namespace, a member by its class. What a body needs comes with it, out of its file (static functions, types,
macros, includes) and, as declarations, out of that file's headers. A body stays out when anything of that
would mean something else in the document (`Draft.admits`).

Where nobody knows which file includes which (records without paths), a name means what the only file says
that defines it. Where libclang was asked, of several definitions only those count that it found to be meant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from cpplm.corpus.include_index import shared_folders
from cpplm.corpus.slicing.closure import Index, Key, Visible, Walk
from cpplm.corpus.slicing.draft import WEAK, Draft, asked_by, is_local, scope_of
from cpplm.corpus.slicing.packing import Measure
from cpplm.corpus.slicing.shortening import Detail
from cpplm.cpp.file_suffixes import is_source
from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.parser import language_of

# What may call a function.
_CALLERS = frozenset(
    {ItemKind.FUNCTION, ItemKind.TYPE, ItemKind.VARIABLE, ItemKind.OTHER, ItemKind.CALL, ItemKind.REGION}
)
# The sum over items is a little less than what their document takes.
_SURELY_FITS = 0.95
_Place = tuple[int, int, int]  # file, line and offset: what an item keeps when it is shortened


@dataclass
class Room:
    """What a document has room for: `budget` in all, of which `limit` bytes may be added."""

    budget: int
    measure: Measure
    limit: int


class Callees:
    """Looks for the bodies that the units of one project call; files are read when first looked at."""

    def __init__(self, index: Index, depth: int, *, by_name: bool = False) -> None:
        """Nothing is read yet.

        Args:
            index: of the project.
            depth: of calls to follow, from 1 on.
            by_name: no include is known, the files see one another by name.
        """
        self.index = index
        self._depth = depth
        self._by_name = by_name
        self._keys: dict[int, dict[_Place, Key]] = {}
        self._sights: dict[int, Visible] = {}
        self._configured: dict[int, set[bytes]] = {}

    def find(self, own: Sequence[Item], borrowed: Sequence[Item], room: Room) -> list[Item]:
        """What is to be added to a document.

        Args:
            own: the items of the unit.
            borrowed: what these need without it.
            room: of the document.
        """
        draft = Draft(frozenset(item.file for item in own))
        for item in [*own, *borrowed]:
            draft.add(item, self._key(item), room.measure.item(item.text))
        added: list[Item] = []
        left = replace(room)
        if self._by_name:
            added += self._take(own, None, draft, left)
        callers = [item for item in own if item.kind in _CALLERS]
        tried: set[Key] = set()
        for _ in range(self._depth):
            following: list[Item] = []
            for key in (key for caller in callers for key in self._called(caller, draft)):
                if key not in tried:
                    tried.add(key)
                    following += self._take([self.index.item(key)], key, draft, left)
            added += following
            callers = [item for item in following if item.kind in _CALLERS]
        return added

    # -- which bodies --------------------------------------------------------------------------------------

    @cached_property
    def _functions(self) -> dict[bytes, list[Key]]:
        """The definitions in source files that other files can call, by name."""
        found: dict[bytes, list[Key]] = defaultdict(list)
        for number, name in enumerate(self.index.names):
            has_bodies = self._by_name or is_source(name)
            if (
                not has_bodies
                or not self.index.files[name].makes_documents
                or not self.index.read(name).sound
            ):
                continue  # what is not worth a document is not worth its place in another
            for position, item in enumerate(self.index.read(name).items):
                if (
                    item.kind == ItemKind.FUNCTION
                    and item.function_name
                    and item.functions
                    and not is_local(item)
                ):
                    found[item.function_name].append((number, position))
        return found

    def _called(self, caller: Item, draft: Draft) -> Iterator[Key]:
        """The definitions that an item calls; of those in several files, those in the likeliest one."""
        resolver = self.index.resolver
        among = draft.own | {key[0] for key in draft.items}
        meant = resolver.resolved(caller, among) if resolver is not None else {}
        for name in sorted((caller.mentions | caller.accesses) & self._functions.keys()):
            by_owner: dict[bytes, dict[int, list[Key]]] = defaultdict(lambda: defaultdict(list))
            for key in self._functions[name]:
                item = self.index.item(key)
                if resolver is not None and name in meant and not resolver.admits(item, name, meant[name]):
                    continue
                owner = item.qualifier
                if self._is_open(key[0], draft) and (owner, name) not in draft.bodies:
                    by_owner[owner][key[0]].append(key)
            for files in by_owner.values():
                if self._by_name and len(files) > 1:
                    continue
                likely = [
                    (self._likelihood(number, declaring), keys)
                    for number, keys in files.items()
                    if (declaring := self._declaring(caller, self.index.item(keys[0]), draft)) is not None
                ]
                if likely:
                    yield from max(likely)[1]

    def _is_open(self, number: int, draft: Draft) -> bool:
        """Whether a file is another one, in the language of the document."""
        return number not in draft.own and self._is_c(number) == all(map(self._is_c, draft.own))

    def _is_c(self, number: int) -> bool:
        return language_of(self.index.names[number], self.index.is_c) == "c"

    def _declaring(self, caller: Item, body: Item, draft: Draft) -> int | None:
        """The file of what declares a definition to its caller; None when nothing does."""
        name, owner = body.function_name, body.qualifier
        scope = scope_of(body.stack)
        for type_ in draft.types.get(owner, ()) if owner else ():
            around = scope_of(type_.stack)
            same = scope is None or around is None or around[: len(scope)] == scope
            if same and name in type_.mentions and _calls(caller, body, draft):
                return type_.file
        if name not in caller.mentions:
            return None
        if owner and scope is not None:
            scope = (*scope, owner)
        for prototype in draft.prototypes.get(name, ()):
            around = scope_of(prototype.stack)
            if scope is None or around is None or around == scope:
                return prototype.file
        return body.file if self._by_name and not owner else None

    def _likelihood(self, number: int, declaring: int) -> tuple[bool, int, int]:
        """How likely a file is to define what another declares: it includes it, and lies near it."""
        one, two = self.index.names[number], self.index.names[declaring]
        return declaring in self._sight(number), shared_folders(one, two), -number

    # -- what they need ------------------------------------------------------------------------------------

    def _sight(self, number: int) -> Visible:
        """The files that a file sees, itself among them."""
        if number not in self._sights:
            names = self.index.names if self._by_name else [self.index.names[number]]
            self._sights[number] = self.index.visible_from(names, ())
        return self._sights[number]

    def _key(self, item: Item) -> Key | None:
        """The numbers of an item that stands in a file."""
        if item.file not in self._keys:
            items = self.index.read(self.index.names[item.file]).items
            self._keys[item.file] = {_place(each): (item.file, n) for n, each in enumerate(items)}
        return self._keys[item.file].get(_place(item))

    def _take(self, items: Sequence[Item], body: Key | None, draft: Draft, room: Room) -> list[Item]:
        """Add a body, or nothing, with what some items of one file need; empty when that does not go."""
        home = items[0].file if items else -1
        found = self._needs(items, body, home, draft, room.limit)
        sizes = [room.measure.item(item.text) for item in found.values()]
        length = sum(len(item.text) for item in found.values())
        asked = draft.asked.union(*map(asked_by, found.values()))
        if not self._by_name and self._configures(home) & asked:
            return []
        if length > room.limit or draft.size + sum(sizes) > _SURELY_FITS * room.budget:
            return []
        for item in found.values():
            sight: Container[int] = (item.file,) if self._by_name else self._sight(home)
            if not draft.admits(item, sight):
                return []
        for (key, item), size in zip(found.items(), sizes, strict=True):
            draft.add(item, key, size)
        room.limit -= length
        return list(found.values())

    def _configures(self, number: int) -> set[bytes]:
        """The macros by which a file tells the headers that it includes after them what to be."""
        if number not in self._configured:
            items = self.index.read(self.index.names[number]).items
            first = (
                item for item in items if item.kind == ItemKind.MACRO and self.index.before_include(item)
            )
            self._configured[number] = {d.macro for item in first for d in item.directives}
        return self._configured[number]

    def _needs(
        self, items: Sequence[Item], body: Key | None, home: int, draft: Draft, limit: int
    ) -> dict[Key, Item]:
        """The body and what it needs, or what the items need, that the document does not have."""
        sight = self._sight(home)
        walk = _Needs(self.index, sight, Detail.DECLARATIONS, frozenset(), limit, chosen=dict(draft.items))
        walk.home, walk.by_name = home, self._by_name
        if body is not None:
            walk.chosen[body] = items[0]
        walk.follow(items)
        for user in [
            item for item in walk.chosen.values() if item.file == home and item.kind == ItemKind.FUNCTION
        ]:
            walk.complete(user, draft.types_of(user))
        if not self._by_name:
            fresh = [item for key, item in walk.chosen.items() if draft.items.get(key) is not item]
            extra = self.index.everywhere(sight, draft.items.values(), fresh)
            extra = {key: item for key, item in extra.items() if key not in draft.items}
            extra = {key: item for key, item in extra.items() if not draft.includes(item)}
            walk.chosen |= extra
            walk.follow(extra.values())
        return {
            key: walk.chosen[key]
            for key in sorted(walk.chosen)
            if draft.items.get(key) is not walk.chosen[key]
        }


@dataclass
class _Needs(Walk):
    """Follows names out of one file, its home: functions that others can call come as declarations."""

    home: int = -1
    by_name: bool = False

    def taken(self, key: Key) -> Item | None:
        """See `Walk`."""
        item = self.index.item(key)
        if key[0] != self.home:
            return super().taken(key)
        if item.kind != ItemKind.FUNCTION or is_local(item):
            return item
        declared = (self.index.item(other) for other in self.candidates(item.function_name))
        return None if any(each.kind == ItemKind.PROTOTYPE for each in declared) else super().taken(key)

    def complete(self, user: Item, names: Set[bytes]) -> None:
        """Take the definitions of types of these names that a function reaches into."""
        wanted = {
            name
            for name in names & self.index.declared.keys()
            for key in self.candidates(name)
            if self.index.item(key).kind == ItemKind.TYPE
            and not user.accesses.isdisjoint(self.index.item(key).mentions)
        }
        self.follow([replace(user, mentions=frozenset(wanted))])

    def near(self, file: int, found: list[Key]) -> list[Key]:
        """See `Walk`; by name only, those of the same file, or of the only one that defines it."""
        if not self.by_name:
            return super().near(file, found)
        same = [key for key in found if key[0] == file]
        strong = [key for key in found if self._is_seen(self.index.item(key))]
        return same or (strong if len({key[0] for key in strong}) == 1 else [])

    @staticmethod
    def _is_seen(item: Item) -> bool:
        """Whether an item defines something that other files may mean."""
        return item.kind not in WEAK and not (item.kind == ItemKind.FUNCTION and is_local(item))


def _place(item: Item) -> _Place:
    return item.file, item.line, item.origin


def _calls(caller: Item, member: Item, draft: Draft) -> bool:
    """Whether an item that names a member may mean that of this class."""
    name, owner = member.function_name, member.qualifier
    if name == owner:
        made = rb"\bnew\s+%b\b|\b%b\s*[({]|<\s*%b\s*>\s*\(|\b%b\s+\w+\s*[;({]" % (owner, owner, owner, owner)
        return re.search(made, caller.text) is not None
    if name in caller.accesses or owner in caller.mentions or owner == caller.qualifier:
        return True
    return any(owner in type_.mentions for type_ in draft.types.get(caller.qualifier, ()))
