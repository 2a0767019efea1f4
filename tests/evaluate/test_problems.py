"""The problem files: strict reading, and what the small set promises."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.core.storage import sha256
from cpplm.evaluate import problems as problems_module
from cpplm.evaluate.functional_correctness import problem_program as program_of
from cpplm.evaluate.problems import UNRATED, load_problems
from cpplm.judge.assertions import instrument_assertions
from cpplm.judge.scoring import find_forbidden, function_body

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
        assert find_forbidden(problem.canonical_solution) == find_forbidden(problem.buggy_solution) == ""
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
        ({"name": "a b"}, "'name'"),
        ({"difficulty": "Easy"}, "'difficulty'"),
        ({"prompt": "int one() { '{' {"}, "'prompt' must end inside the function"),
        ({"prompt": 3}, "'prompt' must be a text"),
        ({"tests": "int main() {}"}, "asserts"),
        ({"tests": VALID["tests"].replace("main", "other")}, "int main"),
        ({"canonical_solution": "return 1;"}, "'canonical_solution'"),
        ({"buggy_solution": "return 2; } }"}, "'buggy_solution'"),
        ({"tests": "int main() {" + "assert(1);" * 1001 + "}"}, "1 to 1,000 asserts, not 1001"),
        ({"extra": "x"}, "unknown field 'extra'"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "p.jsonl", {**VALID, "name": "first"}, {**VALID, **change})
    with pytest.raises(UserError, match=message) as caught:
        load_problems(path)
    assert f"{path}:2" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the problems"):
        load_problems(tmp_path / "absent.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read the problems"):
        load_problems(tmp_path / "binary")
    for text in ("{", "[1]"):
        (tmp_path / "lines").write_text(text)
        with pytest.raises(UserError, match="lines:1"):
            load_problems(tmp_path / "lines")
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(UserError, match="no problems"):
        load_problems(tmp_path / "empty")
    path = write(tmp_path / "twice", VALID, VALID)
    with pytest.raises(UserError, match=r"twice:2.*taken"):
        load_problems(path)


# ---- published formats -------------------------------------------------------------------------------------

PUBLISHED = {
    "task_id": "CPP/7",
    "prompt": "int one() {\n  // Gives one.\n",
    "canonical_solution": "return 1; }\n\n#undef NDEBUG\n",
    "buggy_solution": "return 2; }\n",
    "test": "#undef NDEBUG\n#include<assert.h>\nint main(){ assert (one() == 1); }\n\n",
    "declaration": "int one() {",
    "instruction": 7,
}
MULTIPL_E = {
    "name": "HumanEval_0_one",
    "language": "cpp",
    "prompt": "#include<assert.h>\nint one() {\n",
    "tests": "}\nint main() {\n    auto candidate = one;\n    assert(candidate() == (1));\n}\n",
    "stop_tokens": ["\n}"],
}


def test_humaneval() -> None:
    problems = load_problems("humaneval")
    assert [problem.name for problem in problems] == [f"CPP/{number}" for number in range(164)]
    assert {problem.difficulty for problem in problems} == {UNRATED}
    for problem in problems:
        for solution in (problem.canonical_solution, problem.buggy_solution):
            assert function_body(solution).text + "\n" == solution
            assert find_forbidden(solution) == ""
        assert instrument_assertions(problem.prompt, problem.tests).assertions
    total = sum(len(instrument_assertions("", problem.tests).assertions) for problem in problems)
    assert total == 1140


def test_the_data_is_an_unmodified_copy_with_its_licenses() -> None:
    folder = Path(problems_module.__file__).with_name("problem_sets")
    notice = (folder / "NOTICE.txt").read_text()
    data = (folder / "humanevalpack_cpp.jsonl").read_bytes()
    assert sha256(data) in notice
    for name in ("LICENSE.octopack.MIT.txt", "LICENSE.CodeGeeX.Apache-2.0.txt", "LICENSE.human-eval.MIT.txt"):
        assert name in notice
        assert (folder / name).stat().st_size > 1000


def test_the_format_of_humanevalpack(tmp_path: Path) -> None:
    without = {name: value for name, value in PUBLISHED.items() if name != "buggy_solution"} | {
        "task_id": "CPP/8"
    }
    first, second = load_problems(write(tmp_path / "p", PUBLISHED, without))
    assert (first.name, first.canonical_solution, first.buggy_solution) == (
        "CPP/7",
        "return 1; }\n",
        "return 2; }\n",
    )
    assert first.tests == PUBLISHED["test"]
    assert (second.name, second.buggy_solution) == ("CPP/8", "")


def test_the_format_of_multipl_e(tmp_path: Path) -> None:
    [problem] = load_problems(write(tmp_path / "p", MULTIPL_E))
    assert (problem.name, problem.difficulty, problem.canonical_solution) == ("HumanEval_0_one", UNRATED, "")
    assert problem.tests.startswith("\nint main() {")
    program = program_of(problem, "return 1; }")
    assert instrument_assertions(program.prefix + program.completion, program.suffix).assertions == (
        "candidate() == (1)",
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**PUBLISHED, "task_id": 3}, "'task_id' must be a text"),
        ({**PUBLISHED, "test": "int main() {}"}, "'test' must have 1 to 1,000 asserts"),
        ({**PUBLISHED, "canonical_solution": "return 1;"}, "'canonical_solution' must end"),
        ({**MULTIPL_E, "tests": MULTIPL_E["tests"][1:]}, "'tests' must begin with the brace"),
        ({**MULTIPL_E, "prompt": "int one();"}, "'prompt' must end inside"),
        ({name: value for name, value in PUBLISHED.items() if name != "test"}, "'test' is missing"),
    ],
)
def test_faults_in_published_formats_are_named(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_problems(write(tmp_path / "p", {**PUBLISHED, "task_id": "first"}, values))
    assert "p:2: field" in str(caught.value)
