"""Functions with the comment directly before them: pairs for learning to write a body from its description.

A pair is three stretches of a document: the comment, the signature (with `template <...>` and masked macros
such as export attributes) and the body in braces. Only offsets are kept, so that no text is stored twice.
A comment counts when it ends on the line before the signature and says something: licenses, separators,
commented-out code and remarks below three words are passed over.
"""

from __future__ import annotations

import re
import textwrap
from array import array
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import tree_sitter

from cpplm.core.spans import DOCSTRINGS_COLUMN, SPANS_COLUMN
from cpplm.cpp.syntax_spans import FunctionNode, SpanPredicate

# All columns that are no provenance.
_CONTENTS = frozenset({"text", SPANS_COLUMN, DOCSTRINGS_COLUMN})
MIN_WORDS = 3
MAX_DOC_BYTES = 4_000
MAX_BODY_BYTES = 10_000
# Six offsets of each pair, in the order of `DocPair`, as int32 in a row.
PackedPairs = bytes

_COMMENT = re.compile(rb"//(?:\\\n|[^\n])*|/\*.*?\*/", re.DOTALL)
_DIRECTIVE = re.compile(rb"^[ \t]*#", re.MULTILINE)
_LICENSE = re.compile(rb"copyright|licen[sc]e|warrant|SPDX-", re.IGNORECASE)
# Letters of one- and two-byte scripts make words; every character of three bytes or more counts as one.
_WORD = re.compile(rb"(?:[A-Za-z]|[\xc3-\xdf][\x80-\xbf])+|[\xe1-\xf4][\x80-\xbf]{2,3}")
_LINE_MARK = re.compile(r"^[ \t]*//[/!]?<?", re.MULTILINE)
_RULE = re.compile(r"[\W_]{3,}")  # ---- ==== //////
_RULE_MARKS = frozenset("-=*#~+/_")
# Examples in a description, and notes to tools.
_ASIDE = re.compile(
    r"[\\@]code\b.*?[\\@]endcode\b|```.*?```|\b(?:NOLINT|LCOV_|clang-format|cppcheck|IWYU)[^\n]*", re.DOTALL
)
_CODE_LINE = re.compile(
    r".*[;{}]\s*(?:(?://|/\*).*)?"
    r"|\s*#\s*(?:if|ifdef|ifndef|define|include|elif|else|endif)\b.*"
    r"|\s*(?:if|for|while|switch)\s*\(.*\)\s*"
    r"|\s*(?:else|public:|private:|protected:)\s*"
)
# Prose may quote some code, and code may begin with a line of prose.
_CODE_SHARE, _CODE_SHARE_AFTER_PROSE = 0.5, 0.7


class DocPair(NamedTuple):
    """One documented function, as offsets in a text; ends are exclusive."""

    doc_start: int
    doc_end: int
    signature_start: int
    signature_end: int
    body_start: int
    body_end: int


def find_doc_pairs(
    functions: Iterable[FunctionNode], text: bytes, plain: bytes, *, shift: int, whole: SpanPredicate | None
) -> PackedPairs:
    """The documented functions of a piece by offsets in `text`, in order; arguments as of `read_syntax`."""
    pairs: list[DocPair] = []
    for function in functions:
        before = code_end(plain, function.start)
        gap = text[before + shift if before else 0 : function.start + shift]
        if b"/" not in gap or function.node.has_error:  # nearly all end here: no comment
            continue
        pair = _pair(function.node, gap, plain, function.start + shift, shift, follows_code=before > 0)
        if pair is None or (whole and not whole(pair.signature_start - shift, pair.body_end - shift)):
            continue
        if not _DIRECTIVE.search(text, pair.signature_start, pair.signature_end) and is_description(
            text[pair.doc_start : pair.doc_end]
        ):
            pairs.append(pair)
    return array("i", [offset for pair in sorted(pairs) for offset in pair]).tobytes()


def _pair(
    node: tree_sitter.Node, gap: bytes, plain: bytes, gap_end: int, shift: int, *, follows_code: bool
) -> DocPair | None:
    """A function with the comment that ends the gap before it; None when there is none, or no body."""
    body = node.child_by_field_name("body")
    if body is None or body.type != "compound_statement":  # `try` as a body
        return None
    start, end = body.start_byte, body.end_byte
    if end - start > MAX_BODY_BYTES or not plain[start:end].strip(b"{} \t\n"):
        return None
    comment = _comment_before(gap, follows_code=follows_code)
    if comment is None:
        return None
    doc_start, doc_end, signature_start = (gap_end - len(gap) + offset for offset in comment)
    signature_end = shift + len(plain[:start].rstrip())
    return DocPair(doc_start, doc_end, signature_start, signature_end, shift + start, shift + end)


