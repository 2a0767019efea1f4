"""One file to its top-level pieces, each with the namespaces and `#if` conditions it stands in.

Boundaries come from brackets, not from a grammar: at namespace scope a declaration ends at `;` or at the
brace that closes its body, whatever the macros between. So one construct that a parser cannot read never
spoils its neighbours. Where even the brackets do not add up (`SegmentedFile.sound`) a file stays whole.

Every byte of code lies in exactly one piece, scope opener or scope closer; comments go with what follows
them, or with what they trail on the same line.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Set

from cpplm.cpp.dead_branches import CLOSE, CLOSE_ONLY, OPEN, SCOPE_ONLY, is_whole
from cpplm.cpp.item_ends import NONBLANK, UnsoundError, bracket_end
from cpplm.cpp.lexer import (
    ELSE_KEYWORDS,
    IDENTIFIER,
    INCLUDE_KEYWORDS,
    ConditionalGroup,
    Directive,
    LexedSource,
    conditional_groups,
    defined_in,
    inner_first,
    lex,
)
from cpplm.cpp.macros import MacroTable, closing, mask
from cpplm.cpp.segments import Condition, Frame, Scope, SegmentCategory, SegmentedFile, SourceSegment

# An `#if` group of directives only is one item, unless it is longer than this: parts of it may do then.
_MOST_TOGETHER = 2_000
_COMMENT = re.compile(rb"/\*.*?\*/|//[^\n]*", re.DOTALL)
_LICENSE = re.compile(rb"copyright|licen[sc]e|warrant", re.IGNORECASE)
_SCOPE = re.compile(rb'(?:(?:inline\s+)?namespace\b[^;{}=()]*|extern\s*"\s*"\s*)\{')
# Of a scope that is left for some directives only: `END_NS`, `#include <vector>`, `BEGIN_NS`.
_REOPENED = re.compile(rb"[}\x02]\s*(?:\x01|(?:inline\s+)?namespace\b[^;{}=()]*\{)")
# `extern "C" {` behind declarations in the same `#ifdef __cplusplus`, and its end before others.
_LAST_OPENER = re.compile(rb'(?:\x01|extern\s*"\s*"\s*\{|(?:inline\s+)?namespace\b[^;{}=()]*\{)\s*\Z')
_FIRST_CLOSER = re.compile(rb"\s*[}\x02]")
_INLINE_MACRO = re.compile(rb"inline\s+\x01")
_ARGUMENTS = re.compile(rb"\s*\(")
# A unit of a module: the order of its parts is the language's, and what it imports is not known.
_MODULE = re.compile(rb"^(?:export[ \t]+)?module\b[ \t]*[\w.:]*[ \t]*;", re.MULTILINE)


def segment_file(lexed: LexedSource, table: MacroTable) -> SegmentedFile:
    """Cut a file into its top-level pieces."""
    code, plain = mask(lexed, table)
    splitter = _Segmenter(lexed, code, table)
    sound = lexed.balanced and not _MODULE.search(code)
    if sound:
        try:
            splitter.run()
        except UnsoundError:
            sound = False
    head, passed = splitter.header_comment, splitter.passed
    return SegmentedFile(splitter.pieces, code, plain, head, sound, frozenset(passed))


class _Segmenter:
    """Walks one file from boundary to boundary, keeping the stack of open scopes and conditions."""

    def __init__(self, lexed: LexedSource, code: bytes, table: MacroTable) -> None:
        self.lexed = lexed
        self.data = lexed.data
        self.code = code
        self.table = table
        self.pieces: list[SourceSegment] = []
        self.header_comment = b""
        self.pending_names: set[bytes] = set()  # masked macros among them
        self.pending = b""  # comments that stood before a scope was opened or closed
        self.pending_start = 0
        self.stack: list[Frame] = []
        self.passed = set(lexed.guard_directives)  # directives that need not be kept
        self.opened: list[tuple[int, int]] = []  # for each open scope: its offset, the pieces before it
        self.left: dict[int, Frame] = {}  # by condition: the scope in which it begins, that ended in it
        self.last_openers: dict[int, ConditionalGroup] = {}  # the groups that leave open what begins here
        self.mark = 0  # all before this offset belongs to something
        self.groups = {group.start: group for group in inner_first(lexed.groups)}
        self.group_starts = sorted(self.groups)

    def run(self) -> None:
        """Cut the whole file.

        Raises:
            UnsoundError: a closer without an opener, or the reverse.
        """
        directives = self.lexed.directives
        number = 0
        position = 0
        while True:
            match = NONBLANK.search(self.code, position)
            code_start = match.start() if match else len(self.code)
            while number < len(directives) and directives[number].start < position:
                number += 1
            if number < len(directives) and directives[number].start <= code_start:
                position = self._directive(directives[number])
            elif match:
                position = self._code(code_start)
            else:
                break
            position = max(position, self.mark)
        if self.stack:
            raise UnsoundError
        if self.pieces:  # of masked macros at the end: `weak_alias (a, b)`
            self.pieces[-1].leading_names |= frozenset(IDENTIFIER.findall(self.lexed.names, self.mark))

    # -- pieces --------------------------------------------------------------------------------------------

    def _skip(self, start: int, end: int) -> int:
        """Pass over what is no piece itself; comments before it wait for the next piece."""
        comments = self.data[self.mark : start]
        if self.mark == 0:
            comments = self._head(comments, is_directive=self.data[start : start + 1] in b"# \t")
        if comments.strip():
            if not self.pending:
                self.pending_start = start - len(comments.lstrip())
            self.pending += comments.strip(b"\n").rstrip() + b"\n"
            self.pending_names.update(IDENTIFIER.findall(self.lexed.names, self.mark, start))
        self.mark = end
        return end

    def _head(self, comments: bytes, *, is_directive: bool) -> bytes:
        """Keep the license and the file's own comment apart; what is left belongs to the first item."""
        cut = license_end = 0
        for match in _COMMENT.finditer(comments):
            following = NONBLANK.search(comments, match.end())
            gap = comments[match.end() : following.start() if following else len(comments)]
            if gap.count(b"\n") > 1 or (is_directive and following is None):
                cut = match.end()
            if _LICENSE.search(match.group()):
                license_end = match.end()
        cut = max(cut, license_end)
        self.header_comment = comments[license_end:cut].strip()
        return comments[cut:]

    def _line_start(self, start: int) -> int:
        """`start` moved left over the indentation of its line."""
        line = self.data.rfind(b"\n", 0, start) + 1
        return line if not self.data[line:start].strip() and line >= self.mark else start

    def _with_trailing_comment(self, end: int) -> int:
        """`end` moved right over a comment that ends on the same line."""
        line_end = self.data.find(b"\n", end)
        line_end = len(self.data) if line_end < 0 else line_end
        rest = self.data[end:line_end].strip()
        is_comment = rest.startswith(b"//") or rest.endswith(b"*/")
        return line_end if is_comment and not self.code[end:line_end].strip() else end

    def _add(
        self, start: int, end: int, sort: SegmentCategory, directives: tuple[Directive, ...] = ()
    ) -> int:
        line_start = self._line_start(start)
        self._skip(line_start, line_start)
        leading, self.pending = self.pending, b""
        names, self.pending_names = frozenset(self.pending_names), set()
        end = self._with_trailing_comment(end)
        leading_start = self.pending_start if leading else line_start
        stack = tuple(self.stack)
        self.pieces.append(
            SourceSegment(line_start, end, leading, leading_start, stack, sort, directives, names)
        )
        self.mark = end
        return end

    def _push(self, start: int, end: int) -> int:
        opener = self.data[start:end].strip()
        if (group := self.last_openers.pop(start, None)) is not None:
            opener = self.data[start : group.directives[-1].start].strip()
            opener, end = self.stack.pop().opener + b"\n" + opener + b"\n#endif", group.end
        self.stack.append(Scope(opener))
        self.opened.append((start, len(self.pieces)))
        return self._skip(start, end)

    def _pop(self, start: int, end: int) -> int:
        if self.stack and isinstance(self.stack[-1], Condition):
            return self._outside_scope(start, end)
        end = self._with_trailing_comment(end)
        closer = self.data[start:end].strip()
        scope = self.stack.pop() if self.stack else None
        if not isinstance(scope, Scope) or scope.opener.startswith(b"#") != closer.startswith(b"#"):
            raise UnsoundError
        scope.closer = closer
        opened, pieces = self.opened.pop()
        if len(self.pieces) == pieces and not closer.startswith(b"#"):
            return self._add(opened, end, "code")  # empty, but the name may be needed
        return self._skip(start, end)

    def _outside_scope(self, start: int, end: int) -> int:
        """The includes between a scope's end and its new beginning, both within one condition."""
        reopened = _REOPENED.match(self.code, start)
        inner = next((n for n in range(len(self.stack))[::-1] if isinstance(self.stack[n], Scope)), None)
        if inner is None:
            raise UnsoundError
        if reopened is None:
            return self._leave_scope(start, end, inner)
        opener = reopened.end() - 1
        self._skip(start, end)
        scope = self.stack.pop(inner)
        inside = self.lexed.directives_in(start, opener)
        nested, is_whole_part = conditional_groups(inside)
        if not is_whole_part:
            raise UnsoundError
        for part in [inside] if nested else [(each,) for each in inside]:
            self._add(part[0].start, part[-1].end, "directive", part)
        self.stack.insert(inner, scope)
        return self._skip(opener, self._word_end(opener))

    def _leave_scope(self, start: int, end: int, inner: int) -> int:
        """The end of a scope within a condition that began in it, and that ends in such a scope again."""
        *outer, scope, condition = self.stack
        if inner != len(outer) or not isinstance(condition, Condition) or len(condition.lines) > 1:
            raise UnsoundError
        self.left[condition.group] = scope
        self.opened.pop()
        self.stack = [*outer, Condition(condition.lines, condition.group)]
        return self._skip(start, end)

    def _end_in_scope(self, directive: Directive) -> int:
        """The `#endif` of such a condition."""
        if len(self.stack) < 2 or directive.keyword != b"endif":
            raise UnsoundError
        *outer, condition, scope = self.stack
        if not isinstance(condition, Condition) or self.left.pop(condition.group, None) != scope:
            raise UnsoundError
        self.stack = [*outer, Scope(scope.opener)]
        return self._skip(directive.start, directive.end)

    # -- directives ----------------------------------------------------------------------------------------

    def _directive(self, directive: Directive) -> int:
        keyword = directive.keyword
        is_once = keyword == b"pragma" and directive.argument == b"once"
        if directive.start in self.passed or is_once or not keyword:
            return self._skip(directive.start, directive.end)
        if directive.start in self.groups:
            return self._open_group(self.groups[directive.start])
        if keyword in ELSE_KEYWORDS:
            condition = self.stack[-1] if self.stack else None
            if isinstance(condition, Scope):
                return self._end_in_scope(directive)
            if condition is None or condition.group in self.left:
                raise UnsoundError
            self.stack.pop()
            if keyword != b"endif":
                self.stack.append(Condition((*condition.lines, directive.line), condition.group))
            return self._skip(directive.start, directive.end)
        return self._add(directive.start, directive.end, "directive", (directive,))

    def _open_group(self, group: ConditionalGroup) -> int:
        """An `#if` group at a boundary holds directives only, scopes only, whole items, or none of these."""
        start, end = group.start, group.end
        inside = self.lexed.directives_in(start, end)
        slices = [self.code[a:b] for a, b in group.branches()]
        changed = {d.macro for d in inside if d.keyword in (b"define", b"undef")}
        asked = {name for d in group.directives for name in IDENTIFIER.findall(d.argument)}
        is_empty = not any(part.strip() for part in slices)
        if is_empty and (end - start < _MOST_TOGETHER or changed & asked):
            return self._add(start, end, "directive", inside)
        whole = all(is_whole(part) for part in slices) and not self._is_head(group)
        scopes = [] if is_empty else [(SCOPE_ONLY, self._push), (CLOSE_ONLY, self._pop)]
        move = next((move for pattern, move in scopes if all(map(pattern.match, slices))), None)
        holds_includes = any(directive.keyword in INCLUDE_KEYWORDS for directive in inside)
        if holds_includes or not (whole or move):
            after = self._open_unbalanced(group)
            if after is not None:
                return after
        if move is not None:
            return move(start, end)
        return self._open_condition(group, changed & asked, inside) if whole else self._add_code(start, start)

    def _is_head(self, group: ConditionalGroup) -> bool:
        """True if the body of a function follows: `#else`, `int g(void);`, `int f(void)`, `#endif`, `{`."""
        after = NONBLANK.search(self.code, group.end)
        return after is not None and after.group() == b"{"

    def _open_condition(
        self, group: ConditionalGroup, changed: Set[bytes], inside: tuple[Directive, ...]
    ) -> int:
        """A group of whole items; `changed` are the macros of its own conditions that it defines."""
        start, line = group.start, group.directives[0].line
        if changed:
            # `#ifndef X` around a part of a file that defines X: within one document it always holds.
            macro, condition = group.guard
            is_guard = len(group.directives) == 2 and changed == {macro}
            if not is_guard or defined_in(group, macro, self.lexed) is None:
                return self._add(start, group.end, "region", inside)
            self.passed.add(start)
            if not condition:
                self.passed.add(group.directives[-1].start)
                return self._skip(start, group.directives[0].end)
            line = b"#if " + condition
        self.stack.append(Condition((line,), start))
        return self._skip(start, group.directives[0].end)

    def _open_unbalanced(self, group: ConditionalGroup) -> int | None:
        """A group that first closes a scope of an equal condition, or opens one last, besides whole items.

        None where it is none of these.
        """
        line = group.directives[0].line
        (start, end), *others = group.branches()
        closer = _FIRST_CLOSER.match(self.code, start, end)
        opener = _LAST_OPENER.search(self.code, start, end)
        first, last = closer.end() if closer else start, opener.start() if opener else end
        if others or not (closer or opener) or not is_whole(self.code[first:last]):
            return None
        if closer:
            scope = self.stack[-1] if self.stack else None
            if not isinstance(scope, Scope) or [d.line for d in lex(scope.opener).directives[:1]] != [line]:
                return None
            scope.closer = line + b"\n" + closer.group().strip() + b"\n#endif"
            self.stack.pop()
            self.opened.pop()
        if opener:
            self.last_openers[last] = group
        self.stack.append(Condition((line,), group.start))
        return self._skip(group.start, first)

    # -- code ----------------------------------------------------------------------------------------------

    def _code(self, start: int) -> int:
        first = self.code[start : start + 1]
        if first in (b"}", CLOSE):
            return self._pop(start, self._word_end(start))
        if start in self.last_openers or first == OPEN:
            return self._push(start, self._word_end(start))
        match = _INLINE_MACRO.match(self.code, start)
        if match:
            return self._push(start, self._word_end(match.end() - 1))
        masked = NONBLANK.search(self.lexed.names, self.mark, start)
        if first == b";":  # `FILE_ID("main.c");` of a macro that is empty in some builds is an item
            after = start + 1
            return self._add(masked.start(), after, "code", ()) if masked else self._skip(start, after)
        match = _SCOPE.match(self.code, start)
        if match:
            return self._push(start, match.end())
        return self._add_code(masked.start() if masked else start, start)

    def _add_code(self, start: int, code_start: int) -> int:
        """One item, with the masked macros before it and the directives inside it."""
        end = self._item_end(code_start)
        return self._add(start, end, "code", self.lexed.directives_in(start, end))

    def _word_end(self, start: int) -> int:
        """Offset after the brace or macro that starts here: `BEGIN_NAMESPACE`, `NAMESPACE_BEGIN(detail)`."""
        match = IDENTIFIER.match(self.lexed.names, start)
        if match is None:
            return start + 1
        end = match.end()
        return closing(self.lexed.names, end) if _ARGUMENTS.match(self.lexed.names, end) else end

    def _item_end(self, start: int) -> int:
        """Offset after the item that starts at `start`, never inside an `#if` group that it opened."""
        end = bracket_end(self.code, start, self.table)
        low = bisect.bisect_left(self.group_starts, start)
        while low < len(self.group_starts) and self.group_starts[low] < end:
            group = self.groups[self.group_starts[low]]
            if end < group.end:
                end = bracket_end(self.code, group.end, self.table) if self._is_head(group) else group.end
            low += 1
        return end
