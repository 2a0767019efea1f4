"""Chosen items of an expansion to text, in the order of the compiler, with the source's own spacing.

Between two items that follow each other in a file, the file's own bytes are written: blank lines, scopes
opened and closed, `#else`. Elsewhere what both items stand in stays open, the rest is closed from the inside
out, and the scopes and conditions of the next item are opened from the outside in.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cpplm.corpus.slicing.build_headers import GNU_NAMES, SYSTEM_HEADERS, include_target, is_switch
from cpplm.corpus.slicing.expansion import Expansion, Place, Visit
from cpplm.corpus.slicing.outlines import without_comments
from cpplm.corpus.slicing.standard_names import missing_lines
from cpplm.cpp.items import Item, ItemKind, conditions_in
from cpplm.cpp.lexer import IF_KEYWORDS
from cpplm.cpp.segments import Condition, Frame, Scope

# Kinds that read as one block without blank lines between them.
_TIGHT = frozenset(
    {
        *(ItemKind.INCLUDE, ItemKind.MACRO, ItemKind.USING, ItemKind.FORWARD),
        *(ItemKind.ALIAS, ItemKind.PROTOTYPE, ItemKind.VARIABLE),
    }
)
_VERSION = re.compile(rb"[(,]\s*Version\s*[,)]")
_BLANK_LINES = re.compile(rb"\n(?:[ \t]*\n){2,}")
_TESTED = re.compile(rb"(?m)^[ \t]*#[ \t]*(?:(?:el)?if|ifn?def|undef|error)\b.*$")
_CONDITION = re.compile(rb"(?m)^[ \t]*#[ \t]*(?:el)?if\b.*$")
# Whether a macro is defined at all.
_ASKED = re.compile(rb"(?:\bifn?def[ \t]+|\bdefined[ \t]*\(?[ \t]*)(\w+)")


# Of each byte itself, or a blank where it belongs to no identifier or number.
_WORD_BYTES = bytes(
    byte if byte < 128 and (chr(byte).isalnum() or byte == ord("_")) else 32 for byte in range(256)
)


class PlacedItem(NamedTuple):
    """An item as written: where its `text` begins in the document, and whether that is the code of the file.

    `offset` is as if the comments of `text` stood directly before its code.
    """

    place: Place
    item: Item
    offset: int
    complete: bool


@dataclass
class Rendered:
    """A document's text, its items in order, and the lines of files beside them: (file, first, last)."""

    text: bytes
    items: list[PlacedItem]
    lines: list[tuple[str, int, int]]


def render(expansion: Expansion, chosen: Sequence[tuple[Place, Item]], *, guards: bool = False) -> Rendered:
    """Write items in the order given; `guards`: keep the include guards of own files."""
    writer = _Writer(expansion, guards=guards)
    writer.begin()
    for place, item in chosen:
        writer.add(place, item)
    return writer.finish()


