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

from cpplm.cpp.lexer import (
    ELSE_KEYWORDS,
    IDENTIFIER,
    ConditionalGroup,
    Directive,
    LexedSource,
    conditional_groups,
    defined_in,
)
from cpplm.cpp.macros import (
    CLOSE,
    CLOSE_ONLY,
    OPEN,
    SCOPE_ONLY,
    MacroTable,
    closing,
    inner_first,
    is_whole,
    mask,
)
from cpplm.cpp.old_style_parameters import declares_parameter
from cpplm.cpp.segments import Condition, Frame, Scope, SegmentCategory, SegmentedFile, SourceSegment

# An `#if` group of directives only is one item, unless it is longer than this: parts of it may do then.
_MOST_TOGETHER = 2_000
_COMMENT = re.compile(rb"/\*.*?\*/|//[^\n]*", re.DOTALL)
_LICENSE = re.compile(rb"copyright|licen[sc]e|warrant", re.IGNORECASE)
_NONBLANK = re.compile(rb"\S")
_BRACKET = re.compile(rb"[{}()\[\];\x02]")
_NAMESPACE = re.compile(rb"(?:inline\s+)?namespace\b[^;{}=()]*\{")
# Of a scope that is left for some directives only: `END_NS`, `#include <vector>`, `BEGIN_NS`.
_REOPENED = re.compile(rb"[}\x02]\s*(?:\x01|(?:inline\s+)?namespace\b[^;{}=()]*\{)")
_INLINE_MACRO = re.compile(rb"inline\s+\x01")
_EXTERN_C = re.compile(rb'extern\s*"\s*"\s*\{')
_ARGUMENTS = re.compile(rb"\s*\(")
_CALL = re.compile(rb"([A-Za-z_]\w*)\s*\(")
_CLASS_HEAD = re.compile(rb"\b(?:class|struct|union|enum)\b[^()=;]*\Z")
_REQUIRES = re.compile(rb"\brequires\s*(?:\([^{}]*\))?\s*\Z")
_DECLARATION = re.compile(
    rb"(?:class|struct|union|enum|template|namespace|static|inline|using|typedef|extern|constexpr|explicit|const|"
    rb"void|bool|char|int|long|short|unsigned|signed|float|double|auto|virtual|std|[A-Z][A-Z0-9_]+\s*\()\b"
)
# A unit of a module: the order of its parts is the language's, and what it imports is not known.
_MODULE = re.compile(rb"^(?:export[ \t]+)?module\b[ \t]*[\w.:]*[ \t]*;", re.MULTILINE)


class _UnsoundError(Exception):
    """Brackets and conditionals do not nest."""


