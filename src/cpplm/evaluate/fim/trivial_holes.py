"""Holes that pass the tests when nothing is written into them: stored for the problems of cpplm, else tried.

`trivial_holes.jsonl` has the answers for the holes that the default settings look at, so that they are
the same holes on every machine, whatever its compiler makes of a function without a `return`. Others are
compiled and run; the judge keeps its verdicts.

    python -m cpplm.evaluate.fim.trivial_holes FOLDER

writes the file again, after a change of the problems that come with cpplm; the verdicts are kept in FOLDER.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.evaluate.fim.holes import FimHole, choose_holes
from cpplm.evaluate.problems import load_problems
from cpplm.evaluate.settings import FimEvalSettings
from cpplm.judge.executor import Judge, Program
from cpplm.sandbox.sandbox import Sandbox

TRIVIAL_HOLES = Path(__file__).with_name("trivial_holes.jsonl")
SETS = ("small", "humaneval")
HOLES_PER_PROBLEM = FimEvalSettings.holes_per_problem
"""The number of each kind that the default settings take, and that the file therefore answers for."""


def hole_program(hole: FimHole, written: str) -> Program:
    """The program that tests what was written into a hole of a problem."""
    return Program(hole.before, written, f'{hole.after}\n#line 1 "tests.cpp"\n{hole.tests}')


@cache
def stored_answers() -> dict[str, bool]:
    """The stored answers by the holes' fingerprints: true if the tests pass."""
    records = map(json.loads, TRIVIAL_HOLES.read_text(encoding="utf-8").splitlines())
    return {record["sha256"]: record["trivial"] for record in records}


def find_trivial(holes: Sequence[FimHole], judge: Judge) -> list[bool]:
    """For each hole whether the tests pass when it is left empty.

    Raises:
        UserError: the sandbox failed, which says nothing about a hole.
    """
    answers = stored_answers()
    unknown = [hole for hole in holes if hole.fingerprint not in answers]
    tried = run_empty(unknown, judge)
    return [bool(tried.get(hole.name, answers.get(hole.fingerprint))) for hole in holes]


def run_empty(holes: Sequence[FimHole], judge: Judge) -> dict[str, bool | None]:
    """Run each hole left empty; by the holes' names, None where this machine lacks what it takes."""
    passes: dict[str, bool | None] = {}
    for number, verdict in judge.judge([hole_program(hole, "") for hole in holes]):
        if verdict.outcome == "sandbox error":
            raise UserError(
                f"{holes[number].name} could not be tried: {verdict.message}",
                fix="Run the same command again; what was tried is kept.",
            )
        judged = verdict.outcome != "not judged"
        passes[holes[number].name] = verdict.outcome == "pass" if judged else None
    return passes


def main() -> None:
    """Write the file again.

    What passes is run once more: a function that should return something and does not may pass by chance.
    """
    judge, again = Judge(Sandbox.probe(), cache_dir=Path(sys.argv[1])), Judge(Sandbox.probe())
    records: list[dict[str, object]] = []

    def tried(holes: list[FimHole]) -> list[bool]:
        passes = run_empty(holes, judge)
        passes |= run_empty([hole for hole in holes if passes[hole.name]], again)
        if None in passes.values():
            raise UserError("some of the problems cannot be judged here", fix="Install what they need.")
        records.extend(
            {"hole": hole.name, "sha256": hole.fingerprint, "trivial": passes[hole.name]} for hole in holes
        )
        return [bool(passes[hole.name]) for hole in holes]

    for name in SETS:
        choose_holes(load_problems(name), HOLES_PER_PROBLEM, 0, tried)
    TRIVIAL_HOLES.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


if __name__ == "__main__":
    main()
