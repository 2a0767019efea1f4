"""Directives, comments and strings of one C++ file, by byte offset; nothing is expanded.

Four views of the file have exactly its length, so an offset found in one is good in all of them:

    data   the file itself
    plain  comments and directives are blank
    names  the insides of strings too: what is left has every identifier that the code mentions
    code   as `names`, and macros masked too: what is left balances its brackets (`macros` makes it)

`#if` groups are a tree. A group is *regular* when each of its branches is a list of whole declarations; its
items then carry the condition. Everything else about conditionals follows from that one question.
"""

from __future__ import annotations

import bisect
import itertools
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

# Every alternative begins with a different byte, which lets the engine skip ordinary code. Nothing that a
# repetition took is given back.
_TOKEN = re.compile(
    rb"""
      /(?: /(?: [^\\\n]++ | \\\n | \\ )*+ | \*.*?(?:\*/|\Z) )
    | "(?: (?<=R")([^()\\\s]{0,16})\(.*?\)\1" | (?: [^"\\\n]++ | \\. )*+ (?: " | (?=\n) | \Z ) )
    | '(?: [^'\\\n]++ | \\. )*+ (?: ' | (?=\n) | \Z )
    | \#[ \t]*\w*(?: [^\n\\/"]++ | \\\n | /\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | [^\n] )*
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER_BEFORE = re.compile(rb"(?<![\w'])\d[\w']*\Z")
_KEYWORD = re.compile(rb"\#[ \t]*(\w*)")
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BLANK = bytes(byte if byte == 10 else 32 for byte in range(256))
# Keywords of directives.
INCLUDE_KEYWORDS = frozenset((b"include", b"include_next", b"import"))
IF_KEYWORDS = frozenset((b"if", b"ifdef", b"ifndef"))
ELSE_KEYWORDS = frozenset((b"else", b"elif", b"elifdef", b"elifndef", b"endif"))
IDENTIFIER = re.compile(rb"[A-Za-z_]\w*")
# `!defined(X)`, and what stands before it: `A && !defined(X)`.
_DEFINED_GUARD = re.compile(rb"(?:(.*)&&\s*)?!\s*defined\s*\(?\s*(\w+)\s*\)?\s*$")
_PARENTHESES = re.compile(rb"\([^()]*\)")
# Conditions that do not hold where g++ runs: their `#else` is the branch to read when both cannot be.
_FOREIGN = re.compile(rb"\b(?:_WIN32|_WIN64|_MSC_VER|__APPLE__|__cplusplus\s*<)|^\s*0\s*$")


@lru_cache(maxsize=65_536)
def names_in(line: bytes) -> frozenset[bytes]:
    """The identifiers of a condition, a macro or an opened scope: a short text that comes again and again."""
    return frozenset(IDENTIFIER.findall(_HEADER_NAME.sub(b" ", line)))


_HEADER_NAME = re.compile(rb'"[^"]*"|<[\w./+-]+>')
_MACRO_PARAMETERS = re.compile(rb"\w+\(([^()]*)\)")


@lru_cache(maxsize=65_536)
def _macro_names(definition: bytes) -> frozenset[bytes]:
    parameters = _MACRO_PARAMETERS.match(definition)
    return names_in(definition) - names_in(parameters.group(1) if parameters else b"")


@lru_cache(maxsize=65_536)
def _first_name(text: bytes) -> bytes:
    match = IDENTIFIER.match(text)
    return match.group() if match else b""


@dataclass(frozen=True, slots=True)
class Directive:
    """One logical directive line: `argument` is joined over continuations and free of comments."""

    start: int
    end: int
    keyword: bytes
    argument: bytes

    @property
    def macro(self) -> bytes:
        """The macro that a `#define`, `#undef`, `#ifdef` or `#ifndef` names."""
        return _first_name(self.argument)

    @property
    def mentions(self) -> frozenset[bytes]:
        """The identifiers in the argument but for the parameters of a macro, which are no names."""
        return _macro_names(self.argument) if self.keyword == b"define" else names_in(self.argument)

    @property
    def line(self) -> bytes:
        """The directive on one line, without comments or indentation."""
        return b"#" + self.keyword + (b" " + self.argument if self.argument else b"")

    @property
    def target(self) -> str:
        """The argument of an include (`"a.h"`, `<b.h>`); nothing of others, and of `#include MACRO`."""
        is_plain = self.keyword in INCLUDE_KEYWORDS and self.argument[:1] in (b'"', b"<")
        return self.argument.decode("utf-8", "replace") if is_plain else ""


@dataclass(slots=True)
class ConditionalGroup:
    """`#if` to `#endif`: branch k lies between directive k and directive k + 1."""

    directives: list[Directive] = field(default_factory=list)
    children: list[ConditionalGroup] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Offset of the `#if` line."""
        return self.directives[0].start

    @property
    def end(self) -> int:
        """Offset just after the `#endif` line."""
        return self.directives[-1].end

    def branches(self) -> list[tuple[int, int]]:
        """The spans between the directives."""
        return [(first.end, second.start) for first, second in itertools.pairwise(self.directives)]

    @property
    def guard(self) -> tuple[bytes, bytes]:
        """The macro X of `#ifndef X` and of `#if A && !defined(X)`, and the A of the latter; or nothing."""
        opening = self.directives[0]
        match = _DEFINED_GUARD.match(opening.argument) if opening.keyword == b"if" else None
        if match is None:
            return opening.macro if opening.keyword == b"ifndef" else b"", b""
        condition = (match.group(1) or b"").strip()
        outside = condition
        while (inner := _PARENTHESES.sub(b"", outside)) != outside:
            outside = inner
        return (b"", b"") if b"||" in outside or b"(" in outside else (match.group(2), condition)

    def live_branch(self) -> int:
        """The branch to read where only one of several can be."""
        opening = self.directives[0]
        return int(opening.keyword in (b"if", b"ifdef") and _FOREIGN.search(opening.argument) is not None)


@dataclass
class LexedSource:
    """One file taken apart; `balanced` is False when `#if` and `#endif` do not match.

    Of `comments` and `directives` neither stands within the other; `strings` are the offsets, start and end
    in turn, of what stands between quotes.
    """

    data: bytes
    directives: list[Directive]
    comments: list[tuple[int, int]]
    strings: array[int]
    groups: list[ConditionalGroup] = field(default_factory=list)
    balanced: bool = True
    guard: bytes = b""
    guard_directives: frozenset[int] = frozenset()

    @cached_property
    def plain(self) -> bytes:
        """The text with comments and directives blank."""
        return _blanked(self.data, [*self.comments, *((each.start, each.end) for each in self.directives)])

    @cached_property
    def names(self) -> bytes:
        """The same with the insides of strings blank too."""
        return _blanked(self.plain, zip(self.strings[::2], self.strings[1::2], strict=True))

    @property
    def is_read_once(self) -> bool:
        """True if a guard or a pragma sees to it that a second include is empty."""
        pragmas = (each for each in self.directives if each.keyword == b"pragma")
        return bool(self.guard) or any(each.argument == b"once" for each in pragmas)

    def keep_directives(self) -> None:
        """Give back the memory of all but the text and the directives."""
        for name in ("plain", "names"):
            self.__dict__.pop(name, None)
        self.comments, self.strings = [], array("q")

    def directives_in(self, start: int, end: int) -> tuple[Directive, ...]:
        """Those that begin between two offsets."""
        first, last = (bisect.bisect_left(self.directives, at, key=lambda d: d.start) for at in (start, end))
        return tuple(self.directives[first:last])

    def is_blank(self, start: int, end: int) -> bool:
        """True if only comments and directives stand between two offsets at the ends of directives."""
        return not self.plain[start:end].strip()


def blank(data: bytes) -> bytes:
    """Spaces of the same length and lines."""
    return data.translate(_BLANK)


def _blanked(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    view = bytearray(data)
    for start, end in spans:
        view[start:end] = data[start:end].translate(_BLANK)
    return bytes(view)


def lex(data: bytes) -> LexedSource:
    """Take a file (LF line ends, no byte order mark) apart."""
    lexed = LexedSource(data, [], [], array("q"))
    for start, end in _tokens(data):
        first = data[start]
        if first == 0x2F:  # "/"
            lexed.comments.append((start, end))
        elif first == 0x23:  # "#"
            line = data.rfind(b"\n", 0, start) + 1
            _, keyword, argument = _KEYWORD.split(data[start:end], maxsplit=1)
            argument = _COMMENT.sub(b" ", argument.replace(b"\\\n", b" ")).strip()
            lexed.directives.append(Directive(line, end, keyword, argument))
        elif end - start > 2:
            lexed.strings.extend((start + 1, end - 1))
    lexed.groups, lexed.balanced = conditional_groups(lexed.directives)
    _find_guard(lexed)
    return lexed


def _tokens(data: bytes) -> Iterator[tuple[int, int]]:
    """Comments, directives and strings."""
    position: int | None = 0
    while position is not None:
        search, position = position, None
        for token in _TOKEN.finditer(data, search):
            start, end = token.span()
            first = data[start]
            if (first == 0x27 and _is_separator(data, start)) or (first == 0x23 and _is_inside(data, start)):
                position = start + 1
                break
            yield start, end


def _is_inside(data: bytes, start: int) -> bool:
    """True if a `#` begins no directive, since not only blanks stand before it."""
    return bool(data[data.rfind(b"\n", 0, start) + 1 : start].strip(b" \t"))


def _is_separator(data: bytes, start: int) -> bool:
    """True if a single quote stands within a number: 1'000."""
    return _NUMBER_BEFORE.search(data[max(0, start - 64) : start]) is not None


# C++ compilers need to take 256 (C++20, annex B); what walks the tree may call itself so often.
_DEEPEST_GROUP = 256


def conditional_groups(directives: Iterable[Directive]) -> tuple[list[ConditionalGroup], bool]:
    """The tree of conditional groups, and whether every one of them is closed and none absurdly deep."""
    roots: list[ConditionalGroup] = []
    open_groups: list[ConditionalGroup] = []
    balanced = True
    for directive in directives:
        if directive.keyword in IF_KEYWORDS:
            group = ConditionalGroup([directive])
            (open_groups[-1].children if open_groups else roots).append(group)
            open_groups.append(group)
            balanced = balanced and len(open_groups) <= _DEEPEST_GROUP
        elif directive.keyword in ELSE_KEYWORDS:
            if not open_groups:
                balanced = False
                continue
            open_groups[-1].directives.append(directive)
            if directive.keyword == b"endif":
                open_groups.pop()
    return roots, balanced and not open_groups


def _find_guard(lexed: LexedSource) -> None:
    """Recognise `#ifndef X`, `#define X` ... `#endif` around all the code of the file.

    The `#define` may come later; one that gives X a value stays, since it may be asked for. There may be an
    `#elif` or `#else` that only complains of a second reading. Not behind an include, which may lead to the
    same file: then the file is read twice, and the inner reading is what counts.
    """
    if not lexed.balanced:
        return
    changes = [d.start for d in lexed.directives if d.keyword in (b"define", b"undef")]
    for group in lexed.groups:
        macro, condition = group.guard
        if not macro or condition:
            continue
        if not all(lexed.is_blank(start, end) for start, end in group.branches()[1:]):
            continue
        # What is defined behind it is defined by every reading; of a file of macros alone it is one of many.
        is_one_of_many = lexed.is_blank(group.start, group.end)
        if changes and (changes[-1] >= group.end or (is_one_of_many and changes[0] < group.start)):
            continue
        define = defined_in(group, macro, lexed)
        is_around_all = lexed.is_blank(0, group.start) and lexed.is_blank(group.end, len(lexed.data))
        is_first = not any(d.keyword in INCLUDE_KEYWORDS for d in lexed.directives_in(0, group.start))
        if define is not None and is_around_all and is_first:
            has_value = define.argument.strip() != macro
            lexed.guard = macro
            gone = {d.start for d in lexed.directives_in(group.directives[1].start, group.end)}
            lexed.guard_directives = frozenset({group.start, *gone, *(() if has_value else (define.start,))})
            return


def defined_in(group: ConditionalGroup, macro: bytes, lexed: LexedSource) -> Directive | None:
    """The one `#define` of a macro that stands directly in a group; None when it is changed elsewhere."""
    changes = [
        d
        for d in lexed.directives_in(group.start, group.end)
        if d.macro == macro and d.keyword in (b"define", b"undef")
    ]
    if len(changes) != 1 or changes[0].keyword != b"define":
        return None
    is_nested = any(child.start <= changes[0].start < child.end for child in group.children)
    return None if is_nested else changes[0]


def inner_first(groups: list[ConditionalGroup]) -> list[ConditionalGroup]:
    """All groups, each after those inside it; not by recursion, since they may be nested a thousand deep."""
    ordered, waiting = [], list(groups)
    while waiting:
        ordered.append(waiting.pop())
        waiting += ordered[-1].children
    return ordered[::-1]
