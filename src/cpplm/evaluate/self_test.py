"""The harness judged by itself: canonical solutions must pass, buggy ones must compile and fail."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cpplm.evaluate.functional_correctness import problem_program, truncate_to_body
from cpplm.evaluate.problems import Problem
from cpplm.judge.executor import Judge
from cpplm.judge.scoring import COMPILED, Outcome

_EXPECTED: dict[str, frozenset[Outcome]] = {
    "canonical": frozenset({"pass"}),
    "buggy": COMPILED - {"pass", "early exit"},
}


def table(figures: dict[str, Any]) -> str:
    """The figures of `self_test` for people."""
    rows = [
        f"canonical solutions that pass: {figures['canonical_passed']} of {figures['canonical']}",
        f"buggy solutions that pass:     {figures['buggy_passed']} of {figures['buggy']}",
        *figures["complaints"],
        *(f"not judged: {name} ({reason})" for name, reason in figures["not_judged"].items()),
        f"{figures['seconds']:.0f} s",
    ]
    return "\n".join(rows)


def self_test(judge: Judge, problems: Sequence[Problem]) -> dict[str, Any]:
    """Judge the canonical and the buggy solution of each problem, as far as it has them.

    Returns:
        "canonical", "canonical_passed", "buggy", "buggy_passed" (numbers of solutions), "complaints" (a line
        for each that was judged wrongly), "not_judged" (problems, and what this machine lacks), "seconds".

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
    return {
        "canonical": len(passed["canonical"]),
        "canonical_passed": sum(passed["canonical"]),
        "buggy": len(passed["buggy"]),
        "buggy_passed": sum(passed["buggy"]),
        "complaints": complaints,
        "not_judged": not_judged,
        "seconds": round(time.perf_counter() - begin, 2),
    }
