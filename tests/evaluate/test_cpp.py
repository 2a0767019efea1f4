"""Completions compiled and run: what passes, what must not, and what is counted as what."""

from __future__ import annotations

import dataclasses

import pytest

from cpplm.core.errors import UserError
from cpplm.evaluate.cpp import (
    COMPILE_COMMAND,
    CppEvalSettings,
    evaluate_completions,
    evaluate_problems,
    judge,
    program_text,
    require_compiler,
    self_test,
)
from cpplm.evaluate.problems import Problem, load_problems
from cpplm.evaluate.scoring import Outcome
from cpplm.sandbox.limits import Limits, Result
from cpplm.sandbox.sandbox import Sandbox, SandboxError

PROBLEM = Problem(
    name="twice",
    difficulty="easy",
    prompt="#include <vector>\n#include <cstdlib>\n#include <unistd.h>\n// Doubles.\nint twice(int x) {\n",
    tests="int main() {\n    assert(twice(1) == 2);\n" + "    assert(twice(2) == 4);\n" * 4 + "}\n",
    canonical_solution="    return 2 * x;\n}\n",
    buggy_solution="    return x * x;\n}\n",
)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox.probe()


@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        ("return 2 * x; }", "pass"),
        ("return 2 * x; }\nint main() { return 0; }", "pass"),
        ("return x * x; }", "wrong answer"),
        ("return 2 * y; }", "compile error"),
        ("return 2 * x;", "compile error"),
        ("", "compile error"),
        ("\x00\x01\udcff\ufffd", "compile error"),
        ("int* p = nullptr; return *p; }", "crash"),
        ("std::abort(); }", "crash"),
        ("while (true) { } }", "timeout"),
        ("return twice(x) + 1; }", "crash"),
        ("while (true) { if (write(1, \"spam spam spam\\n\", 15) < 0) break; } return 0; }", "output limit"),
        ("std::vector<char> v(1L << 40); return v[x]; }", "memory"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)  # fmt: skip
