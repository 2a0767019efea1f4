"""The options of a build that text needs: without them nothing declares its names, or the members it uses."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Set

from cpplm.corpus.slicing.branches import is_one_group
from cpplm.corpus.slicing.build_headers import SYSTEM_NAMES
from cpplm.corpus.slicing.expansion import Expansion, Visit
from cpplm.cpp.conditions import is_elsewhere
from cpplm.cpp.items import Item, ItemKind, condition_names, conditions_in
from cpplm.cpp.lexer import ELSE_KEYWORDS, IDENTIFIER, IF_KEYWORDS, conditional_groups, lex, names_in

# Conditions of options alone: `#if defined A && !defined(B)`.
_OPTION = rb"(?:!\s*+)?(?:defined\s*+)?\(?\s*+\w++\s*+\)?"
_OPTIONS = re.compile(
    rb"#(?:el)?if(?:def)?\s++" + _OPTION + rb"(?:\s*+(?:&&|\|\|)\s*+" + _OPTION + rb")*+\s*"
)
_UNLESS = re.compile(rb"#\s*+ifndef\s++\w++\s*+")
_NEGATED = re.compile(rb"!\s*(?:defined\s*)?\(?\s*\w+")
_KEYWORDS_OF_CONDITIONS = frozenset(b"if ifdef ifndef elif else defined".split())
# What a line of a class declares: `int a, b[2];`, `int (*call)(void);`.
_MEMBER = re.compile(rb"\b(\w++)\s*+(?:\[[^]]*+\]\s*+)*+(?::\s*+\d++\s*+)?[;,]|\(\s*\*\s*(\w+)\s*\)")


def hiding_options(expansion: Expansion) -> set[bytes]:
    """The options without which nothing declares a name or a member of own text, or a type of any text.

    Such are macros that the undecided conditions around every declaration of the name ask for: `#ifdef A`,
    `#if defined A && !defined B`, `#if A || B`; of several declarations those of the first, or for Linux.
    """
    index = expansion.index
    found: set[bytes] = set()
    borrowed = (visit.file.needed_types for visit in expansion.visits if not visit.own)
    types = index.conditional_types.intersection(itertools.chain(*borrowed))
    names = _used_names(expansion) | dict.fromkeys(types, frozenset[bytes]())
    for name, around in names.items():
        if name in SYSTEM_NAMES:
            continue
        keys = index.declared.find(name, expansion.by_file)
        keys = [key for key in keys if index.item(key).kind != ItemKind.CALL] or keys  # those are guesses
        every = [
            _hiding_options(expansion.visits[number], key[1], index.macros.names)
            for key in keys
            for number in expansion.by_file.get(key[0], ())
        ]
        options = [each for each in every if not any(map(is_elsewhere, each))]
        chosen = max(options, key=lambda each: any(b"LINUX" in macro for macro in each), default=set[bytes]())
        if all(options) and around.isdisjoint(chosen):
            found |= chosen
    found |= _options_of_members(expansion) | _options_of_stubs(expansion)
    return {name for name in found if not name.startswith((b"__", b"_LIBC"))}  # the compiler's, glibc's


def _options_of_stubs(expansion: Expansion) -> set[bytes]:
    """The options without which functions that own text defines are empty: `#else`, `#define start() 0`."""
    own: set[bytes] = set()
    stubs: dict[bytes, Set[bytes]] = {}
    for visit in expansion.visits:
        for number, item in enumerate(visit.file.items):
            conditions = conditions_in(item.stack) if item.stack else ()
            if not conditions and visit.own:
                own.add(item.function_name)
            elif (
                conditions
                and conditions[-1].lines[1:] == (b"#else",)
                and visit.live.get(number, True) is not False
            ):
                stubs |= dict.fromkeys(_stubs(item), _wanted(conditions[-1].lines[0]))
    return set[bytes]().union(*(stubs[name] for name in stubs.keys() & own - {b""}))


def _stubs(item: Item) -> set[bytes]:
    """The functions that an item is instead of: what a macro or a `static inline` function is named."""
    macros = {directive.macro for directive in item.directives if directive.keyword == b"define"}
    return (
        macros if item.kind == ItemKind.MACRO else {item.function_name} if b"static" in item.text else set()
    )


def _options_of_members(expansion: Expansion) -> set[bytes]:
    """The options without which no class declares a member that own text uses, and which no file defines."""
    accesses: set[bytes] = set()
    hidden: dict[bytes, Set[bytes]] = {}
    plain: set[bytes] = set()
    for visit in expansion.visits:
        for number, item in enumerate(visit.file.items):
            if visit.own and not item.directives and visit.live.get(number, True):
                accesses |= item.accesses
            elif not visit.own and item.kind == ItemKind.TYPE and item.directives:
                always, optional = _members(item.text)
                plain |= always
                hidden |= {name: hidden.get(name, frozenset()) | optional[name] for name in optional}
    wanted = set[bytes]().union(*(hidden[name] for name in hidden.keys() & accesses - plain))
    return {option for option in wanted if not expansion.declaring(option)}


@functools.lru_cache(maxsize=4_096)
def _members(text: bytes) -> tuple[Set[bytes], Mapping[bytes, Set[bytes]]]:
    """The members of a class: those that no option decides on, and the others with the options that do."""
    always: set[bytes] = set()
    hidden: dict[bytes, Set[bytes]] = {}
    stack: list[Set[bytes]] = []
    lexed = lex(text)
    position = 0
    for directive in (*lexed.directives, None):
        part = lexed.plain[position : directive.start if directive is not None else None]
        names = [name or pointer for name, pointer in _MEMBER.findall(part)]
        options = set[bytes]().union(*stack)
        if all(stack) and options and all(each.isupper() and not is_elsewhere(each) for each in options):
            hidden |= {name: hidden.get(name, frozenset()) | options for name in names}
        else:
            always.update(names)
        if directive is not None:
            position = directive.end
            if directive.keyword in IF_KEYWORDS:
                stack.append(_wanted(directive.line))
            elif directive.keyword in ELSE_KEYWORDS and stack:
                stack.pop()
                if directive.keyword != b"endif":
                    stack.append(frozenset())
    return always, {name: hidden[name] for name in hidden.keys() - always}


def _hiding_options(visit: Visit, number: int, known: Set[bytes]) -> Set[bytes]:
    """The options that decide whether a borrowed item is read; none where it is, or where others decide.

    `known` are the macros that some file defines.
    """
    item = visit.file.items[number]
    wanted = [_wanted(each.lines[-1]) for each in conditions_in(item.stack) if id(each) not in visit.decided]
    live = visit.live.get(number, True)
    if live is not False and (own := _options_of_group(item)) and own.isdisjoint(known):
        wanted.append(own)
    elif live:
        return set()
    if visit.own or not all(wanted):
        return set()
    options = set[bytes]().union(*wanted)
    return options if all(map(bytes.isupper, options)) else set()


def _options_of_group(item: Item) -> Set[bytes]:
    """The options of the first branch of an item that is one `#if` group without an `#else`."""
    if not is_one_group(item):
        return frozenset()
    groups, _ = conditional_groups(item.directives)
    has_else = any(each.keyword == b"else" for group in groups for each in group.directives)
    return frozenset() if has_else else _wanted(item.directives[0].line)


def _used_names(expansion: Expansion) -> dict[bytes, Set[bytes]]:
    """The names in own items that are read, or that only macros of the project decide on: which those are."""
    known = expansion.index.macros.names
    always: set[bytes] = set()
    found: dict[bytes, Set[bytes]] = {}
    for visit in (visit for visit in expansion.visits if visit.own):
        for number, item in enumerate(visit.file.items):
            live = visit.live.get(number, True)
            if live is False:
                continue
            live = live or _is_default(item, visit)
            if any(directive.keyword in IF_KEYWORDS for directive in item.directives):
                always |= item.mentions & _always_read(item.text) if live else set()
            elif live:
                always |= item.mentions
            elif (around := condition_names(item.stack) - _KEYWORDS_OF_CONDITIONS) <= known:
                found |= {name: found.get(name, around) | around for name in item.mentions}
    return found | dict.fromkeys(always, frozenset[bytes]())


def _is_default(item: Item, visit: Visit) -> bool:
    """True if all that decides on an item are options that would take it away: `#ifndef STANDALONE`."""
    frames = [frame for frame in conditions_in(item.stack) if id(frame) not in visit.decided]
    return all(len(frame.lines) == 1 and _UNLESS.fullmatch(frame.lines[0]) for frame in frames)


@functools.lru_cache(maxsize=4_096)
def _always_read(text: bytes) -> Set[bytes]:
    """The identifiers of a text that no `#if` decides on."""
    lexed = lex(text)
    ends = [0, *(group.end for group in lexed.groups), len(text)]
    starts = [*(group.start for group in lexed.groups), len(text)]
    return set(IDENTIFIER.findall(b" ".join(map(lexed.names.__getitem__, map(slice, ends, starts)))))


def _wanted(line: bytes) -> Set[bytes]:
    """The macros that have to be defined, and not 0, for a condition of nothing else: of alternatives one."""
    if not _OPTIONS.fullmatch(line):
        return frozenset()
    every = [names_in(_NEGATED.sub(b"", part)) - _KEYWORDS_OF_CONDITIONS for part in line.split(b"||")]
    return next((names for names in every if names and not any(map(is_elsewhere, names))), every[0])
