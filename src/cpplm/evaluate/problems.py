"""C++ problems: a prompt that ends inside a function, and tests that judge the completed function.

Stored as JSON Lines, one problem per line. Three formats are read, told apart by their fields:

    ours          the fields of `Problem`, all required: `problem_sets/cpp_small.jsonl`, written for cpplm: 21
                  problems, a third of them easy, medium and hard
    HumanEvalPack task_id, prompt, canonical_solution, buggy_solution, test, and more that is not read:
                  `problem_sets/humanevalpack_cpp.jsonl`, 164 problems (see NOTICE.txt beside it); HumanEval-X
                  is the same without buggy_solution
    MultiPL-E     name, prompt, tests, stop_tokens: no solutions; the tests begin with the brace that closes
                  the function
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.judge.assertions import MAX_ASSERTIONS
from cpplm.judge.scoring import function_body, open_braces

_FOLDER = Path(__file__).with_name("problem_sets")
BUILT_IN = {"small": "cpp_small.jsonl", "humaneval": "humanevalpack_cpp.jsonl"}
"""The sets that come with cpplm, and their files."""
UNRATED = "unrated"
_DIFFICULTIES = ("easy", "medium", "hard", UNRATED)
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,100}")
_MAIN = re.compile(r"\bint\s+main\s*\(")
_ASSERT = re.compile(r"\bassert\s*\(")
MINIMUM_ASSERTS = 5
"""Least number of asserts in a problem of ours; published ones may have fewer."""


@dataclass(frozen=True)
class Problem:
    """One function to write."""

    name: str
    difficulty: str
    """easy, medium, hard, or unrated where nobody says."""
    prompt: str
    """Includes, a comment that says what the function does, its signature and the opening brace."""
    tests: str
    """C++ with `int main()`, asserts, and the closing brace of main at the end."""
    canonical_solution: str
    """A right body with its closing brace; empty in formats that have none."""
    buggy_solution: str
    """A plausible wrong body that compiles, with its closing brace; empty in formats that have none."""


def load_problems(source: str | Path) -> list[Problem]:
    """Read problems: "small" or "humaneval" for those that come with cpplm, or the path of a JSON Lines file.

    Raises:
        UserError: the file cannot be read or a line breaks a rule; the message names line and field.
    """
    built_in = BUILT_IN.get(str(source))
    path = _FOLDER / built_in if built_in else Path(source).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        names = " or ".join(f'"{name}"' for name in BUILT_IN)
        raise UserError(
            f"cannot read the problems {path}: {error}", fix=f"Pass {names} or the path of a JSON Lines file."
        ) from error
    problems: dict[str, Problem] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        problem = _parse(line, f"{path}:{number}")
        if problem.name in problems:
            raise UserError(f"{path}:{number}: field 'name': {problem.name!r} is taken by an earlier line")
        problems[problem.name] = problem
    if not problems:
        raise UserError(f"{path} holds no problems", fix="Write one JSON object per line.")
    return list(problems.values())


def _parse(line: str, where: str) -> Problem:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{where}: a JSON object is needed, this is {type(values).__name__}")
    if "task_id" in values:
        problem, names = _humaneval(values, where), {"name": "task_id", "tests": "test"}
    elif "stop_tokens" in values:
        problem, names = _multipl_e(values, where), {}
    else:
        problem, names = _ours(values, where), {}
    for field, message in _faults(problem):
        raise UserError(f"{where}: field {names.get(field, field)!r} {message}")
    return problem


def _ours(values: Mapping[str, Any], where: str) -> Problem:
    known = [field.name for field in fields(Problem)]
    for name in values:
        if name not in known:
            raise UserError(f"{where}: unknown field {name!r}", fix=f"Known: {', '.join(known)}.")
    problem = Problem(**_texts(values, known, where))
    asserts = len(_ASSERT.findall(problem.tests))
    if asserts < MINIMUM_ASSERTS:
        raise UserError(
            f"{where}: field 'tests' must have {MINIMUM_ASSERTS} asserts or more, it has {asserts}"
        )
    return problem


def _humaneval(values: Mapping[str, Any], where: str) -> Problem:
    required = ["task_id", "prompt", "canonical_solution", "test"]
    given = _texts(values, [*required, *({"buggy_solution"} & values.keys())], where)
    bodies = [given.get(name, "") for name in ("canonical_solution", "buggy_solution")]
    # One of them (CPP/94) has directives behind the function.
    cut = [function_body(body).text.rstrip() + "\n" if body else "" for body in bodies]
    return Problem(given["task_id"], UNRATED, given["prompt"], given["test"], *cut)


def _multipl_e(values: Mapping[str, Any], where: str) -> Problem:
    given = _texts(values, ["name", "prompt", "tests"], where)
    if not given["tests"].lstrip().startswith("}"):
        raise UserError(f"{where}: field 'tests' must begin with the brace that closes the function")
    tests = given["tests"].lstrip().removeprefix("}")
    return Problem(given["name"], UNRATED, given["prompt"], tests, "", "")


def _texts(values: Mapping[str, Any], names: list[str], where: str) -> dict[str, str]:
    """The values of required fields; UserError where one is missing, no text, or empty."""
    for name in names:
        if name not in values:
            raise UserError(f"{where}: field {name!r} is missing")
        if not isinstance(values[name], str) or not values[name].strip():
            raise UserError(f"{where}: field {name!r} must be a text that is not empty")
    return {name: values[name] for name in names}


def _faults(problem: Problem) -> list[tuple[str, str]]:
    """The rules that the texts of a problem break: field and message."""
    tests = problem.tests
    asserts = len(_ASSERT.findall(tests))
    rules = (
        ("name", _NAME.fullmatch(problem.name), "must be 1 to 100 letters, digits or any of _ . / -"),
        ("difficulty", problem.difficulty in _DIFFICULTIES, f"must be one of {', '.join(_DIFFICULTIES)}"),
        (
            "prompt",
            open_braces(problem.prompt) == 1,
            "must end inside the function, behind its opening brace",
        ),
        (
            "canonical_solution",
            _is_body(problem.canonical_solution),
            "must end with the function's closing brace",
        ),
        ("buggy_solution", _is_body(problem.buggy_solution), "must end with the function's closing brace"),
        ("tests", _MAIN.search(tests), "must define int main()"),
        ("tests", tests.rstrip().endswith("}"), "must end with the closing brace of main"),
        (
            "tests",
            1 <= asserts <= MAX_ASSERTIONS,
            f"must have 1 to {MAX_ASSERTIONS:,} asserts, not {asserts}",
        ),
    )
    return [(field, message) for field, holds, message in rules if not holds]


def _is_body(text: str) -> bool:
    """True if a solution ends where its function does, or there is none."""
    body = function_body(text)
    return not text or (body.complete and body.text == text.rstrip())