def test_outcomes(
    sandbox: Sandbox, completion: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpplm.evaluate.cpp.RUN_LIMITS", Limits(wall_seconds=1.5, cpu_seconds=1))
    result = judge(PROBLEM, completion, sandbox)
    assert result.outcome == outcome, result.message
    if outcome == "compile error":
        assert "error" in result.message
    if outcome == "wrong answer":
        assert "Assertion" in result.message


@pytest.mark.parametrize(
    "cheat",
    [
        "_exit(0); }",
        "exit(0); }",
        "std::quick_exit(0); }",
        "std::atexit([] { _exit(0); }); return 0; }",
        "static struct Early { Early() { _exit(0); } } early; return 0; }",
        "execl(\"/bin/true\", \"true\", (char*)nullptr); return 0; }",
        "execl(\"/bin/cat\", \"cat\", \"program\", (char*)nullptr); return 0; }",
        "if (fork() > 0) _exit(0); return 0; }",
        "write(1, \"pass\", 4); _exit(0); }",
        "\n#define assert(condition)\nreturn 0; }",
        "\n#define assert(condition) ((void)0)\n#define NDEBUG\n }",
        "\n#undef assert\n#define __assert_fail(...) 0\nreturn 0; }",
        "return 0; }\n#define assert(condition)",
        'asm(".globl __assert_fail\\n__assert_fail: ret"); return 0; }',
        '_Pragma("redefine_extname __assert_fail getpid") return 0; }',
        "return 0; }\nstatic int early = (_exit(0), 0);",
        "return 0; } int never() {",
    ],
)  # fmt: skip
def test_cheats_do_not_pass(sandbox: Sandbox, cheat: str) -> None:
    assert judge(PROBLEM, cheat, sandbox).outcome != "pass"


def test_global_constructors_do_not_pass(sandbox: Sandbox) -> None:
    """Even when cutting lets one through: here it stands in the prompt."""
    cheating = dataclasses.replace(
        PROBLEM, prompt="#include <unistd.h>\nstatic int early = (_exit(0), 0);\n" + PROBLEM.prompt
    )
    assert judge(cheating, PROBLEM.canonical_solution, sandbox).outcome == "early exit"


def test_the_proof_is_printed_last_and_differs(sandbox: Sandbox) -> None:
    noisy = "write(1, \"noise\\n\", 6); return 2 * x; }"  # fmt: skip
    assert judge(PROBLEM, noisy, sandbox).outcome == "pass"
    text = program_text(PROBLEM, "return 2 * x; }", "proof")
    assert text.index("assert(twice(2)") < text.index('fputs("proof"')


def test_main_that_ends_with_return(sandbox: Sandbox) -> None:
    for ending in ("return 0;\n}\n", "return EXIT_SUCCESS ; }"):
        problem = dataclasses.replace(PROBLEM, tests=PROBLEM.tests.rstrip().removesuffix("}") + ending)
        assert judge(problem, PROBLEM.canonical_solution, sandbox).outcome == "pass"
        assert judge(problem, PROBLEM.buggy_solution, sandbox).outcome == "wrong answer"


@pytest.mark.slow
def test_self_test_of_the_small_set(sandbox: Sandbox) -> None:
    """Every canonical solution passes; every buggy one compiles and does not."""
    assert self_test(sandbox) == []


def test_self_test_of_a_part(sandbox: Sandbox) -> None:
    assert self_test(sandbox, load_problems("small")[::7]) == []


def test_self_test_complains(sandbox: Sandbox) -> None:
    swapped = dataclasses.replace(
        PROBLEM, canonical_solution=PROBLEM.buggy_solution, buggy_solution=PROBLEM.canonical_solution
    )
    complaints = self_test(sandbox, [swapped])
    assert len(complaints) == 2
    assert "canonical solution ended as wrong answer" in complaints[0]
    assert "buggy solution ended as pass" in complaints[1]


def test_a_model_is_asked_with_the_settings(sandbox: Sandbox) -> None:
    asked: list[tuple[list[str], dict[str, float]]] = []

    def generate(prompts: list[str], **sampling: float) -> list[list[str]]:
        asked.append((prompts, sampling))
        return [[PROBLEM.canonical_solution, PROBLEM.buggy_solution] for _ in prompts]

    settings = CppEvalSettings(num_samples=2, temperature=0.5, top_k=7, max_new_tokens=9, seed=4, workers=1)
    report = evaluate_problems(generate, settings, problems=[PROBLEM], sandbox=sandbox)
    sampling = {"num_samples": 2, "temperature": 0.5, "top_k": 7, "max_new_tokens": 9, "seed": 4}
    assert asked == [([PROBLEM.prompt], sampling)]
    assert report.outcomes == {"pass": 1, "wrong answer": 1}
    assert report.pass_at == {1: 0.5}
    assert report.sandbox == sandbox.name


def test_settings_choose_problems_and_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[bool] = []

    class StopError(Exception):
        pass

    def probe(*, unsafe: bool) -> Sandbox:
        probed.append(unsafe)
        raise StopError

    monkeypatch.setattr(Sandbox, "probe", probe)
    with pytest.raises(StopError):
        evaluate_problems(lambda prompts, **_: [], CppEvalSettings(unsafe=True))
    assert probed == [True]
    with pytest.raises(UserError, match="absent"):
        evaluate_problems(lambda prompts, **_: [], CppEvalSettings(problems="absent"))


def test_a_wrong_number_of_completions(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="1 completions for each of 1"):
        evaluate_problems(
            lambda prompts, **_: [["", ""]], CppEvalSettings(), problems=[PROBLEM], sandbox=sandbox
        )
    with pytest.raises(ValueError, match="at least one completion"):
        evaluate_completions([PROBLEM], {}, sandbox)
    with pytest.raises(ValueError, match="at least one completion"):
        evaluate_completions([PROBLEM], {"twice": ["}"], "other": ["}"]}, sandbox)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"workers": -1}, "workers"),
        ({"top_k": -1}, "top_k"),
        ({"num_samples": 2}, "equal samples"),
        ({"top_k": 5}, "no effect"),
    ],
)
def test_contradictory_settings(values: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CppEvalSettings(**values)  # type: ignore[arg-type]


def test_a_missing_compiler_is_named(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "g++" in require_compiler(sandbox) or "GCC" in require_compiler(sandbox)
    absent = Result("start", None, None, b"", b"g++: no such program in the sandbox", 0, 0)
    monkeypatch.setattr(sandbox, "run", lambda *_, **__: absent)
    with pytest.raises(UserError, match=r"no such program.*apt-get install g\+\+"):
        require_compiler(sandbox)


def test_a_failing_sandbox_is_counted(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Result:
        raise SandboxError("out of processes")

    monkeypatch.setattr(sandbox, "run", fail)
    result = judge(PROBLEM, PROBLEM.canonical_solution, sandbox)
    assert (result.outcome, result.message) == ("sandbox error", "out of processes")


def test_compiler_flags_bound_its_work() -> None:
    assert {"-fmax-errors=5", "-ftemplate-depth=256", "-fconstexpr-ops-limit=5000000"} <= set(COMPILE_COMMAND)
