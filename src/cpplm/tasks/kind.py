"""The interface of a kind of task, and what an answer is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cpplm.core.shards import Split
from cpplm.cpp.parser import Language
from cpplm.judge.executor import Program
from cpplm.judge.scoring import function_body, is_empty
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.source import TaskSource

MALFORMED, PARSES, CORRECT = 0.0, 0.1, 1.0
"""Rewards: nothing usable was written; it has the right form; it does what was asked."""


@dataclass(frozen=True)
class Answer:
    """What a model wrote, cut, and the results of the tools that it called."""

    text: str
    tool_results: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grade:
    """The worth of one answer.

    Attributes:
        reward: 0 to 1; 1 alone counts as solved.
        outcome: why, in a word or two, for counts.
        exact: whether it is the gold answer, apart from layout.
        certain: False where the machine decided as much as the answer did: a clock, a missing header.
    """

    reward: float
    outcome: str
    exact: bool = False
    certain: bool = True

    @property
    def solved(self) -> bool:
        """True for a right answer."""
        return self.reward >= CORRECT


class TaskKind(Protocol):
    """How tasks of one kind are made, and answers to them graded; kinds derive from it."""

    name: str
    max_new_tokens: int
    """The most that an answer may have."""
    needs_projects: bool = False
    """True if it is made of the folders of projects."""
    needs_tools: bool = False
    """True for questions that tools on the project answer."""

    def build(self, source: TaskSource, split: Split, count: int) -> Iterator[TaskItem]:
        """Up to `count` tasks of a split; the same for the same source and seed."""

    def cut(self, text: str) -> str:
        """The answer in what a model wrote: what follows it is left out."""

    def is_complete(self, text: str) -> bool:
        """True once nothing that follows can belong to the answer."""

    def grade(self, answers: Sequence[tuple[TaskItem, Answer]], grader: Grader) -> list[Grade]:
        """Grade answers that `cut` has cut, in their order."""

    def gold(self, item: TaskItem) -> Answer:
        """The gold answer as a model would give it."""
        return Answer(item.answer)

    def cheats(self, item: TaskItem) -> Mapping[str, str]:
        """Answers that are worth nothing, by name; no reward of theirs may be above `PARSES`."""


def filled(item: TaskItem, answer: Answer) -> tuple[str, Language, str]:
    """The document of a task with an answer in its place, its language and standard, for `Grader.compile`."""
    data = item.data
    return data["before"] + answer.text + data["after"], data["language"], data.get("standard", "")


GENERAL_CHEATS = {
    "empty": "",
    "blank": " \n\t\n",
    "comment": "// the answer",
    "block comment": "/* the answer */",
    "semicolon": ";",
    "braces": "{}",
    "if 0": "#if 0\n",
    "define": "#define return",
    "swallow the rest": "/*",
    "raw string": 'R"(',
    "asm": 'asm("");',
    "pragma": '_Pragma("GCC poison x")',
    "splice": "// \\",
    "attribute": "__attribute__((constructor))",
    "null bytes": "\0\0\0",
    "apology": "I cannot do that.",
}
"""Texts that no task may reward."""

BODY_CHEATS = {
    "empty body": "}",
    "comment body": "// done\n}",
    "return value": "return {};\n}",
    "return zero": "return 0;\n}",
    "return one": "return 1;\n}",
    "endless loop": "for (;;) {}\n}",
    "exit": "__builtin_exit(0);\n}",
    "abort": "__builtin_abort();\n}",
    "throw": "throw 0;\n}",
    "unreachable": "__builtin_unreachable();\n}",
    "trap": "__builtin_trap();\n}",
}
"""Bodies that compile and do nothing."""


class BodyKind(TaskKind):
    """Tasks whose answers are bodies of functions, up to the closing brace."""

    def cut(self, text: str) -> str:
        """Up to the closing brace; everything when there is none."""
        body = function_body(text)
        return body.text if body.complete else text

    def is_complete(self, text: str) -> bool:
        """True behind the closing brace."""
        return function_body(text).complete

    def cheats(self, item: TaskItem) -> Mapping[str, str]:
        """Those of every body."""
        return GENERAL_CHEATS | BODY_CHEATS


class TestedBodyKind(BodyKind):
    """Bodies that tests judge: between `data["before"]` and `data["after"]` they make a program."""

    __test__ = False  # no test of pytest's

    def grade(self, answers: Sequence[tuple[TaskItem, Answer]], grader: Grader) -> list[Grade]:
        """All assertions hold, or there is no credit."""
        programs = [Program(item.data["before"], answer.text, item.data["after"]) for item, answer in answers]
        verdicts = dict(grader.judge.judge(programs))
        grades = []
        for number, (item, answer) in enumerate(answers):
            outcome: str = verdicts[number].outcome
            if is_empty(answer.text) or not function_body(answer.text).complete:
                outcome = "not a body"
            reward = CORRECT if outcome == "pass" else PARSES if outcome == "wrong answer" else MALFORMED
            exact = answer.text.split() == item.answer.split()
            grades.append(Grade(reward, outcome, exact, verdicts[number].certain))
        return grades