def code_end(plain: bytes, end: int, floor: int = 0) -> int:
    """Offset after the last byte of code between two offsets; `floor` when there is none."""
    window = 256  # a class may be long, and the comment is near
    while True:
        start = max(floor, end - window)
        code = plain[start:end].rstrip()
        if code or start == floor:
            return start + len(code)
        window *= 4


def _comment_before(gap: bytes, *, follows_code: bool) -> tuple[int, int, int] | None:
    """The comment that ends a gap between two pieces of code: its start, its end, where the code goes on."""
    comments = [match.span() for match in _COMMENT.finditer(gap)]
    if follows_code:  # what stands on the same line is about the code before
        line_end = gap.find(b"\n")
        comments = [span for span in comments if span[0] > line_end >= 0]
    if not comments:
        return None
    start, end = comments[-1]
    after = gap[end:]
    rest = after.lstrip()
    if b"#" in rest or after[: len(after) - len(rest)].count(b"\n") != 1:
        return None
    if gap[start : start + 2] == b"//":
        for earlier, earlier_end in reversed(comments[:-1]):
            between = gap[earlier_end:start]
            if gap[earlier : earlier + 2] != b"//" or between.strip() or between.count(b"\n") != 1:
                break
            start = earlier
    if gap[gap.rfind(b"\n", 0, start) + 1 : start].strip():  # it belongs to a directive or a macro
        return None
    return start, end, len(gap) - len(rest)


def is_description(comment: bytes) -> bool:
    """True if a comment, markers included, says something about code in words."""
    if len(comment) > MAX_DOC_BYTES or _LICENSE.search(comment):
        return False
    prose = _ASIDE.sub("", clean_comment(comment.decode("utf-8", "replace")))
    lines = [line for line in prose.split("\n") if line.strip()]
    if len(_WORD.findall(prose.encode())) < MIN_WORDS:
        return False
    code = [_CODE_LINE.fullmatch(line) is not None for line in lines]
    return sum(code) <= len(code) * (_CODE_SHARE if code[0] else _CODE_SHARE_AFTER_PROSE)


def clean_comment(comment: str) -> str:
    """The words of a comment: without its markers, rules and banners, indented as they were."""
    text = comment.strip()
    first: list[str] = []
    if text.startswith("//"):
        lines = _LINE_MARK.sub("", text).split("\n")
    else:
        opening, *lines = text[2:].removesuffix("*/").rstrip("*").split("\n")
        first = [opening.lstrip("*!<").strip()]
        if all(line.lstrip().startswith("*") for line in lines if line.strip()):
            lines = [line.lstrip().lstrip("*") for line in lines]
    first, lines = _without_rules(first), _without_rules(lines)
    return "\n".join([*first, textwrap.dedent("\n".join(lines))]).strip("\n")


def _without_rules(lines: list[str]) -> list[str]:
    return ["" if _is_rule(line.strip()) else line.rstrip() for line in lines]


def _is_rule(line: str) -> bool:
    """A line of punctuation, or a heading between two."""
    return _RULE.fullmatch(line) is not None or (
        len(line) > 6 and _RULE_MARKS.issuperset(line[:3]) and _RULE_MARKS.issuperset(line[-3:])
    )


def shift_pairs(parts: Iterable[tuple[PackedPairs, int]]) -> list[dict[str, int]]:
    """The pairs of a document, as its row keeps them; of each item, with where its text begins, in bytes."""
    return [
        DocPair(*pair)._asdict()
        for pairs, offset in parts
        if pairs
        for pair in (np.frombuffer(pairs, dtype=np.int32).reshape(-1, 6) + offset).tolist()
    ]


def export_pairs(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pairs of a corpus's rows as texts, each once, with the provenance of the first row that has it.

    Args:
        rows: with the columns `text` and `docstrings`; all others but `spans` are taken as provenance.

    Yields:
        `docstring` without markers, `signature`, `body`, and the row's other columns.
    """
    seen: set[bytes] = set()
    for row in rows:
        text = row["text"].encode()
        provenance = {name: value for name, value in row.items() if name not in _CONTENTS}
        for offsets in row[DOCSTRINGS_COLUMN]:
            pair = DocPair(**offsets)
            pair_text = text[pair.doc_start : pair.body_end]
            digest = blake2b(pair_text, digest_size=16).digest()
            if digest in seen:
                continue
            seen.add(digest)
            yield {
                "docstring": clean_comment(text[pair.doc_start : pair.doc_end].decode()),
                "signature": text[pair.signature_start : pair.signature_end].decode(),
                "body": text[pair.body_start : pair.body_end].decode(),
                **provenance,
            }
