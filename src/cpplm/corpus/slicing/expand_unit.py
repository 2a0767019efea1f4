"""Expands a unit: from its last file, with the options of a build, or through the files that include it."""

from __future__ import annotations

from collections.abc import Sequence

from cpplm.corpus.slicing.build_options import hiding_options
from cpplm.corpus.slicing.expansion import Expander, Expansion
from cpplm.corpus.slicing.lookup import lacking_names
from cpplm.corpus.slicing.project_index import Key, ProjectIndex
from cpplm.cpp.file_suffixes import is_source

# Of a header that does not stand alone, so many of the files that include it are tried.
_MOST_INCLUDERS = 4


def closed_world_expansion(expansion: Expansion) -> Expansion:
    """The same files read again, borrowed ones as if nothing were defined but what may be by them."""
    expander = Expander(expansion.index, expansion.own, defined=expansion.defined, closed_world=True)
    return expander.expand(expansion.roots)


def expand_unit(own: Sequence[str], index: ProjectIndex, callees: Sequence[Key] = ()) -> Expansion:
    """The expansion of the last of a unit's files, before it those that it does not bring in.

    The source files of `callees` are read first.
    """
    *others, root = own
    if callees:
        files = dict.fromkeys(index.names[file] for file, _ in callees)
        return Expander(index, own).expand([*files, *own])
    first = index.includes.first if not is_source(root) else None
    before = index.includes.forced or ([first] if first is not None else [])
    before = [name for name in before if name not in own]
    expansion = Expander(index, own).expand([*before, root])
    if before and len(expansion.by_file.get(index.number[root], ())) > 1:  # a piece of that, without a guard
        expansion = Expander(index, own).expand(before)
    missing = [name for name in others if index.number[name] not in expansion.by_file]
    if missing:
        expansion = Expander(index, own).expand([*before, *missing])
    if index.number[root] not in expansion.by_file:
        # A source needs none of what it does not include, but for a piece of another one.
        stands_alone = index.includes.closed and root not in index.includes.includers
        names = [*before, root, *missing] if stands_alone else [*before, *missing, root]
        expansion = Expander(index, own).expand(names)
    options = hiding_options(expansion)
    if options:
        expansion = Expander(index, own, defined=options).expand(expansion.roots)
    return _through_includers(expansion, own, index)


def _through_includers(expansion: Expansion, own: Sequence[str], index: ProjectIndex) -> Expansion:
    """The same, read from a file that includes the unit, or includes such a file, if that declares more."""
    root = own[-1]
    # Of a source file those that include it as a piece of theirs; one in C++ reads C as another language.
    reached = [root] if is_source(root) else [root, own[0]]
    includers = dict.fromkeys(name for each in reached for name in index.includes.includers.get(each, ()))
    waiting = [
        name
        for name in includers
        if name not in own and (name.endswith(".c") or not (is_source(name) and root.endswith(".c")))
    ]
    lacking = lacking_names(expansion) if waiting or not is_source(root) else set()
    tried: list[str] = []
    while lacking and waiting and len(tried) < _MOST_INCLUDERS:
        tried.append(waiting.pop(0))
        other = Expander(index, own).expand(tried[-1:])
        if all(index.number[name] in other.by_file for name in own):
            still = lacking & lacking_names(other)
            if still < lacking:
                expansion, lacking = other, still
                further = index.includes.includers.get(tried[-1], ())
                waiting = [*(name for name in further if name not in tried), *waiting]
    return expansion
