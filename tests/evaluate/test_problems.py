"""The problem files: strict reading, and what the small set promises."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.evaluate.problems import MINIMUM_ASSERTS, load_problems
from cpplm.evaluate.scoring import function_body

VALID = {
    "name": "one",
    "difficulty": "easy",
    "prompt": "int one() {\n",
    "tests": "int main() {" + "assert(one() == 1);" * 5 + "}",
    "canonical_solution": "return 1; }",
    "buggy_solution": "return 2; }",
}


def write(path: Path, *problems: Any) -> Path:
    path.write_text("\n".join(json.dumps(problem) for problem in problems))
    return path


def test_small_set() -> None:
    problems = load_problems("small")
    assert Counter(problem.difficulty for problem in problems) == {"easy": 7, "medium": 7, "hard": 7}
    assert len({problem.prompt for problem in problems}) == 21
    for problem in problems:
        assert "//" in problem.prompt, "the prompt says what the function does"
        assert problem.tests.count("assert(") >= MINIMUM_ASSERTS
        for solution in (problem.canonical_solution, problem.buggy_solution):
            body = function_body(solution)
            assert body.complete
            assert body.forbidden == ""
            assert body.text.rstrip() == solution.rstrip(), "one function, nothing behind it"
        assert problem.canonical_solution != problem.buggy_solution
        assert problem.prompt.isascii()


def test_a_valid_file(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", VALID, {**VALID, "name": "two"})
    path.write_text(path.read_text() + "\n\n")
    assert [problem.name for problem in load_problems(path)] == ["one", "two"]
    assert load_problems(str(path))[0].canonical_solution == "return 1; }"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "'name'"),
        ({"name": "a b"}, "'name'"),
        ({"difficulty": "Easy"}, "'difficulty'"),
        ({"prompt": "int one();"}, "'prompt' must end with the opening brace"),
        ({"prompt": 3}, "'prompt' must be a text"),
        ({"tests": "int main() {}"}, "asserts"),
        ({"tests": VALID["tests"].replace("main", "other")}, "int main"),
        ({"tests": VALID["tests"] + "// end"}, "closing brace of main"),
        ({"canonical_solution": "return 1;"}, "'canonical_solution'"),
        ({"buggy_solution": "return 2;"}, "'buggy_solution'"),
        ({"extra": "x"}, "unknown field 'extra'"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "p.jsonl", {**VALID, "name": "first"}, {**VALID, **change})
    with pytest.raises(UserError, match=message) as caught:
        load_problems(path)
    assert f"{path}:2" in str(caught.value)


@pytest.mark.parametrize("field", sorted(VALID))
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    path = write(tmp_path / "p.jsonl", {name: value for name, value in VALID.items() if name != field})
    with pytest.raises(UserError, match=f":1: field '{field}' is missing"):
        load_problems(path)


@pytest.mark.parametrize("text", ["{", "[1]", "3", '{"name": "a"} x', "\u0000"])
def test_lines_that_are_no_objects(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=r"p\.jsonl:1"):
        load_problems(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the problems"):
        load_problems(tmp_path / "absent.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read the problems"):
        load_problems(tmp_path / "binary")
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(UserError, match="no problems"):
        load_problems(tmp_path / "empty")
    path = write(tmp_path / "twice", VALID, VALID)
    with pytest.raises(UserError, match=r"twice:2.*taken"):
        load_problems(path)
