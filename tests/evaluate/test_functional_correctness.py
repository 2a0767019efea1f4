"""Completions compiled and run: what passes, what must not, and what is counted as what."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cpplm.evaluate.completion_cache import CompletionCache
from cpplm.evaluate.functional_correctness import evaluate_completions, evaluate_problems
from cpplm.evaluate.models.code_model import CodePrompt
from cpplm.evaluate.problems import Problem, load_problems
from cpplm.evaluate.self_test import self_test, table
from cpplm.evaluate.settings import CppEvalSettings
from cpplm.generate.settings import SamplingSettings
from cpplm.judge.executor import MAX_ANSWER_CHARS, Judge
from cpplm.judge.result_cache import FILE
from cpplm.sandbox.sandbox import Sandbox
from tests.evaluate.scripted import Scripted

NEEDS_LIBRARIES = {"CPP/22", "CPP/137", "CPP/162"}  # libboost-dev, libssl-dev
PROBLEM = Problem(
    name="twice",
    difficulty="easy",
    prompt="#include <vector>\n#include <cstdlib>\n#include <unistd.h>\n// Doubles.\nint twice(int x) {\n",
    tests="int main() {\n    assert(twice(1) == 2);\n" + "    assert(twice(2) == 4);\n" * 4 + "}\n",
    canonical_solution="    return 2 * x;\n}\n",
    buggy_solution="    return x * x;\n}\n",
)


EMPTY = ["}", " \n\t}", "// return 2 * x;\n}", "/* int */ ; ; }", "{ { } } }", " \n", ";"]


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox.probe()


@pytest.fixture(scope="module")
def judge(sandbox: Sandbox) -> Judge:
    return Judge(sandbox)


def test_completions_are_cut_and_judged(judge: Judge) -> None:
    completions = {
        "return 2 * x; }": "pass",
        "return 2 * x; }\nint main() { return 0; }": "pass",
        "return 2 * x; }\n#define assert(condition)": "pass",
        "return 2 * x; }" + "\n// and so on" * MAX_ANSWER_CHARS: "pass",
        "return x * x; } int never() {": "wrong answer",
        "return 2 * y; }": "compile error",
        "return 2 * x;" + " " * MAX_ANSWER_CHARS: "too long",
        "\x00": "binary",
        "": "empty",
        **dict.fromkeys(EMPTY, "empty"),
    }
    report = evaluate_completions([PROBLEM], {"twice": list(completions)}, judge)
    assert [sample.outcome for sample in report.samples] == list(completions.values())
    assert [sample.body for sample in report.samples[:4]] == ["return 2 * x; }"] * 4
    assert report.samples[4].assertions == 5
    assert report.samples[4].assertions_passed == 4
    assert report.overall["pass@1"] == pytest.approx(4 / len(completions))
    assert report.overall["compile_rate"] == pytest.approx(5 / len(completions))


def test_an_empty_answer_earns_nothing(judge: Judge) -> None:
    """Also where it compiles, and even passes: what is not written is not the model's."""
    easy = dataclasses.replace(
        PROBLEM, prompt="void nothing(int x) {\n", tests="int main() {\n" + "    assert(true);\n" * 5 + "}\n"
    )
    report = evaluate_completions([easy], {"twice": ["return; }", *EMPTY]}, judge)
    assert report.outcomes == {"pass": 1, "empty": len(EMPTY)}
    share = pytest.approx(1 / (1 + len(EMPTY)))
    for name in ("compile_rate", "assertions_passed", "pass@1"):
        assert report.overall[name] == share


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("small", 21), ("humaneval", 164)])
def test_self_test(judge: Judge, name: str, count: int) -> None:
    """Every canonical solution passes; every buggy one compiles and does not."""
    found = self_test(judge, load_problems(name))
    assert found["complaints"] == []
    lacking = found["not_judged"].keys()
    assert lacking <= NEEDS_LIBRARIES
    assert found["canonical"] == found["canonical_passed"] == found["buggy"] == count - len(lacking)
    assert found["buggy_passed"] == 0


def test_self_test_complains(judge: Judge) -> None:
    swapped = dataclasses.replace(
        PROBLEM, canonical_solution=PROBLEM.buggy_solution, buggy_solution=PROBLEM.canonical_solution
    )
    needy = dataclasses.replace(
        PROBLEM, name="needy", prompt="#include <openssl/nothing.h>\n" + PROBLEM.prompt
    )
    found = self_test(judge, [swapped, needy])
    assert len(found["complaints"]) == 2
    assert "canonical solution ended as wrong answer" in found["complaints"][0]
    assert "buggy solution ended as pass" in found["complaints"][1]
    assert (found["canonical"], found["canonical_passed"], found["buggy"], found["buggy_passed"]) == (
        1,
        0,
        1,
        1,
    )
    assert found["not_judged"] == {"needy": "needs libssl-dev (<openssl/nothing.h>)"}
    assert "not judged: needy (needs libssl-dev" in table(found)


def test_a_model_is_asked_with_the_settings(sandbox: Sandbox) -> None:
    model = Scripted(lambda _: [PROBLEM.canonical_solution, PROBLEM.buggy_solution])
    settings = CppEvalSettings(
        num_samples=2, temperature=0.5, top_k=7, top_p=0.9, max_new_tokens=9, seed=4, workers=1
    )
    report = evaluate_problems(CompletionCache(model), settings, problems=[PROBLEM], sandbox=sandbox)
    assert model.asked == [CodePrompt(PROBLEM.prompt)]
    assert model.sampling == SamplingSettings(9, 0.5, 7, 4, top_p=0.9)
    assert report.outcomes == {"pass": 1, "wrong answer": 1}
    assert report.overall["pass@1"] == 0.5
    assert report.sandbox == sandbox.name


def test_verdicts_are_kept_where_they_should(sandbox: Sandbox, tmp_path: Path) -> None:
    for _ in range(2):
        completions = CompletionCache(Scripted(lambda _: PROBLEM.canonical_solution))
        report = evaluate_problems(
            completions, CppEvalSettings(), problems=[PROBLEM], sandbox=sandbox, cache_dir=tmp_path
        )
        assert report.overall["pass@1"] == 1.0
    assert len((tmp_path / FILE).read_text().splitlines()) == 1
