"""The harness judged by itself: canonical solutions must pass, buggy ones must compile and fail."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpplm.evaluate.functional_correctness import problem_program, truncate_to_body
from cpplm.evaluate.problems import Problem
from cpplm.judge.executor import Judge
from cpplm.judge.scoring import COMPILED, Outcome

_EXPECTED: dict[str, frozenset[Outcome]] = {
    "canonical": frozenset({"pass"}),
    "buggy": COMPILED - {"pass", "early exit"},
}


@dataclass(frozen=True)
class SelfTestReport:
    """Verdicts of the harness on solutions whose worth is known."""

    canonical: int
    """Canonical solutions judged."""
    canonical_passed: int
    buggy: int
    """Buggy solutions judged."""
    buggy_passed: int
    complaints: tuple[str, ...]
    """One line for each solution that was judged wrongly."""
    not_judged: dict[str, str]
    """Problems left out, and what this machine lacks for them."""
    seconds: float

    def figures(self) -> dict[str, Any]:
        """For `--json`."""
        return dict(vars(self))

    def table(self) -> str:
        """The figures as text."""
        rows = [
            f"canonical solutions that pass: {self.canonical_passed} of {self.canonical}",
            f"buggy solutions that pass:     {self.buggy_passed} of {self.buggy}",
            *self.complaints,
            *(f"not judged: {name} ({reason})" for name, reason in self.not_judged.items()),
            f"{self.seconds:.0f} s",
        ]
        return "\n".join(rows)


def self_test(judge: Judge, problems: Sequence[Problem]) -> SelfTestReport:
    """Judge the canonical and the buggy solution of each problem, as far as it has them.

    Raises:
        UserError: verdicts cannot be kept.
    """
    begin = time.perf_counter()
    solutions = [
        (problem, kind, text)
        for problem in problems
        for kind, text in (("canonical", problem.canonical_solution), ("buggy", problem.buggy_solution))
        if text
    ]
    programs = [problem_program(problem, truncate_to_body(text)) for problem, _, text in solutions]
    verdicts = dict(judge.judge(programs))
    passed: dict[str, list[bool]] = {"canonical": [], "buggy": []}
    complaints, not_judged = [], {}
    for number, (problem, kind, _) in enumerate(solutions):
        verdict = verdicts[number]
        if verdict.outcome == "not judged":
            not_judged[problem.name] = verdict.message
            continue
        passed[kind].append(verdict.outcome == "pass")
        if verdict.outcome not in _EXPECTED[kind]:
            message = " ".join(verdict.message.split())
            complaints.append(f"{problem.name}: the {kind} solution ended as {verdict.outcome}: {message}")
    return SelfTestReport(
        canonical=len(passed["canonical"]),
        canonical_passed=sum(passed["canonical"]),
        buggy=len(passed["buggy"]),
        buggy_passed=sum(passed["buggy"]),
        complaints=tuple(complaints),
        not_judged=not_judged,
        seconds=round(time.perf_counter() - begin, 2),
    )