def segment_file(lexed: LexedSource, table: MacroTable) -> SegmentedFile:
    """Cut a file into its top-level pieces."""
    code, plain = mask(lexed, table)
    splitter = _Segmenter(lexed, code, table)
    sound = lexed.balanced and not _MODULE.search(code)
    if sound:
        try:
            splitter.run()
        except _UnsoundError:
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
        self.mark = 0  # all before this offset belongs to something
        self.groups = {group.start: group for group in inner_first(lexed.groups)}
        self.group_starts = sorted(self.groups)
        self.directive_starts = [directive.start for directive in lexed.directives]

    def run(self) -> None:
        """Cut the whole file.

        Raises:
            _UnsoundError: a closer without an opener, or the reverse.
        """
        directives = self.lexed.directives
        number = 0
        position = 0
        while True:
            match = _NONBLANK.search(self.code, position)
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
            raise _UnsoundError

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
            following = _NONBLANK.search(comments, match.end())
            gap = comments[match.end() : following.start() if following else len(comments)]
            if gap.count(b"\n") > 1 or (is_directive and following is None):
                cut = match.end()
            if _LICENSE.search(match.group()):
                license_end = match.end()
        cut = max(cut, license_end)
        self.header_comment = comments[license_end:cut].strip()
        return comments[cut:]

    def _leading(self, start: int) -> tuple[bytes, frozenset[bytes]]:
        """The comments since the last piece, and the masked macros among them."""
        self._skip(start, start)
        leading, self.pending = self.pending, b""
        names, self.pending_names = frozenset(self.pending_names), set()
        return leading, names

    def _line_start(self, start: int) -> int:
        """`start` moved left over the indentation of its line."""
        line = self.data.rfind(b"\n", 0, start) + 1
        return line if not self.data[line:start].strip() and line >= self.mark else start

    def _with_trailing_comment(self, end: int) -> int:
        """`end` moved right over a comment that ends on the same line."""
        line_end = self.data.find(b"\n", end)
        line_end = len(self.data) if line_end < 0 else line_end
        rest = self.data[end:line_end].strip()
        if self.code[end:line_end].strip() or not rest:
            return end
        return line_end if rest.startswith(b"//") or rest.endswith(b"*/") else end

    def _add(
        self, start: int, end: int, sort: SegmentCategory, directives: tuple[Directive, ...] = ()
    ) -> int:
        line_start = self._line_start(start)
        leading, names = self._leading(line_start)
        end = self._with_trailing_comment(end)
        leading_start = self.pending_start if leading else line_start
        stack = tuple(self.stack)
        self.pieces.append(
            SourceSegment(line_start, end, leading, leading_start, stack, sort, directives, names)
        )
        self.mark = end
        return end

    def _push(self, start: int, end: int) -> int:
        self.stack.append(Scope(self.data[start:end].strip()))
        self.opened.append((start, len(self.pieces)))
        return self._skip(start, end)

    def _pop(self, start: int, end: int) -> int:
        if self.stack and isinstance(self.stack[-1], Condition):
            return self._outside_scope(start, end)
        end = self._with_trailing_comment(end)
        closer = self.data[start:end].strip()
        scope = self.stack.pop() if self.stack else None
        if not isinstance(scope, Scope) or scope.opener.startswith(b"#") != closer.startswith(b"#"):
            raise _UnsoundError
        scope.closer = closer
        opened, pieces = self.opened.pop()
        if len(self.pieces) == pieces and not closer.startswith(b"#"):
            return self._add(opened, end, "code")  # empty, but the name may be needed
        return self._skip(start, end)

    def _outside_scope(self, start: int, end: int) -> int:
        """The includes between a scope's end and its new beginning, both within one condition."""
        reopened = _REOPENED.match(self.code, start)
        inner = next((n for n in range(len(self.stack))[::-1] if isinstance(self.stack[n], Scope)), None)
        if reopened is None or inner is None:
            raise _UnsoundError
        opener = reopened.end() - 1
        self._skip(start, end)
        scope = self.stack.pop(inner)
        inside = tuple(d for d in self.lexed.directives if start <= d.start < opener)
        nested, is_whole_part = conditional_groups(inside)
        if not is_whole_part:
            raise _UnsoundError
        if nested:
            self._add(inside[0].start, inside[-1].end, "directives", inside)
        for directive in () if nested else inside:
            self._add(directive.start, directive.end, "directive", (directive,))
        self.stack.insert(inner, scope)
        return self._skip(opener, self._word_end(opener))

    # -- directives ----------------------------------------------------------------------------------------

    def _directive(self, directive: Directive) -> int:
        keyword = directive.keyword
        is_once = keyword == b"pragma" and directive.argument == b"once"
        if directive.start in self.passed or is_once or not keyword:
            return self._skip(directive.start, directive.end)
        if directive.start in self.groups:
            return self._open_group(self.groups[directive.start])
        if keyword in ELSE_KEYWORDS:
            condition = self.stack.pop() if self.stack else None
            if not isinstance(condition, Condition):
                raise _UnsoundError
            if keyword != b"endif":
                self.stack.append(Condition((*condition.lines, directive.line), condition.group))
            return self._skip(directive.start, directive.end)
        return self._add(directive.start, directive.end, "directive", (directive,))

    def _open_group(self, group: ConditionalGroup) -> int:
        """An `#if` group at a boundary holds directives only, scopes only, whole items, or none of these."""
        start, end = group.start, group.end
        inside = tuple(d for d in self.lexed.directives if start <= d.start < end)
        slices = [self.code[a:b] for a, b in group.branches()]
        changed = {d.macro for d in inside if d.keyword in (b"define", b"undef")}
        asked = {name for d in group.directives for name in IDENTIFIER.findall(d.argument)}
        is_empty = not any(part.strip() for part in slices)
        if is_empty and (end - start < _MOST_TOGETHER or changed & asked):
            return self._add(start, end, "directives", inside)
        for pattern, move in ((SCOPE_ONLY, self._push), (CLOSE_ONLY, self._pop)):
            if not is_empty and all(pattern.match(part) for part in slices):
                return move(start, end)
        if not all(is_whole(part) for part in slices):
            return self._add_code(start, start)
        line = group.directives[0].line
        if changed & asked:
            # `#ifndef X` around a part of a file that defines X: within one document it always holds.
            macro, condition = group.guard
            is_guard = len(group.directives) == 2 and changed & asked == {macro}
            if not is_guard or defined_in(group, macro, self.lexed.directives) is None:
                return self._add(start, end, "region", inside)
            self.passed.add(start)
            if not condition:
                self.passed.add(group.directives[-1].start)
                return self._skip(start, group.directives[0].end)
            line = b"#if " + condition
        self.stack.append(Condition((line,), start))
        return self._skip(start, group.directives[0].end)

    # -- code ----------------------------------------------------------------------------------------------

    def _code(self, start: int) -> int:
        first = self.code[start : start + 1]
        if first in (b"}", CLOSE):
            return self._pop(start, self._word_end(start))
        if first == OPEN:
            return self._push(start, self._word_end(start))
        match = _INLINE_MACRO.match(self.code, start)
        if match:
            return self._push(start, self._word_end(match.end() - 1))
        masked = _NONBLANK.search(self.lexed.names, self.mark, start)
        if first == b";":  # `FILE_ID("main.c");` of a macro that is empty in some builds is an item
            after = start + 1
            return self._add(masked.start(), after, "code", ()) if masked else self._skip(start, after)
        for pattern in (_NAMESPACE, _EXTERN_C):
            match = pattern.match(self.code, start)
            if match:
                return self._push(start, match.end())
        return self._add_code(masked.start() if masked else start, start)

    def _add_code(self, start: int, code_start: int) -> int:
        """One item, with the masked macros before it and the directives inside it."""
        end = self._item_end(code_start)
        inside = self.lexed.directives[
            bisect.bisect_left(self.directive_starts, start) : bisect.bisect_left(self.directive_starts, end)
        ]
        return self._add(start, end, "code", tuple(inside))

    def _word_end(self, start: int) -> int:
        """Offset after the brace or macro that starts here: `BEGIN_NAMESPACE`, `NAMESPACE_BEGIN(detail)`."""
        match = IDENTIFIER.match(self.lexed.names, start)
        if match is None:
            return start + 1
        end = match.end()
        return closing(self.lexed.names, end) if _ARGUMENTS.match(self.lexed.names, end) else end

    def _item_end(self, start: int) -> int:
        """Offset after the item that starts at `start`, never inside an `#if` group that it opened."""
        end = self._bracket_end(start)
        low = bisect.bisect_left(self.group_starts, start)
        while low < len(self.group_starts) and self.group_starts[low] < end:
            group_end = self.groups[self.group_starts[low]].end
            end = max(end, group_end)
            low += 1
        return end

    def _bracket_end(self, start: int) -> int:
        statement_end = self._statement_macro_end(start)
        if statement_end is not None:
            return statement_end
        depth = 0
        requires = False
        for match in _BRACKET.finditer(self.code, start):
            byte = match.group()
            if byte in b"{([":
                if depth == 0 and byte == b"{":
                    requires = bool(_REQUIRES.search(self.code, start, match.start()))
                depth += 1
            elif byte == b";":
                if depth == 0 and not declares_parameter(self.code, start, match.start()):
                    return match.end()
            elif depth == 0:  # the closer of the scope around the item, which has no semicolon
                if match.start() == start:
                    raise _UnsoundError
                return match.start()
            else:
                depth -= 1
                if depth == 0 and byte == b"}" and not requires:
                    end = self._end_after_brace(start, match.end())
                    if end is not None:
                        return end
        if depth:
            raise _UnsoundError
        return len(self.code.rstrip())

    def _end_after_brace(self, start: int, after: int) -> int | None:
        """The end of the item when a brace at its own level closed before `after`; None when it goes on."""
        following = _NONBLANK.search(self.code, after)
        if following is None:
            return after
        position = following.start()
        byte = following.group()
        head = self.code[start : self.code.index(b"{", start)]
        if byte == b";":
            return position + 1
        if byte in b",=(.[{|&?:+-*/<>)" and not head.rstrip().endswith(b")"):
            return None
        if byte in b",{":
            return None
        if self.code.startswith(b"catch", position):
            return None
        return None if _CLASS_HEAD.search(head) and byte not in b"}" + OPEN + CLOSE else after

    def _statement_macro_end(self, start: int) -> int | None:
        """A call of a statement macro without a semicolon ends at its parenthesis."""
        match = _CALL.match(self.code, start)
        if not match:
            return None
        name = match.group(1)
        known = self.table.mask_of(name) == "statement"
        if not known and not name.isupper():
            return None
        position = closing(self.code, match.end() - 1)
        following = _NONBLANK.search(self.code, position)
        if following is None or following.group() in b"}" + CLOSE:
            return position
        if following.group() in b";{:=,(":
            return None
        on_new_line = b"\n" in self.code[position : following.start()]
        if known or (on_new_line and _DECLARATION.match(self.code, following.start())):
            return position
        return None
