"""Holes in the solutions of C++ problems: lines, runs of lines and bodies that a model is to write again.

The method is that of the infilling benchmarks made of HumanEval (Fried et al. 2022, arXiv 2204.05999, section
4.1; Bavarian et al. 2022, arXiv 2207.14255), on C++:

    single   a line of the solution, as CPP/3/single/2 (line 2 of the solution)
    multi    a run of its lines, two or more and not all, as CPP/3/multi/2-5
    body     everything between the braces of the function, as CPP/3/body

A hole begins and ends with a line that has a letter, a digit or an underscore; the indentation of the first
line is part of it, the line break behind the last is not. Holes of one problem and kind have an order, that
of the hashes of seed and name. The first ones are taken, without those that pass the tests when nothing is
written into them: they would be a gift to every model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from cpplm.core.storage import sha256
from cpplm.evaluate.models.code_model import CodePrompt
from cpplm.evaluate.problems import Problem
from cpplm.evaluate.settings import HoleKind
from cpplm.judge.scoring import function_body

PROBLEM_KINDS: tuple[HoleKind, ...] = ("single", "multi", "body")

_WORD = re.compile(r"\w")


@dataclass(frozen=True)
class FimHole:
    """Text in three parts; the model is to write the middle one."""

    name: str
    kind: HoleKind
    group: str
    """The problem or document that it is in."""
    before: str
    middle: str
    after: str
    prefix: str
    """The end of `before` that a model gets to see."""
    suffix: str
    """The beginning of `after` that a model gets to see."""
    tests: str = ""
    """Tests that make the three parts a program which judges itself; empty where there are none."""

    @property
    def request(self) -> CodePrompt:
        """The prompt for a model."""
        return CodePrompt(self.prefix, self.suffix)

    def filled(self, written: str) -> str:
        """The whole text, without tests, with something in the hole."""
        return self.before + written + self.after

    @property
    def fingerprint(self) -> str:
        """A hash of everything that what comes of an answer depends on."""
        parts = (self.before, self.middle, self.after, self.prefix, self.suffix, self.tests)
        return sha256(json.dumps(parts).encode())[:32]


def fingerprint(holes: Sequence[FimHole]) -> str:
    """A hash of a set of holes: equal sets give comparable scores."""
    return sha256("".join(f"{hole.name} {hole.fingerprint}\n" for hole in holes).encode())


def hash_order(seed: int, name: str) -> str:
    """Sorts names in an order that depends on the seed and on nothing else."""
    return sha256(f"{seed} {name}".encode())


def informative_lines(text: str) -> list[tuple[int, int, int]]:
    """Number (from 1), start and end of each line that has a letter, a digit or an underscore."""
    lines, start = [], 0
    for number, line in enumerate(text.split("\n"), start=1):
        if _WORD.search(line):
            lines.append((number, start, start + len(line)))
        start += len(line) + 1
    return lines


def problem_holes(problem: Problem) -> dict[HoleKind, list[FimHole]]:
    """All holes of a problem by kind, in the order of the text; none where the function does not end."""
    solution = problem.canonical_solution
    body = function_body(solution)
    if not body.complete:
        return {kind: [] for kind in PROBLEM_KINDS}
    inside = body.text.removesuffix("}").rstrip()
    begin = len(inside) - len(inside.lstrip("\n"))
    lines = informative_lines(inside)

    def hole(kind: HoleKind, where: str, start: int, end: int) -> FimHole:
        before, after = problem.prompt + solution[:start], solution[end:]
        name = f"{problem.name}/{kind}{where}"
        middle = solution[start:end]
        return FimHole(name, kind, problem.name, before, middle, after, before, after, problem.tests)

    runs = [
        (first, last) for place, first in enumerate(lines) for last in lines[place + 1 :]
        if (first, last) != (lines[0], lines[-1])
    ]  # fmt: skip
    return {
        "single": [hole("single", f"/{number}", start, end) for number, start, end in lines],
        "multi": [hole("multi", f"/{one[0]}-{two[0]}", one[1], two[2]) for one, two in runs],
        "body": [hole("body", "", begin, len(inside))] if lines else [],
    }


def choose_holes(
    problems: Sequence[Problem],
    per_problem: int,
    seed: int,
    find_trivial: Callable[[list[FimHole]], list[bool]],
) -> list[FimHole]:
    """Holes of each problem: its body, and up to so many single lines and runs of lines.

    Args:
        problems: in the order in which their holes come.
        per_problem: the most of either kind.
        seed: of the order in which candidates are looked at.
        find_trivial: whether each hole passes the tests when nothing is written into them.
    """
    candidates = [
        (
            iter(sorted(holes, key=lambda hole: hash_order(seed, hole.name))),
            1 if kind == "body" else per_problem,
        )
        for problem in problems
        for kind, holes in problem_holes(problem).items()
    ]
    taken: list[list[FimHole]] = [[] for _ in candidates]
    while batch := [
        (chosen, hole)
        for chosen, (waiting, wanted) in zip(taken, candidates, strict=True)
        for hole in islice(waiting, wanted - len(chosen))
    ]:
        answers = find_trivial([hole for _, hole in batch])
        for (chosen, hole), is_trivial in zip(batch, answers, strict=True):
            if not is_trivial:
                chosen.append(hole)
    return [hole for chosen in taken for hole in chosen]
