"""Items to text: scopes and conditions closed and reopened by the common prefix of two stacks.

From one item to the next, what both stand in stays open, the rest is closed from the inside out and the
new frames are opened from the outside in. An `#else` branch that follows its `#if` branch continues the
same group; elsewhere it is opened with the negated condition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from cpplm.cpp.items import Item, ItemKind
from cpplm.cpp.segments import Condition, Frame, Scope

# Kinds that read as one block without blank lines between them.
_TIGHT = frozenset(
    {
        ItemKind.INCLUDE,
        ItemKind.MACRO,
        ItemKind.USING,
        ItemKind.FORWARD,
        ItemKind.ALIAS,
        ItemKind.PROTOTYPE,
        ItemKind.VARIABLE,
    }
)


def render(items: Iterable[Item]) -> tuple[bytes, list[int]]:
    """The text of the items in this order, every scope closed at the end; where the text of each begins."""
    writer = _Writer()
    for item in items:
        writer.add(item)
    writer.move_to(())
    text = b"".join(writer.parts)
    blank = len(text) - len(text.lstrip(b"\n"))
    ends = list(itertools.accumulate(map(len, writer.parts), initial=-blank))
    return text.strip(b"\n") + b"\n", [ends[number] for number in writer.numbers]


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.numbers: list[int] = []  # of the parts that are items
        self.open: list[
            tuple[Frame, bool]
        ] = []  # with: opened by its own first line, so that #else may follow
        self.previous: Item | None = None

    def add(self, item: Item) -> None:
        """Append one item where its stack says."""
        moved = self.move_to(item.stack)
        previous = self.previous
        if (
            previous is not None
            and not moved
            and not (previous.kind == item.kind and item.kind in _TIGHT and item.text.count(b"\n") == 0)
        ):
            self.parts.append(b"\n")
        self.numbers.append(len(self.parts))
        text = item.text.strip(b"\n")
        # A macro whose last line ends in a backslash goes on until the next blank line.
        self.parts.append(text + (b"\n\n" if text.endswith(b"\\") else b"\n"))
        self.previous = item

    def move_to(self, stack: tuple[Frame, ...]) -> bool:
        """Close and open until exactly `stack` is open; whether anything changed."""
        common = 0
        while common < min(len(stack), len(self.open)) and self.open[common][0] == stack[common]:
            common += 1
        if common == len(stack) == len(self.open):
            return False
        keep_last = common < min(len(stack), len(self.open)) and _continues(self.open[common], stack[common])
        while len(self.open) > common + keep_last:
            frame, _ = self.open.pop()
            self.parts.append(_spaced(frame.closer if isinstance(frame, Scope) else b"#endif", frame))
        if keep_last:
            self._continue_group(stack[common])
            common += 1
        elif self.parts:
            self.parts.append(b"\n")
        for frame in stack[common:]:
            self._open(frame)
        return True

    def _continue_group(self, wanted: Frame) -> None:
        """From a branch of an `#if` to a later one."""
        current, _ = self.open.pop()
        if isinstance(current, Condition) and isinstance(wanted, Condition):
            self.parts.extend(line + b"\n" for line in wanted.lines[len(current.lines) :])
        self.open.append((wanted, True))

    def _open(self, frame: Frame) -> None:
        if isinstance(frame, Scope):
            self.parts.append(frame.opener + b"\n\n")
            self.open.append((frame, True))
        else:
            self.parts.append(opening_line(frame) + b"\n")
            self.open.append((frame, len(frame.lines) == 1))


def _spaced(closer: bytes, frame: Frame) -> bytes:
    return b"\n" + closer + b"\n" if isinstance(frame, Scope) else closer + b"\n"


def _continues(current: tuple[Frame, bool], wanted: Frame) -> bool:
    """Whether `wanted` is a later branch of the group that is open."""
    frame, natural = current
    return (
        natural
        and isinstance(frame, Condition)
        and isinstance(wanted, Condition)
        and len(wanted.lines) > len(frame.lines)
        and wanted.lines[: len(frame.lines)] == frame.lines
    )


def opening_line(condition: Condition) -> bytes:
    """An `#if` that holds exactly where the branch does."""
    if len(condition.lines) == 1:
        return condition.lines[0]
    if len(condition.lines) == 2 and condition.lines[1] == b"#else":
        keyword, _, name = condition.lines[0].partition(b" ")
        swapped = {b"#ifdef": b"#ifndef ", b"#ifndef": b"#ifdef "}.get(keyword)
        if swapped:
            return swapped + name
    terms = [b"!(" + _expression(line) + b")" for line in condition.lines[:-1]]
    if condition.lines[-1] != b"#else":
        terms.append(b"(" + _expression(condition.lines[-1]) + b")")
    return b"#if " + b" && ".join(terms)


def _expression(line: bytes) -> bytes:
    """The condition of a directive as an `#if` expression."""
    keyword, _, rest = line.partition(b" ")
    if keyword in (b"#ifdef", b"#elifdef"):
        return b"defined(" + rest.strip() + b")"
    if keyword in (b"#ifndef", b"#elifndef"):
        return b"!defined(" + rest.strip() + b")"
    return rest.strip()
