"""`fix`: one broken line and the compiler's message about it; the answer is the line as it should be.

Success is more than compiling, which deleting the line often achieves: at most four tokens differ from the
broken line (BIFI's rule, arXiv 2106.06600), and its words (names, numbers, texts) are those of the original.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from rapidfuzz.distance import Levenshtein

from cpplm.core.shards import Split
from cpplm.judge.scoring import find_forbidden
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import CORRECT, GENERAL_CHEATS, MALFORMED, PARSES, Answer, Grade, TaskKind, filled
from cpplm.tasks.mutations import line_tokens, mutate, words_of
from cpplm.tasks.source import SourceDocument, TaskSource, excerpt

MAX_TOKEN_EDITS = 4
PER_DOCUMENT = 8  # before the next one; again, once all were used
_FRAMED = re.compile(r"Line \d+: `(.*)`")
_BATCH = 24  # documents whose mutants are compiled together
_LINE_CHARS = range(8, 110)
_BEFORE, _AFTER = 200, 100  # characters of code around the line; what they cost is answers not learned


@dataclass(frozen=True)
class _Mutant:
    document: SourceDocument
    kind: str
    start: int
    """Of the line's code, in characters, behind its indentation."""
    line: str
    broken: str

    @property
    def number(self) -> int:
        """Of the line, from 1."""
        return self.document.text.count("\n", 0, self.start) + 1

    @property
    def text(self) -> str:
        """The document with the broken line."""
        text = self.document.text
        return text[: self.start] + self.broken + text[self.start + len(self.line) :]


