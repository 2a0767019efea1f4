"""Branches of `#if`s that would hide the shape of a file from the parser, to be blanked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from cpplm.cpp.conditions import MacroState
from cpplm.cpp.lexer import (
    ELSE_KEYWORDS,
    IDENTIFIER,
    ConditionalGroup,
    Directive,
    LexedSource,
    blank,
    inner_first,
)

OPEN, CLOSE = b"\x01", b"\x02"
SCOPE_ONLY = re.compile(rb'^(?:\s*(?:(?:inline\s+)?namespace\b[^;{}=()]*\{|extern\s*"\s*"\s*\{|\x01))*\s*$')
CLOSE_ONLY = re.compile(rb"^\s*(?:[}\x02][\s};\x02]*)?$")
# `#if` around one call of a macro, without a semicolon, is a whole declaration too.
_LONE_CALL = re.compile(rb"(?:^|[;}\n])\s*[A-Z_][A-Z0-9_]*\s*(?:\([^;{}]*\))?\s*\Z")


def balance(code: bytes) -> tuple[int, int]:
    """Net opened braces (scope macros count as braces) and net opened parentheses."""
    braces = code.count(b"{") + code.count(OPEN) - code.count(b"}") - code.count(CLOSE)
    return braces, code.count(b"(") - code.count(b")")


def is_whole(part: bytes) -> bool:
    """True if a branch is a list of whole declarations."""
    stripped = part.strip()
    if not stripped:
        return True
    if balance(part) != (0, 0):
        return False
    return stripped[-1:] in (b";", b"}", OPEN, CLOSE) or bool(_LONE_CALL.search(stripped))


def dead_branches(lexed: LexedSource, names: bytes) -> list[tuple[int, int, bytes]]:
    """Blank all but one branch of a group whose branches do not balance one by one, and prose in `#if 0`.

    Of `#if 0` alone none is left, nor of `#ifndef X` within `#ifdef X`, nor of what only closes what was just
    opened: such close for editors what `extern "C" {` opens, or open it for them. `names` is the code of the
    file without strings and macros.
    """
    dead: list[tuple[int, int, bytes]] = []
    groups = inner_first(lexed.groups) if lexed.balanced else []
    refuted = {child.start for group in groups for child in _refuted(group)}
    code = bytearray(names)
    for group in groups:
        branches = group.branches()
        parts = [bytes(code[start:end]) for start, end in branches]
        written = [number for number, part in enumerate(parts) if part.strip()]
        is_prose = len(parts) == 1 and not is_whole(parts[0]) and _is_never_read(group.directives[0])
        broken = [number for number, part in enumerate(parts) if balance(part) != (0, 0)]
        if not is_prose and not broken:
            continue
        if len(parts) == 1:
            closes = parts[0].strip() == b"}" and code[
                max(group.start - 256, 0) : group.start
            ].rstrip().endswith(b"{")
            is_trick = closes or group.start in refuted or _is_never_read(group.directives[0])
            keep = -1 if is_trick else 0
        elif all(SCOPE_ONLY.match(part) for part in parts) or (
            len(written) == 1 and CLOSE_ONLY.match(parts[written[0]])
        ):
            continue
        else:
            keep = group.live_branch() if group.live_branch() in written else written[0]
        is_slip = len(written) > 2 and len(broken) == 1  # of several systems one is wrong
        for number, (start, end) in enumerate(branches):
            if number in broken if is_slip else number != keep:
                dead.append((start, end, b""))
                code[start:end] = blank(bytes(code[start:end]))
    return dead


def after_errors(lexed: LexedSource) -> Iterator[tuple[int, int, bytes]]:
    """Blank text behind `#error` in its branch that is no declaration: it stops old compilers."""
    for error, closer in itertools.pairwise(lexed.directives):
        text = lexed.names[error.end : closer.start]
        if error.keyword == b"error" and closer.keyword in ELSE_KEYWORDS and not is_whole(text):
            yield error.end, closer.start, b""


def _is_never_read(directive: Directive) -> bool:
    """True for `#if 0` and `#if 1 == 2`, which ask for no macro."""
    is_constant = directive.keyword == b"if" and not IDENTIFIER.search(directive.argument)
    return is_constant and MacroState(frozenset()).holds(directive.line) is False


def _refuted(group: ConditionalGroup) -> Iterator[ConditionalGroup]:
    """The groups that ask in the first branch of `#ifdef X` for the contrary, or the other way round."""
    opening, end = group.directives[0], group.directives[1].start
    for child in group.children:
        other = child.directives[0]
        is_contrary = {opening.keyword, other.keyword} == {b"ifdef", b"ifndef"}
        if is_contrary and opening.macro == other.macro and child.start < end:
            yield child
