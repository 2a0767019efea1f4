"""Directives, comments and strings of one C++ file, by byte offset; nothing is expanded.

Three views of the file have exactly its length, so an offset found in one is good in all of them:

    data   the file itself
    names  comments, directives and the insides of strings are blank: every identifier that the code mentions
    code   as `names`, and macros masked too: what is left balances its brackets (`macros` makes it)

`#if` groups are a tree. A group is *regular* when each of its branches is a list of whole declarations; its
items then carry the condition. Everything else about conditionals follows from that one question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

# Every alternative begins with a different byte, which lets the engine skip ordinary code.
_TOKEN = re.compile(
    rb"""
      /(?: /(?:\\\n|[^\n])* | \*.*?(?:\*/|\Z) )
    | "(?: \\. | [^"\\\n] )* (?: " | (?=\n) | \Z )
    | '(?: \\. | [^'\\\n] )* (?: ' | (?=\n) | \Z )
    | \#[ \t]*\w*(?: \\\n | /\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | [^\n] )*
    """,
    re.VERBOSE | re.DOTALL,
)
_RAW = re.compile(rb'"([^()\\\s]{0,16})\(.*?\)\1"', re.DOTALL)
_WORD_BEFORE = re.compile(rb"[\w']*\Z")
_KEYWORD = re.compile(rb"\#[ \t]*(\w*)")
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BLANK = bytes(byte if byte == 10 else 32 for byte in range(256))
IDENTIFIER = re.compile(rb"[A-Za-z_]\w*")
_DEFINED_GUARD = re.compile(rb"!\s*defined\s*\(?\s*(\w+)\s*\)?\s*$")
_NEGATION = re.compile(rb"!|\|\||_MSC_VER\s*<")
# Conditions that do not hold where g++ runs: their `#else` is the branch to read when both cannot be.
_FOREIGN = re.compile(rb"\b(?:_WIN32|_WIN64|_MSC_VER|__APPLE__|__cplusplus\s*<)|^\s*0\s*$")


@lru_cache(maxsize=65_536)
def names_in(line: bytes) -> frozenset[bytes]:
    """The identifiers of a short text that is asked about again and again: a condition, a macro."""
    return frozenset(IDENTIFIER.findall(line))


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
    def line(self) -> bytes:
        """The directive on one line, without comments or indentation."""
        return b"#" + self.keyword + (b" " + self.argument if self.argument else b"")


class Branch(NamedTuple):
    """A branch of an `#if` group: the directive lines up to its own; is it one of several without code?"""

    lines: tuple[bytes, ...]
    choice: bool


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
        return [
            (first.end, second.start)
            for first, second in zip(self.directives, self.directives[1:], strict=False)
        ]

    def live_branch(self) -> int:
        """The branch to read where only one of them can be."""
        is_foreign = self.directives[0].keyword == b"if" or self.directives[0].keyword == b"ifdef"
        if is_foreign and len(self.directives) > 2 and _FOREIGN.search(self.directives[0].argument):
            return 1
        return 0


@dataclass(slots=True)
class LexedSource:
    """One file taken apart; `balanced` is False when `#if` and `#endif` do not match."""

    data: bytes
    names: bytes
    plain: bytes
    directives: list[Directive]
    groups: list[ConditionalGroup]
    balanced: bool
    comments: list[tuple[int, int]] = field(default_factory=list)
    guard: bytes = b""
    guard_directives: frozenset[int] = frozenset()

    def branches_at(self, offset: int) -> tuple[Branch, ...]:
        """The branches that an offset lies in, outermost first; the guard is none."""
        branches: list[Branch] = []
        groups = self.groups
        while True:
            group = next((group for group in groups if group.start <= offset < group.end), None)
            if group is None:
                return tuple(branches)
            if group.start not in self.guard_directives:
                lines = tuple(d.line for d in group.directives if d.start < offset)
                code = any(self.names[start:end].strip() for start, end in group.branches())
                branches.append(Branch(lines, not code and len(group.directives) > 2))
            groups = group.children

    def foreign_spans(self) -> list[tuple[int, int]]:
        """Branches that are not read where g++ runs: `#ifdef _WIN32` and such, `#else` of the contrary."""
        spans: list[tuple[int, int]] = []
        waiting = list(self.groups)
        while waiting:
            group = waiting.pop()
            waiting.extend(group.children)
            spans += [
                branch
                for branch, directive in zip(group.branches(), group.directives, strict=False)
                if directive.keyword not in (b"ifndef", b"else", b"endif")
                and _FOREIGN.search(directive.argument)
                and not _NEGATION.search(directive.argument)
            ]
        return spans


def blank(data: bytes) -> bytes:
    """Spaces of the same length and lines."""
    return data.translate(_BLANK)


def lex(data: bytes) -> LexedSource:
    """Take a file (LF line ends, no byte order mark) apart."""
    names: list[bytes] = []
    plain: list[bytes] = []
    directives: list[Directive] = []
    comments: list[tuple[int, int]] = []
    position = search = 0
    while (token := _TOKEN.search(data, search)) is not None:
        start, end = token.span()
        first = data[start]
        search = end
        hidden = True
        if first == 0x2F:  # "/"
            comments.append((start, end))
        elif first == 0x23:  # "#" begins a directive where only blanks stand before it
            line = data.rfind(b"\n", 0, start) + 1
            if data[line:start].strip(b" \t"):
                search = start + 1
                continue
            keyword = _KEYWORD.match(data, start)
            argument = data[keyword.end() : end] if keyword else b""
            argument = _COMMENT.sub(b" ", argument.replace(b"\\\n", b" ")).strip()
            directives.append(Directive(line, end, keyword.group(1) if keyword else b"", argument))
            start = line
        else:
            hidden = False
            if first == 0x27 and _is_separator(data, start):
                search = start + 1
                continue
            raw = _RAW.match(data, start) if first == 0x22 and data[start - 1 : start] == b"R" else None
            if raw:
                end = search = raw.end()
        before = data[position:start]
        names.append(before)
        plain.append(before)
        if hidden:
            names.append(blank(data[start:end]))
            plain.append(names[-1])
        else:
            closing = max(end - 1, start + 1)
            names.append(data[start : start + 1] + blank(data[start + 1 : closing]) + data[closing:end])
            plain.append(data[start:end])
        position = end
    names.append(data[position:])
    plain.append(data[position:])
    groups, balanced = _group(directives)
    lexed = LexedSource(data, b"".join(names), b"".join(plain), directives, groups, balanced, comments)
    _find_guard(lexed)
    return lexed


def _is_separator(data: bytes, start: int) -> bool:
    """True if a single quote stands within a number: 1'000."""
    before = data[max(0, start - 64) : start]
    word = _WORD_BEFORE.search(before)
    return word is not None and word.group()[:1].isdigit()


# C++ compilers need to take 256 (C++20, annex B); what walks the tree may call itself so often.
_DEEPEST_GROUP = 256


def _group(directives: list[Directive]) -> tuple[list[ConditionalGroup], bool]:
    """The tree of conditional groups, and whether every one of them is closed and none absurdly deep."""
    roots: list[ConditionalGroup] = []
    open_groups: list[ConditionalGroup] = []
    balanced = True
    for directive in directives:
        if directive.keyword in (b"if", b"ifdef", b"ifndef"):
            group = ConditionalGroup([directive])
            (open_groups[-1].children if open_groups else roots).append(group)
            open_groups.append(group)
            balanced = balanced and len(open_groups) <= _DEEPEST_GROUP
        elif directive.keyword in (b"else", b"elif", b"elifdef", b"elifndef", b"endif"):
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
    `#elif` or `#else` that only complains of a second reading.
    """
    if not lexed.balanced:
        return
    for group in lexed.groups:
        opening = group.directives[0]
        match = _DEFINED_GUARD.match(opening.argument) if opening.keyword == b"if" else None
        macro = opening.macro if opening.keyword == b"ifndef" else match.group(1) if match else b""
        if not macro or any(lexed.names[start:end].strip() for start, end in group.branches()[1:]):
            continue
        outside = lexed.names[: group.start] + lexed.names[group.end :]
        define = defined_in(group, macro, lexed.directives)
        if define is not None and not outside.strip():
            has_value = define.argument.strip() != macro
            lexed.guard = macro
            end = group.directives[1].start
            gone = {d.start for d in lexed.directives if end <= d.start < group.end}
            lexed.guard_directives = frozenset(
                {opening.start, *gone, *(() if has_value else (define.start,))}
            )
            return


def defined_in(group: ConditionalGroup, macro: bytes, directives: Iterable[Directive]) -> Directive | None:
    """The one `#define` of a macro that stands directly in a group; None when it is changed elsewhere."""
    changes = [
        d
        for d in directives
        if group.start <= d.start < group.end and d.macro == macro and d.keyword in (b"define", b"undef")
    ]
    if len(changes) != 1 or changes[0].keyword != b"define":
        return None
    is_nested = any(child.start <= changes[0].start < child.end for child in group.children)
    return None if is_nested else changes[0]
