"""Definitions in other source files of the functions that a unit calls: `--mode cross-file`.

Functions are found by name: one that is defined in another source file, and declared in a header that the
unit reads, or a member of a class that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from cpplm.corpus.slicing.expansion import Expansion
from cpplm.corpus.slicing.project_index import Key
from cpplm.cpp.items import Item, ItemKind

# A name that so many source files define is no name to find a function by.
_MOST_FILES = 4


def find_callees(items: Iterable[Item], expansion: Expansion, depth: int) -> list[Key]:
    """The definitions that items of a unit call, and those that these call, up to `depth` calls away."""
    index = expansion.index
    found: list[Key] = []
    seen: set[bytes] = set()
    level = list(items)
    for _ in range(depth):
        called = set().union(*(item.mentions | item.accesses for item in level)) - seen
        seen |= called
        keys = [
            key
            for name in sorted(called & index.defining.keys())
            if (key := _definition(name, expansion)) is not None and key not in found
        ]
        found += keys
        level = [index.item(key) for key in keys]
    return found


def _definition(name: bytes, expansion: Expansion) -> Key | None:
    """The nearest definition of a function that the unit sees declared; None where too many have one."""
    index = expansion.index
    files = [file for file in index.defining[name] if file not in expansion.own]
    if not files or len(files) > _MOST_FILES or _is_declared(name, expansion, {ItemKind.FUNCTION}):
        return None
    declared = _is_declared(name, expansion, {ItemKind.PROTOTYPE})
    folders = {PurePosixPath(name).parent for name in expansion.own}
    keys = (
        (index.number[file], number)
        for file in sorted(files, key=lambda file: (PurePosixPath(file).parent not in folders, file))
        for number, item in enumerate(index.read(file).items)
        if item.kind == ItemKind.FUNCTION
        and item.function_name == name
        and (_is_declared(item.qualifier, expansion, {ItemKind.TYPE}) if item.qualifier else declared)
    )
    return next(keys, None)


def _is_declared(name: bytes, expansion: Expansion, kinds: set[ItemKind]) -> bool:
    """True if an item of such a kind that the expansion reads declares a name."""
    return any(expansion.item(place).kind in kinds for place in expansion.declaring(name))
