"""What is known of holes that pass when they are left empty is complete, and true."""

import dataclasses
from collections.abc import Sequence

import pytest

from cpplm.core.errors import UserError
from cpplm.evaluate.fim.holes import FimHole, choose_holes, fingerprint, problem_holes
from cpplm.evaluate.fim.trivial_holes import (
    HOLES_PER_PROBLEM,
    SETS,
    find_trivial,
    hole_program,
    run_empty,
    stored_answers,
)
from cpplm.evaluate.problems import load_problems
from cpplm.evaluate.settings import FimEvalSettings
from cpplm.judge.executor import Judge, Program
from cpplm.judge.result_cache import Verdict
from cpplm.sandbox.sandbox import Sandbox

# Of the holes that the default settings make. Other holes: figures that cannot be compared with older ones.
FINGERPRINTS = {
    "small": "67bdc62b70604b09b6bbc6343e95b772b23812ae237919239a8084a73d320fad",
    "humaneval": "4ca075d8668f95bde0b1310f149d001c7c75d9bd8c40498862216d698fbafab2",
}


class Says:
    """A judge that says the same of everything."""

    def __init__(self, outcome: str) -> None:
        self.outcome = outcome
        self.asked: list[Program] = []

    def judge(self, programs: Sequence[Program]) -> list[tuple[int, Verdict]]:
        self.asked += programs
        return [(number, Verdict(self.outcome, "why", 0, 0, 0)) for number in range(len(programs))]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(Sandbox.probe(), cache_dir=tmp_path_factory.mktemp("verdicts"))


def default_holes(name: str) -> list[FimHole]:
    """What the default settings choose, with a judge that must not be needed."""
    nobody = Says("sandbox error")
    return choose_holes(load_problems(name), HOLES_PER_PROBLEM, 0, lambda holes: find_trivial(holes, nobody))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SETS)
def test_the_default_holes_need_no_compiler(name: str) -> None:
    """The same on every machine."""
    holes = default_holes(name)
    assert fingerprint(holes) == FINGERPRINTS[name]
    assert not any(stored_answers()[hole.fingerprint] for hole in holes)
    assert FimEvalSettings().holes_per_problem == HOLES_PER_PROBLEM
    assert FimEvalSettings().hole_seed == 0


def test_what_is_not_known_is_tried(judge: Judge) -> None:
    problem = load_problems("small")[0]
    (body,) = problem_holes(problem)["body"]
    nobody = Says("pass")
    assert find_trivial([body], nobody) == [False]  # type: ignore[arg-type]
    assert nobody.asked == []
    before, after = body.before + "// ", f"\n{problem.canonical_solution}"
    comment = FimHole("new", "single", "a", before, "what it does", after, "", "", problem.tests)
    assert find_trivial([body, comment], judge) == [False, True]


def test_what_cannot_be_judged_here_is_not_dropped() -> None:
    (body,) = problem_holes(load_problems("small")[0])["body"]
    assert run_empty([body], Says("not judged")) == {body.name: None}  # type: ignore[arg-type]
    unknown = dataclasses.replace(body, before="")
    assert find_trivial([unknown], Says("not judged")) == [False]  # type: ignore[arg-type]


def test_a_broken_sandbox_is_no_answer() -> None:
    (body,) = problem_holes(load_problems("small")[0])["body"]
    with pytest.raises(UserError, match="clock_text/body could not be tried: why"):
        run_empty([body], Says("sandbox error"))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_a_sample_of_what_is_known_is_true(name: str, judge: Judge) -> None:
    """Left empty, holes fail; with what stood there, they pass."""
    holes = default_holes(name)[::50]
    assert not any(run_empty(holes, judge).values())
    filled = dict(judge.judge([hole_program(hole, hole.middle) for hole in holes]))
    outcomes = {holes[number].name: verdict.outcome for number, verdict in filled.items()}
    assert set(outcomes.values()) <= {"pass", "not judged"}, outcomes
    assert list(outcomes.values()).count("pass") > len(holes) / 2
