"""`fill`: holes that matter: with nothing, or something trivial, in them the document does not compile.

Most programs still compile without one of their lines, and all without a function's body, so that "it
compiles" says something of other holes only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from cpplm.core.shards import Split
from cpplm.core.spans import SpanKind
from cpplm.cpp.parser import grammar
from cpplm.cpp.syntax import parse
from cpplm.cpp.syntax_spans import find_spans, join_spans, whole_groups
from cpplm.judge.scoring import find_forbidden, is_empty, open_braces
from cpplm.tasks.grader import Diagnostic, Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import CORRECT, GENERAL_CHEATS, MALFORMED, PARSES, Answer, Grade, TaskKind, filled
from cpplm.tasks.mutations import line_tokens
from cpplm.tasks.source import SourceDocument, TaskSource, excerpt

PER_DOCUMENT = 6
_BATCH = 24
_HOLE_BYTES = range(12, 160)
_BEFORE, _AFTER = 800, 400
_NULL = {
    "null": "", "null statement": ";", "null block": "{}", "zero": "0", "return value": "return {};",
    "no arguments": "()", "zero in parentheses": "(0)",
}  # fmt: skip
"""Fillings that say nothing: with each of them the document must not compile."""
# Not conditions: nearly every one compiles as `(0)`, which is the first thing that a policy finds.
_KINDS = {SpanKind.STATEMENT: "statement", SpanKind.ARGUMENTS: "arguments"}


class FillKind(TaskKind):
    """Holes for models that were trained to fill in the middle; there is no conversation."""

    name = "fill"
    max_new_tokens = 64

    def build(self, source: TaskSource, split: Split, count: int) -> Iterator[TaskItem]:
        """Statements and arguments of documents that compile."""
        documents, made = source.compiling(split), 0
        while made < count and (batch := list(islice(documents, _BATCH))):
            items = [item for document in batch for item in _holes(document, source, split)]
            for null in _NULL.values():
                empty = [(*filled(item, Answer(null))[:2], "") for item in items]
                found = source.grader.compile(empty, "empty holes")
                items = [item for item, each in zip(items, found, strict=True) if not each.compiles]
            yield from items[: count - made]
            made += len(items)

    def cut(self, text: str) -> str:
        """All of it: the model ends it itself."""
        return text

    def is_complete(self, text: str) -> bool:
        """True where it is far too long."""
        return len(text) > 4 * _HOLE_BYTES.stop

    def grade(self, answers: Sequence[tuple[TaskItem, Answer]], grader: Grader) -> list[Grade]:
        """Compile the documents with the answers in them, but for those that are worth nothing anyway."""
        grades = [_refuse(item, answer.text) for item, answer in answers]
        pairs = [pair for pair, refused in zip(answers, grades, strict=True) if refused is None]
        found = iter(grader.compile([filled(*pair) for pair in pairs], "compile fillings"))
        return [
            _grade(item, answer.text, next(found)) if refused is None else refused
            for (item, answer), refused in zip(answers, grades, strict=True)
        ]

    def cheats(self, item: TaskItem) -> Mapping[str, str]:
        """Null fillings, and those of every task."""
        return GENERAL_CHEATS | _NULL | {
            "endless loop": "for (;;) {}", "exit": "__builtin_exit(0);", "trap": "__builtin_trap();",
            "comment and semicolon": "/* x */;", "overlong": (item.answer + "\n") * 8,
        }  # fmt: skip


def _refuse(item: TaskItem, written: str) -> Grade | None:
    """The grade of an answer that needs no compiler, if it is one."""
    if is_empty(written) or find_forbidden(written) or open_braces(written):
        return Grade(MALFORMED, "malformed")
    return Grade(MALFORMED, "overlong") if len(written) > 4 * len(item.answer) + 80 else None


def _grade(item: TaskItem, written: str, verdict: Diagnostic) -> Grade:
    exact = line_tokens(written) == line_tokens(item.answer)
    if verdict.compiles:
        return Grade(CORRECT, "compiles", exact)
    return Grade(PARSES, "compile error", exact, verdict.certain)


def _holes(document: SourceDocument, source: TaskSource, split: Split) -> list[TaskItem]:
    """Some places of a document in random order, none inside another."""
    data = document.text.encode()
    lexed, root = parse(data, document.language)
    spans, _ = find_spans(root, grammar(document.language), whole=whole_groups(lexed.directives, 0))
    places = [
        (start, end, _KINDS[SpanKind(kind)])
        for start, end, kind in join_spans([(spans, 0)]).tolist()
        if SpanKind(kind) in _KINDS and end - start in _HOLE_BYTES
    ]
    rng = source.rng(f"fill {document.id}")
    chosen: list[TaskItem] = []
    taken: list[tuple[int, int]] = []
    for start, end, kind in rng.sample(places, len(places)):
        if len(chosen) == PER_DOCUMENT:
            break
        if any(start < last and first < end for first, last in taken):
            continue
        taken.append((start, end))
        before, middle, after = (part.decode() for part in (data[:start], data[start:end], data[end:]))
        prefix, suffix = excerpt(document.text, len(before), len(before) + len(middle), _BEFORE, _AFTER)
        chosen.append(
            TaskItem(
                kind=FillKind.name, level=kind, split=split, group=document.id, project=document.project,
                license=document.license, prompt="", answer=middle, prefix=prefix, suffix=suffix,
                data={"before": before, "after": after, "language": document.language,
                      "standard": document.standard},
            )
        )  # fmt: skip
    return chosen
