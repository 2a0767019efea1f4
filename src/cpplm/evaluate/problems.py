"""C++ problems: a prompt that ends inside a function, and tests that judge the completed function.

Stored as JSON Lines, one problem per line, all fields required. The file `problems/cpp_small.jsonl` was
written for cpplm: 21 problems, a third of them easy, medium and hard.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError

_SMALL = Path(__file__).with_name("problems") / "cpp_small.jsonl"
_DIFFICULTIES = ("easy", "medium", "hard")
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,100}")
_MAIN = re.compile(r"\bint\s+main\s*\(")
MINIMUM_ASSERTS = 5


@dataclass(frozen=True)
class Problem:
    """One function to write."""

    name: str
    difficulty: str
    """easy, medium or hard."""
    prompt: str
    """Includes, a comment that says what the function does, its signature and the opening brace."""
    tests: str
    """C++ with `int main()`, at least five asserts, and the closing brace of main at the end."""
    canonical_solution: str
    """A right body with its closing brace."""
    buggy_solution: str
    """A plausible wrong body that compiles, with its closing brace."""


def load_problems(source: str | Path) -> list[Problem]:
    """Read problems: "small" for the set that comes with cpplm, or the path of a JSON Lines file.

    Raises:
        UserError: the file cannot be read or a line breaks a rule; the message names line and field.
    """
    path = _SMALL if str(source) == "small" else Path(source).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the problems {path}: {error}", fix='Pass "small" or the path of a JSON Lines file.'
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
    known = [field.name for field in fields(Problem)]
    for name in values:
        if name not in known:
            raise UserError(f"{where}: unknown field {name!r}", fix=f"Known: {', '.join(known)}.")
    for name in known:
        if name not in values:
            raise UserError(f"{where}: field {name!r} is missing")
        if not isinstance(values[name], str) or not values[name].strip():
            raise UserError(f"{where}: field {name!r} must be a text that is not empty")
    fault = _fault(values)
    if fault:
        raise UserError(f"{where}: field {fault}")
    return Problem(**values)


def _fault(values: dict[str, Any]) -> str:
    """The first rule that the texts of a problem break; empty when there is none."""
    asserts = len(re.findall(r"\bassert\s*\(", values["tests"]))
    rules = (
        (_NAME.fullmatch(values["name"]), "'name' must be 1 to 100 letters, digits or any of _ . / -"),
        (values["difficulty"] in _DIFFICULTIES, f"'difficulty' must be one of {', '.join(_DIFFICULTIES)}"),
        (_ends_with(values["prompt"], "{"), "'prompt' must end with the opening brace of the function"),
        (_ends_with(values["canonical_solution"], "}"), "'canonical_solution' must end with a closing brace"),
        (_ends_with(values["buggy_solution"], "}"), "'buggy_solution' must end with a closing brace"),
        (_MAIN.search(values["tests"]), "'tests' must define int main()"),
        (_ends_with(values["tests"], "}"), "'tests' must end with the closing brace of main"),
        (
            asserts >= MINIMUM_ASSERTS,
            f"'tests' must have {MINIMUM_ASSERTS} asserts or more, it has {asserts}",
        ),
    )
    return next((message for holds, message in rules if not holds), "")


def _ends_with(text: str, brace: str) -> bool:
    return text.rstrip().endswith(brace)