class FixKind(TaskKind):
    """Broken lines with the compiler's message."""

    name = "fix"
    max_new_tokens = 64

    def build(self, source: TaskSource, split: Split, count: int) -> Iterator[TaskItem]:
        """Lines of documents that compile, broken so that the compiler's first error is at them."""
        made = 0
        of_documents = _mutants(source.compiling(split), source)
        while made < count and (batch := list(islice(of_documents, _BATCH))):
            mutants = [mutant for of_document in batch for mutant in of_document]
            found = source.grader.compile(
                [(each.text, each.document.language, each.document.standard) for each in mutants],
                "break lines",
            )
            for mutant, verdict in zip(mutants, found, strict=True):
                late = mutant.number + (mutant.kind == "dropped punctuation")  # it is missed a line later
                if not verdict.compiles and mutant.number <= verdict.line <= late and made < count:
                    made += 1
                    yield _item(self.name, mutant, f"error: {verdict.error}\n", split)

    def cut(self, text: str) -> str:
        """The first line that is not blank, out of its frame if it has one, without layout around it."""
        line = text.strip("\n").partition("\n")[0].strip()
        framed = _FRAMED.fullmatch(line)
        return framed[1].strip() if framed else line

    def is_complete(self, text: str) -> bool:
        """True behind the first line."""
        return "\n" in text.lstrip("\n")

    def grade(self, answers: Sequence[tuple[TaskItem, Answer]], grader: Grader) -> list[Grade]:
        """Compile those that are like the broken line, and have the words of the original."""
        grades = [_look(item, answer.text) for item, answer in answers]
        places = [place for place, grade in enumerate(grades) if grade.outcome == "candidate"]
        repaired = [filled(*answers[place]) for place in places]
        found = grader.compile(repaired, "compile repairs")
        for place, verdict in zip(places, found, strict=True):
            worth = (CORRECT, "repaired") if verdict.compiles else (PARSES, "compile error")
            grades[place] = Grade(*worth, grades[place].exact, verdict.certain)
        return grades

    def cheats(self, item: TaskItem) -> Mapping[str, str]:
        """Copies, deletions, neighbours, and those of every task."""
        broken = item.data["broken"]
        before, after = (item.data[name].split("\n") for name in ("before", "after"))
        tokens = line_tokens(broken)
        return GENERAL_CHEATS | {
            "copy": broken,
            "line before": self.cut(before[-2] if len(before) > 1 else ""),
            "line after": self.cut(after[1] if len(after) > 1 else ""),
            "commented out": f"// {item.answer}",
            "first half": " ".join(tokens[: len(tokens) // 2]),
            "constant": "return 0;",
            "overlong": f"{item.answer} {item.answer} {item.answer}",
            "number for name": re.sub(r"[A-Za-z_]\w{3,}", "0", broken, count=1),
        }


class DenoiseKind(FixKind):
    """Broken lines as those of `fix`, without compiling them, and so without a message: cheap, and many.

    For training beside `fix`, as Yasunaga & Liang train on corrupted programs first (arXiv 2005.10636): small
    models learn to copy all but the error from them.
    """

    name = "denoise"

    def build(self, source: TaskSource, split: Split, count: int) -> Iterator[TaskItem]:
        """Lines of documents, each of the same text once."""
        seen: set[str] = set()
        for mutant in chain.from_iterable(_mutants(source.standalone(split), source)):
            if len(seen) == count:
                return
            if mutant.line not in seen:
                seen.add(mutant.line)
                yield _item(self.name, mutant, "", split)

    def grade(self, answers: Sequence[tuple[TaskItem, Answer]], grader: Grader) -> list[Grade]:
        """The original line alone is right: whether another one compiles was not looked at."""
        grades = [_look(item, answer.text) for item, answer in answers]
        return [
            Grade(CORRECT, "repaired", exact=True) if grade.exact
            else replace(grade, outcome="another repair") if grade.outcome == "candidate" else grade
            for grade in grades
        ]  # fmt: skip


def _mutants(documents: Iterable[SourceDocument], source: TaskSource) -> Iterator[list[_Mutant]]:
    """Some broken lines of each document, then some more of each, until all lines were broken once."""
    waiting: Iterable[Iterator[_Mutant]] = (_mutants_of(document, source) for document in documents)
    while waiting:
        left = []
        for mutants in waiting:
            if batch := list(islice(mutants, PER_DOCUMENT)):
                left.append(mutants)
                yield batch
        waiting = left


def _mutants_of(document: SourceDocument, source: TaskSource) -> Iterator[_Mutant]:
    """The broken lines of a document, each of another kind as far as there are."""
    rng = source.rng(f"fix {document.id}")
    lines, start = [], 0
    for line in document.text.split("\n"):
        code = line.strip()
        if (
            len(code) in _LINE_CHARS
            and not code.startswith(("#", "//", "/*", "*"))
            and "`" not in code
            and not code.endswith("\\")
        ):
            lines.append((start + line.index(code[0]), code))
        start += len(line) + 1
    kinds: dict[str, int] = {}
    rng.shuffle(lines)
    for at, code in lines:
        options = [each for each in mutate(code, rng) if each[1] != code]
        if options:
            kind, broken = min(options, key=lambda option: kinds.get(option[0], 0))
            kinds[kind] = kinds.get(kind, 0) + 1
            yield _Mutant(document, kind, at, code, broken.strip())


def _item(kind: str, mutant: _Mutant, message: str, split: Split) -> TaskItem:
    document, number = mutant.document, mutant.number
    text, end = document.text, mutant.start + len(mutant.line)
    before, after = excerpt(text, mutant.start, end, _BEFORE, _AFTER)
    code = f"{before}{mutant.broken}{after}".rstrip("\n")
    complaint = f"Line {number}: `{mutant.broken}`\n{message}Write it correctly, in the same form."
    # The answer begins like the place that it is copied from, which helps small models to find it.
    said = {"role": "assistant", "content": f"Line {number}: `{mutant.line}`"}
    return TaskItem(
        kind=kind, level=mutant.kind, split=split, group=document.id, project=document.project,
        license=document.license,
        prompt=f"```cpp\n{code}\n```\n{complaint}",
        answer=mutant.line, prefix=before, suffix=after, turns=(said,),
        data={
            "before": text[: mutant.start] if message else before, "after": text[end:] if message else after,
            "broken": mutant.broken, "language": document.language, "standard": document.standard,
        },
    )  # fmt: skip


def _look(item: TaskItem, answer: str) -> Grade:
    """The grade of an answer that need not be compiled; "candidate" for the others."""
    tokens, gold = line_tokens(answer), line_tokens(item.answer)
    exact = tokens == gold
    if not tokens or "\n" in answer or find_forbidden(answer):
        return Grade(MALFORMED, "malformed")
    if Levenshtein.distance(tokens, line_tokens(item.data["broken"])) > MAX_TOKEN_EDITS:
        return Grade(MALFORMED, "another line")
    if answer == item.data["broken"]:
        return Grade(MALFORMED, "copied")
    if len(tokens) < len(gold) or words_of(answer) != words_of(item.answer):
        return Grade(PARSES, "other words")
    return Grade(PARSES, "candidate", exact)