@dataclass
class _Writer:
    expansion: Expansion
    guards: bool
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    items: list[PlacedItem] = field(default_factory=list)
    lines: list[tuple[str, int, int]] = field(default_factory=list)
    headed: set[int] = field(default_factory=set)  # numbers of visits whose head is written
    head_parts: int = 0  # of the parts those that come before everything else
    # What is open, with: opened by its own first line, so that #else may follow.
    open: list[tuple[Frame, bool]] = field(default_factory=list)

    def add(self, place: Place, item: Item) -> None:
        """Append one item where its stack says."""
        visit = self.expansion.visits[place[0]]
        original = visit.file.items[place[1]]
        if visit.own and all(visit.gone.get(number) == b"" for number in range(place[1])):
            self._head(place[0])
        complete = item.text is original.text and place[1] not in visit.gone
        stack = visit.stack(place[1])
        text = item.text
        if place[1] in visit.gone and item.text is original.text:
            text = visit.gone[place[1]]
        elif place[1] in visit.gone and item.text == without_comments(original.text):
            text = without_comments(visit.gone[place[1]])
        gap = self._gap(place, visit) if complete else None
        if gap is not None:
            # The last line of a macro, which is blank.
            ending = b"\n" if self.parts and self.parts[-1].endswith(b"\\") else b""
            self._write(ending + gap)
            self._enter(stack)
            code = visit.file.data[original.start : original.end]
        else:
            self._end_macro()
            self._separate(original, moved=self._move_to(stack))
            code = text.strip(b"\n")
        leading = len(item.text) - (item.end - item.start)
        offset = self.size - (leading if gap is not None else len(text) - len(text.lstrip(b"\n")))
        self.items.append(PlacedItem(place, item, offset, complete))
        self._write(code)

    def _end_macro(self) -> None:
        """A macro whose last line ends in a backslash goes on until the next blank line."""
        if self.parts and self.parts[-1].endswith((b"\\", b"\\\n")):
            self._write(b"\n" * (2 - self.parts[-1].count(b"\n", -1)))

    def finish(self) -> Rendered:
        """Close what is open."""
        has_tail = self._write_tail()
        self._end_macro()
        self._move_to(())
        if self.guards and not has_tail:
            self._write(b"\n#endif\n")
        self._define()
        text = b"".join(self.parts)
        blank = len(text) - len(text.lstrip(b"\n"))
        self._shift(-blank)
        return Rendered(text.strip(b"\n") + b"\n", self.items, self.lines)

    def _shift(self, length: int) -> None:
        """Move all items."""
        if length:
            self.items = [each._replace(offset=each.offset + length) for each in self.items]

    def _define(self) -> None:
        """Write before all else what a build has to define, where the text asks for it."""
        text = b"".join(self.parts)
        index = self.expansion.index
        words = _words(text)
        of_build = index.switches_and_build_macros
        optional = {name for name in words & of_build.keys() if index.build_macros.get(name, b"0") == b"0"}
        optional &= set(_ASKED.findall(text)) if optional else set()  # the text can do without these
        names = words.intersection(self.expansion.defined)
        mentioned = (of_build.keys() & words) - optional
        expanded = _words(_TESTED.sub(b"", text)) if mentioned or names else set()
        names |= mentioned & expanded
        compared = _words(_ASKED.sub(b"", b"\n".join(_CONDITION.findall(text)))) if names else set()
        lines = []
        for name in filter(names.__contains__, self.expansion.defined):
            is_number = name in of_build or name in compared or is_switch(name) or self._has_number(name)
            is_word = name in expanded and not is_number
            lines.append(b"#define " + name + (b"" if is_word else b" " + index.definition(name)))
        is_c = index.is_c and all(index.read(name).language == "c" for name in self.expansion.roots)
        lines += missing_lines(
            text, self.expansion.dropped, lambda name: bool(self.expansion.declaring(name)), is_c=is_c
        )
        # `<lib/stdbool.h>` is for where the system has none.
        bases = {include_target(each).rpartition("/")[2] for each in self.expansion.dropped}
        instead = (b"#include <%b>" % base.encode() for base in sorted(bases & SYSTEM_HEADERS))
        lines += [line for line in instead if line not in text]
        if "version.h" in bases and _VERSION.search(text) and not self.expansion.declaring(b"Version"):
            lines.append(b"extern char const *Version;")  # as Makefiles of GNU's packages write it
        lines += [
            b"#define %b %b" % (name, of_build[name])
            for name in sorted(of_build.keys() & names)
            if name not in self.expansion.defined and not self._is_defined(name)
        ]
        of_gnu = (name for name in words & GNU_NAMES if not self.expansion.declaring(name))
        if is_c and b"_GNU_SOURCE" not in text and (b"_GNU_SOURCE" in index.build_macros or any(of_gnu)):
            lines.insert(0, b"#define _GNU_SOURCE")  # for the system's headers: no code names it
        if lines:
            block = b"\n".join(lines) + b"\n\n"
            self.parts.insert(self.head_parts, block)
            self._shift(len(block))

    def _has_number(self, name: bytes) -> bool:
        """True if a file has a number as the default of a macro."""
        index = self.expansion.index
        items = map(index.item, index.declared.find(name, self.expansion.by_file))  # also of dead branches
        defined = (each.argument for item in items for each in item.directives if each.macro == name)
        return any(argument[len(name) :].strip().isdigit() for argument in defined)

    def _is_defined(self, name: bytes) -> bool:
        """True if a file defines a macro, not just in one of several branches."""
        items = map(self.expansion.item, self.expansion.declaring(name))
        return any(not any(each.keyword in IF_KEYWORDS for each in item.directives) for item in items)

    def _write_tail(self) -> bool:
        """Write the end of the document's last file, if that is what its last item stands before."""
        if not self.items:
            return False
        last = self.items[-1]
        visit, number = self.expansion.visits[last.place[0]], last.place[1]
        start, end = visit.file.items[number].end, len(visit.file.data)
        rest = range(number + 1, len(visit.file.items))  # nothing, or includes that are gone
        is_last = visit.own and last.complete and all(visit.gone.get(each) == b"" for each in rest)
        tail = self._cut(visit, start, end, number + 1) if is_last else None
        if tail is not None:
            self._note(visit, start, end)
            self._write(tail)
            del self.open[len(visit.frames) :]
        return tail is not None

    def _write(self, data: bytes) -> None:
        self.parts.append(data)
        self.size += len(data)

    def _note(self, visit: Visit, start: int, end: int) -> None:
        """Remember that the bytes of a file from `start` to `end` are written, if they say something."""
        text = visit.file.data[start:end]
        start += len(text) - len(text.lstrip())
        if text.strip():
            ends = (start, start + len(text.strip()))
            self.lines += visit.file.lines(*(visit.file.data.count(b"\n", 0, place) for place in ends))

    def begin(self) -> None:
        """The head of the document's first own file, and its guard."""
        visits = self.expansion.visits
        first = next((number for number, visit in enumerate(visits) if visit.own and visit.file.items), None)
        if first is None or not self._head(first) or not visits[first].file.parsed.lexed.guard_directives:
            self.guards = False
        self.head_parts = 0 if self.guards else len(self.parts)

    def _head(self, number: int) -> bool:
        """The comments at the head of a file, once; whether its first item stands outside of everything.

        The license is written with the first file only.
        """
        visit = self.expansion.visits[number]
        first = visit.file.items[0]
        head = None if first.stack else self._cut(visit, 0, first.leading_start, 0)
        outside = head is not None
        start, end = 0, first.leading_start
        if head is None or self.headed:
            head = visit.file.parsed.header_comment
            start = visit.file.data.find(head)
            end = start + len(head)
            head += b"\n\n"
        if head.strip() and number not in self.headed:
            self._move_to(())
            self._note(visit, start, end)
            ending = self.parts[-1][-2:] if self.parts else b"\n\n"
            blank = len(head) - len(head.rstrip(b"\n"))
            self._write(b"\n" * (2 - ending.count(b"\n")) + head.strip(b"\n") + b"\n" * max(1, min(blank, 2)))
        self.headed.add(number)
        return outside

    def _gap(self, place: Place, visit: Visit) -> bytes | None:
        """The file's bytes between the item written last and this one, where they follow each other."""
        if not self.items:
            return None
        previous = self.items[-1]
        number = previous.place[1]
        if previous.place[0] != place[0] or not previous.complete or number >= place[1]:
            return None
        if any(visit.gone.get(between) != b"" for between in range(number + 1, place[1])):
            return None
        before, after = visit.file.items[number], visit.file.items[place[1]]
        if not visit.own and conditions_in(before.stack) != conditions_in(after.stack):
            return None
        return self._cut(visit, before.end, after.start, number + 1)

    def _cut(self, visit: Visit, start: int, end: int, number: int) -> bytes | None:
        """The bytes between two offsets of a file, no item from `number` on; None if a guard is torn."""
        data, parsed, items = visit.file.data, visit.file.parsed, visit.file.items
        spans: list[tuple[int, int]] = []
        for directive in parsed.lexed.directives_in(start, end):
            if directive.start in parsed.passed and not self.guards:
                if directive.start not in parsed.lexed.guard_directives:
                    return None
                spans.append((directive.start, directive.end + 1))
        last = bisect.bisect_left(items, end, number, key=lambda item: item.start)
        spans += [(item.start, item.end + 1) for item in items[number:last]]
        if not spans:
            return data[start:end]
        kept: list[bytes] = []
        for left, right in sorted(spans):
            kept.append(data[start:left])
            start = max(start, right)
        return _BLANK_LINES.sub(b"\n\n", b"".join([*kept, data[start:end]]))

    def _separate(self, original: Item, *, moved: bool) -> None:
        """A line end, and a blank line where the kinds of both items want one."""
        if not self.size:
            return
        if self.parts[-1][-1:] != b"\n":
            self._write(b"\n")
        previous = self.items[-1].item if self.items else None
        if previous is None or moved:
            return
        tight = previous.kind == original.kind and original.kind in _TIGHT
        if not (tight and original.text.count(b"\n") <= 1):
            self._write(b"\n")

    def _enter(self, stack: tuple[Frame, ...]) -> None:
        """Take note that exactly `stack` is open, since the bytes between two items say so."""
        common = self._common(stack)
        self.open[common:] = [(frame, True) for frame in stack[common:]]

    def _common(self, stack: tuple[Frame, ...]) -> int:
        """The number of a stack's frames that are open."""
        for number, ((frame, _), wanted) in enumerate(zip(self.open, stack, strict=False)):
            if frame is not wanted and frame != wanted:
                return number
        return min(len(stack), len(self.open))

    def _move_to(self, stack: tuple[Frame, ...]) -> bool:
        """Close and open until exactly `stack` is open; whether anything changed."""
        common = self._common(stack)
        if common == len(stack) == len(self.open):
            return False
        if self.size and self.parts[-1][-1:] != b"\n":
            self._write(b"\n")
        keep_last = common < min(len(stack), len(self.open)) and _continues(self.open[common], stack[common])
        while len(self.open) > common + keep_last:
            frame, _ = self.open.pop()
            self._write(b"\n" + frame.closer + b"\n" if isinstance(frame, Scope) else b"#endif\n")
        if keep_last:
            self._continue_group(stack[common])
            common += 1
        elif self.parts and stack:
            self._write(b"\n")
        for frame in stack[common:]:
            self._write(frame.opener + (b"\n\n" if isinstance(frame, Scope) else b"\n"))
            self.open.append((frame, isinstance(frame, Scope) or len(frame.lines) == 1))
        if not stack and self.parts:
            self._write(b"\n")
        return True

    def _continue_group(self, wanted: Frame) -> None:
        """From a branch of an `#if` to a later one."""
        current, _ = self.open.pop()
        if isinstance(current, Condition) and isinstance(wanted, Condition):
            for line in wanted.lines[len(current.lines) :]:
                self._write(line + b"\n")
        self.open.append((wanted, True))


def _words(text: bytes) -> set[bytes]:
    """All identifiers, keywords and numbers of a text."""
    return set(text.translate(_WORD_BYTES).split())


def _continues(current: tuple[Frame, bool], wanted: Frame) -> bool:
    """True if `wanted` is a later branch of the group that is open."""
    frame, natural = current
    return (
        natural
        and isinstance(frame, Condition)
        and isinstance(wanted, Condition)
        and len(wanted.lines) > len(frame.lines)
        and wanted.lines[: len(frame.lines)] == frame.lines
    )
