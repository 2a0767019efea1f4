"""Holes: which there are, which are taken, and that every one can be put back."""

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.evaluate.fim.holes import (
    PROBLEM_KINDS,
    FimHole,
    choose_holes,
    fingerprint,
    hash_order,
    informative_lines,
    problem_holes,
)
from cpplm.evaluate.problems import Problem, load_problems

SOLUTION = "    int y = 0;\n\n    if (x) {\n        y = 2;\n    }\n    // done\n    return y;\n}\n\n"
PROBLEM = Problem(
    name="CPP/3",
    difficulty="easy",
    prompt="int twice(int x) {\n",
    tests="int main() {}\n",
    canonical_solution=SOLUTION,
    buggy_solution="}",
)


def none_trivial(holes: list[FimHole]) -> list[bool]:
    return [False] * len(holes)


def test_the_holes_of_a_problem() -> None:
    found = problem_holes(PROBLEM)
    single = {hole.name: hole.middle for hole in found["single"]}
    assert single == {
        "CPP/3/single/1": "    int y = 0;",
        "CPP/3/single/3": "    if (x) {",
        "CPP/3/single/4": "        y = 2;",
        "CPP/3/single/6": "    // done",
        "CPP/3/single/7": "    return y;",
    }
    multi = {hole.name: hole.middle for hole in found["multi"]}
    assert len(multi) == 5 * 4 / 2 - 1  # all pairs but the one that is the body
    assert multi["CPP/3/multi/3-4"] == "    if (x) {\n        y = 2;"
    assert "CPP/3/multi/1-7" not in multi
    (body,) = found["body"]
    assert (body.name, body.before, body.after) == ("CPP/3/body", PROBLEM.prompt, "\n}\n\n")


@pytest.mark.parametrize("problem", load_problems("small"), ids=lambda problem: problem.name)
def test_every_hole_can_be_put_back(problem: Problem) -> None:
    whole = problem.prompt + problem.canonical_solution
    for kind, holes in problem_holes(problem).items():
        assert holes or kind == "multi"  # of a solution of two lines
        names = [hole.name for hole in holes]
        assert len(set(names)) == len(names)
        for hole in holes:
            assert hole.filled(hole.middle) == whole
            assert hole.before.startswith(problem.prompt)
            assert hole.after.strip().endswith("}")
            assert (hole.prefix, hole.suffix, hole.tests) == (hole.before, hole.after, problem.tests)
            assert (hole.kind, hole.group) == (kind, problem.name)
            assert hole.before.endswith("\n")
            assert hole.after.startswith("\n")
            assert (kind == "single") == ("\n" not in hole.middle)


@given(st.text(alphabet="a{} \n"))
def test_lines_are_found_where_they_are(text: str) -> None:
    lines = text.split("\n")
    found = informative_lines(text)
    assert [number for number, _, _ in found] == [n for n, line in enumerate(lines, 1) if "a" in line]
    assert all(text[start:end] == lines[number - 1] for number, start, end in found)


def test_the_choice_depends_on_the_seed_alone() -> None:
    problems = load_problems("small")
    chosen = choose_holes(problems, 2, 0, none_trivial)
    assert len(chosen) == sum(min(2, len(h)) for p in problems for h in problem_holes(p).values())
    assert [hole.group for hole in chosen] == [
        p.name for p in problems for hole in chosen if hole.group == p.name
    ]
    alone = choose_holes(problems[3:4], 2, 0, none_trivial)
    assert [hole for hole in chosen if hole.group == problems[3].name] == alone
    other = choose_holes(problems, 2, 1, none_trivial)
    assert (
        fingerprint(chosen) == fingerprint(choose_holes(problems, 2, 0, none_trivial)) != fingerprint(other)
    )
    fewer = choose_holes(problems, 1, 0, none_trivial)
    assert {hole.name for hole in fewer} < {hole.name for hole in chosen}


def test_the_order_is_the_same_everywhere() -> None:
    """Pinned: another order would make other holes, and old figures could not be compared."""
    assert hash_order(0, "CPP/3/single/2").startswith("2b36a14691441089")
    assert sorted("abcdef", key=lambda name: hash_order(7, name)) == list("bfaced")


@pytest.mark.parametrize("gift", [lambda hole: "return" in hole.middle, lambda hole: True])
def test_holes_that_pass_when_empty_are_replaced(gift: Callable[[FimHole], bool]) -> None:
    asked: list[str] = []

    def find_trivial(holes: list[FimHole]) -> list[bool]:
        asked.extend(hole.name for hole in holes)
        return [gift(hole) for hole in holes]

    problems = load_problems("small")
    chosen = choose_holes(problems, 2, 0, find_trivial)
    assert not any(gift(hole) for hole in chosen)
    assert len(set(asked)) == len(asked)  # each is tried once
    for problem in problems:
        for kind, holes in problem_holes(problem).items():
            good = sum(not gift(hole) for hole in holes)
            wanted = 1 if kind == "body" else 2
            taken = [hole for hole in chosen if hole.group == problem.name and hole.kind == kind]
            assert len(taken) == min(good, wanted)


def test_fingerprints_tell_every_difference() -> None:
    (hole,) = problem_holes(PROBLEM)["body"]
    changed = [
        dataclasses.replace(hole, **{name: "x"})
        for name in ("before", "middle", "after", "prefix", "suffix", "tests")
    ]
    assert len({each.fingerprint for each in [hole, *changed]}) == 7
    assert fingerprint([hole, changed[0]]) != fingerprint([changed[0], hole])
    assert set(PROBLEM_KINDS) == set(problem_holes(PROBLEM))
