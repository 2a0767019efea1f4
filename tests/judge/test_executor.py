"""Programs compiled and run: what passes, what must not, what is counted as what, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.judge import executor
from cpplm.judge.executor import MAX_ANSWER_CHARS, Judge, Program
from cpplm.judge.result_cache import FILE, Verdict
from cpplm.judge.scoring import Outcome
from cpplm.sandbox.limits import ResourceLimits, RunResult
from cpplm.sandbox.sandbox import Sandbox, SandboxError

BEFORE = "#include <cstdlib>\n#include <unistd.h>\n// Doubles.\nint twice(int x) {\n"
AFTER = (
    "\nint main() {\n    assert(twice(1) == 2);\n    assert(twice(2) == 4);\n    assert(twice(0) == 0);\n}\n"
)
RIGHT = "return 2 * x; }"


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox.probe()


@pytest.fixture(scope="module")
def judge(sandbox: Sandbox) -> Judge:
    return Judge(sandbox, limits=ResourceLimits(wall_seconds=3, cpu_seconds=1))


def verdict(judge: Judge, written: str, before: str = BEFORE, after: str = AFTER) -> Verdict:
    [(number, found)] = judge.judge([Program(before, written, after)])
    assert number == 0
    return found


@pytest.fixture(scope="module")
def verdicts(judge: Judge) -> dict[str, Verdict]:
    """Of all outcomes and cheats below, judged together."""
    texts = [*(text for text, _, _ in OUTCOMES), *CHEATS]
    return {texts[n]: found for n, found in judge.judge([Program(BEFORE, text, AFTER) for text in texts])}


OUTCOMES: list[tuple[str, Outcome, int]] = [
    (RIGHT, "pass", 3),
    ("return x * x; }", "wrong answer", 2),
    ("return x == 1 ? 2 : 7; }", "wrong answer", 1),
    ("return 2 * y; }", "compile error", 0),
    ("return 2 * x;", "compile error", 0),
    ("int* p = nullptr; return *p; }", "crash", 0),
    ("if (x == 2) std::abort(); return 2; }", "crash", 1),
    ("if (x == 0) _exit(0); return 2 * x; }", "early exit", 2),
    ("if (x == 0) exit(3); return 2 * x; }", "early exit", 2),
    ("if (x == 2) throw 1; return 2; }", "crash", 1),
    ("while (x == 2) { } return 2; }", "timeout", 1),
    ("if (x == 2) return 0; if (x == 0) while (true) { } return 2; }", "wrong answer", 1),
    ("if (x == 2) return 0; if (x == 0) _exit(0); return 2; }", "wrong answer", 1),
    ("return twice(x) + 1; }", "crash", 0),
    ("while (x == 2) if (write(1, \"spam spam spam\\n\", 15) < 0) break; return 2; }", "output limit", 1),
    ("char* all = new char[1L << 40]; return all[x]; }", "memory", 0),
    ("for (volatile long i = 0; i < 99999; ++i) write(1, \"\", 0); return 2 * x; }", "pass", 3),
]  # fmt: skip


@pytest.mark.parametrize(("written", "outcome", "passed"), OUTCOMES, ids=ascii)
def test_outcomes(verdicts: dict[str, Verdict], written: str, outcome: Outcome, passed: int) -> None:
    found = verdicts[written]
    assert found.outcome == outcome, found.message
    assert (found.assertions, found.assertions_passed) == (3, passed)
    if outcome == "compile error":
        assert "error" in found.message
        assert "cpplm" not in found.message
    if outcome == "wrong answer":
        assert "failed: twice(" in found.message
    if outcome == "crash":
        assert found.message.startswith(("signal 6\n", "signal 11\n"))
    assert found.cpu_seconds > 0


@pytest.mark.parametrize(
    ("written", "outcome"),
    [
        ("\x00return 2 * x; }", "binary"),
        ("\x1b[0m }", "binary"),
        ("\udcff }", "binary"),
        ("return 2 * x; }" + " " * MAX_ANSWER_CHARS, "too long"),
        ("\n#define twice 2\n }", "forbidden"),
        ("a\\\nsm(\"\"); }", "forbidden"),
        ("as\\  \nm(\"\"); }", "forbidden"),
        ("[[gnu::constructor]] void f(); }", "forbidden"),
        ("cpplm_judge::finish(); }", "forbidden"),
        ("CPPLM_ASSERT(0, true); }", "forbidden"),
        ("return 2 * x; /* }", "compile error"),
        ("return R\"(; }", "compile error"),
        ("return '\ufffd'; // \ufffd }", "compile error"),
    ],
    ids=ascii,
)  # fmt: skip
def test_texts_that_are_no_answer_are_named(judge: Judge, written: str, outcome: Outcome) -> None:
    found = verdict(judge, written)
    assert found.outcome == outcome, found.message
    assert (found.assertions, found.assertions_passed) == (3, 0)
    assert found.message


CHEATS = [
    "_exit(0); }",
    "exit(0); }",
    "std::quick_exit(0); }",
    "std::atexit([] { _exit(0); }); return 0; }",
    "static struct Early { Early() { _exit(0); } } early; return 0; }",
    'execl("/bin/true", "true", (char*)nullptr); return 0; }',
    'execl("/bin/cat", "cat", "program", (char*)nullptr); return 0; }',
    'execl("/bin/cat", "cat", "/proc/self/exe", (char*)nullptr); return 0; }',
    'execl("/bin/cat", "cat", (char*)nullptr); return 0; }',
    "char all[9999]; write(1, all, read(0, all, 9999)); return 0; }",
    "if (fork() > 0) _exit(0); return 0; }",
    'write(1, "pass", 4); _exit(0); }',
    "\n#define assert(condition)\nreturn 0; }",
    "\n#define assert(condition) ((void)0)\n#define NDEBUG\n }",
    "\n#undef assert\n#define __assert_fail(...) 0\nreturn 0; }",
    "return 0; }\n#define assert(condition)",
    'asm(".globl __assert_fail\\n__assert_fail: ret"); return 0; }',
    '_Pragma("redefine_extname __assert_fail getpid") return 0; }',
    "struct S { __attribute__((constructor)) static void f() { char c[99]; read(0, c, 99); } }; return 0; }",
    "struct S { [[gnu::constructor(101)]] static void f() { char c[99]; read(0, c, 99); } }; return 0; }",
    "struct S {}; auto f = [](auto s) { finish(s); check(s, true); }; f(S{}); return 0; }",
    "using namespace cpplm_judge; failed = false; finish(); return 0; }",
    # Behind the brace, as text for a hole may go on:
    "return 0; }\nstatic int early = (_exit(0), 0);",
    "return 0; }\nint main() { }\n/*",
    "return 0; }\nint main() { return 0; }\nint no_main() {",
    "return 0; }\nint main() { }\nconst char* rest = R\"(",
    "return 0; }\nnamespace cpplm_judge { void finish(); }",
]  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS, ids=ascii)
def test_cheats_do_not_pass(verdicts: dict[str, Verdict], cheat: str) -> None:
    assert verdicts[cheat].outcome != "pass"


def test_reports_read_back_are_worth_nothing(judge: Judge) -> None:
    """Reading from the pipe that reports go to steals words that were used already."""
    thief = """
        if (x == 1) return 2;
        static char stolen[4096];
        int pipe = open("/proc/self/fd/1", O_RDONLY | O_NONBLOCK);
        long got = read(pipe, stolen, sizeof stolen);
        if (got > 0) for (int i = 0; i < 9; ++i) write(1, stolen, got);
        _exit(0);
    }"""
    found = verdict(judge, thief, "#include <fcntl.h>\n" + BEFORE)
    assert (found.outcome, found.assertions_passed <= 1) == ("early exit", True)


def test_a_failure_that_could_not_be_reported_is_one(judge: Judge) -> None:
    hides = (
        "static int saved = dup(1); if (x == 2) close(1); if (x == 0) dup2(saved, 1); return 2 * (x == 1); }"
    )
    found = verdict(judge, hides)
    assert (found.outcome, found.assertions_passed) == ("early exit", 2)


def test_code_before_main_does_not_pass(judge: Judge) -> None:
    early = "#include <unistd.h>\nstatic int early = (_exit(0), 0);\n" + BEFORE
    assert verdict(judge, RIGHT, early).outcome == "early exit"


def test_assertions_in_loops_and_templates(judge: Judge) -> None:
    after = """
    template <class T> void holds(T x) { assert(twice(x) == x + x); }
    int main() {
        for (int i = 0; i < 5; ++i) assert(twice(i) == 2 * i);
        for (int i = 0; i < 5; ++i) assert(twice(i) != 6);
        holds(3); holds(4L);
        if (twice(1) == 0) assert(false);
        return 0;
    }"""
    found = verdict(judge, RIGHT, after=after)
    assert (found.outcome, found.assertions, found.assertions_passed) == ("wrong answer", 4, 2)
    assert found.message.startswith("assertion 3 of 4 failed: twice(i) != 6")


def test_no_header_is_lent(judge: Judge) -> None:
    """What the program does not include is not there, although the tests include it."""
    after = "\n#include <algorithm>\n#include <cassert>" + AFTER
    texts = ["return std::max(x, 2 * x); }", "assert(x); return 2 * x; }", "return read(0, 0, 0); }", RIGHT]
    found = dict(judge.judge([Program("int twice(int x) {\n", text, after) for text in texts]))
    assert [found[n].outcome for n in range(4)] == ["compile error"] * 3 + ["pass"]


# ---- what is kept ------------------------------------------------------------------------------------------


@pytest.fixture
def runs(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The command lines that the sandbox was asked to run."""
    asked: list[list[str]] = []
    run = Sandbox.run

    def counting(
        self: Sandbox, files: dict[str, bytes], argv: list[str], *rest: object, **more: object
    ) -> RunResult:
        asked.append(argv)
        return run(self, files, argv, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Sandbox, "run", counting)
    yield asked


def compilations(asked: list[list[str]]) -> int:
    return sum("program.cpp" in argv for argv in asked)


def test_equal_programs_are_compiled_once(sandbox: Sandbox, tmp_path: Path, runs: list[list[str]]) -> None:
    programs = [Program(BEFORE, text, AFTER) for text in (RIGHT, "return 1; }", RIGHT, RIGHT)]
    first = dict(Judge(sandbox, cache_dir=tmp_path).judge(programs))
    assert compilations(runs) == 2
    assert [first[number].outcome for number in range(4)] == ["pass", "wrong answer", "pass", "pass"]
    again = dict(Judge(sandbox, cache_dir=tmp_path).judge(programs))
    assert compilations(runs) == 2
    assert again == first


def test_an_interrupted_judge_goes_on(sandbox: Sandbox, tmp_path: Path, runs: list[list[str]]) -> None:
    programs = [Program(BEFORE, f"return 2 * x + {n}; }}", AFTER) for n in range(4)]
    stopped = Judge(sandbox, workers=1, cache_dir=tmp_path).judge(programs)
    next(stopped)
    stopped.close()
    done = compilations(runs)
    assert 1 <= done < 4
    assert len((tmp_path / FILE).read_text().splitlines()) == done
    found = dict(Judge(sandbox, cache_dir=tmp_path).judge(programs))
    assert compilations(runs) == 4
    assert [found[n].outcome for n in range(4)] == ["pass", *["wrong answer"] * 3]


@pytest.mark.slow
def test_other_limits_and_another_compiler_are_another_question(sandbox: Sandbox, tmp_path: Path) -> None:
    program = Program(BEFORE, RIGHT, AFTER)
    for limits in (ResourceLimits(), ResourceLimits(cpu_seconds=3)):
        list(Judge(sandbox, cache_dir=tmp_path, limits=limits).judge([program]))
    other = Judge(sandbox, cache_dir=tmp_path)
    other.compiler = "g++ 99"
    list(other.judge([program]))
    keys = [json.loads(line)["key"] for line in (tmp_path / FILE).read_text().splitlines()]
    assert len(set(keys)) == 3


def test_what_the_machine_is_to_blame_for_is_not_kept(sandbox: Sandbox, tmp_path: Path) -> None:
    sleeps = Program(BEFORE, "sleep(60); return 2 * x; }", AFTER)
    limits = ResourceLimits(wall_seconds=0.3)
    for _ in range(2):
        [(_, found)] = Judge(sandbox, cache_dir=tmp_path, limits=limits).judge([sleeps])
        assert found.outcome == "timeout"
    assert not (tmp_path / FILE).exists()


@pytest.mark.slow
def test_an_endless_loop_is_the_programs_own_fault(sandbox: Sandbox, tmp_path: Path) -> None:
    loops = Program(BEFORE, "while (true) { } }", AFTER)
    limits = ResourceLimits(wall_seconds=60, cpu_seconds=1)
    for _ in range(2):
        [(_, found)] = Judge(sandbox, cache_dir=tmp_path, limits=limits).judge([loops])
        assert found.outcome == "timeout"
        assert len((tmp_path / FILE).read_text().splitlines()) == 1  # judged once


def test_a_failing_sandbox_is_counted_and_not_kept(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Judge(sandbox, cache_dir=tmp_path)
    run = Sandbox.run

    def fail(self: Sandbox, files: dict[str, bytes], *rest: object, **more: object) -> RunResult:
        if "program.cpp" in files:
            raise SandboxError("out of processes")
        return run(self, files, *rest, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Sandbox, "run", fail)
        found = verdict(judge, RIGHT)
    assert (found.outcome, found.message) == ("sandbox error", "out of processes")
    assert verdict(judge, RIGHT).outcome == "pass"


# ---- headers and speed -------------------------------------------------------------------------------------


def test_a_missing_header_is_named_and_not_held_against_the_program(
    judge: Judge, runs: list[list[str]]
) -> None:
    programs = [
        Program("#include <boost/no_such.hpp>\n" + BEFORE, RIGHT, AFTER),
        Program("// #include <commented/out.h>\n" + BEFORE, RIGHT, AFTER),
        Program(BEFORE, RIGHT, "\n#include <nowhere.h>" + AFTER),
    ]
    found = dict(judge.judge(programs))
    assert (found[0].outcome, found[0].message) == ("not judged", "needs libboost-dev (<boost/no_such.hpp>)")
    assert found[1].outcome == "pass"
    assert (found[2].outcome, found[2].message) == ("not judged", "needs the header (<nowhere.h>)")
    assert compilations(runs) <= 1


@pytest.mark.slow
def test_headers_compiled_beforehand_change_no_verdict(sandbox: Sandbox, runs: list[list[str]]) -> None:
    """Those of a program itself are used; one that it lacks stays missing."""
    texts = [
        "int a[2] = {x, x}; std::sort(a, a + 2); return 2 * a[0]; }",
        "std::vector<int> v; return 2 * x; }",
        RIGHT,
    ]
    with_vector = [Program("#include <vector>\nint twice(int x) {\n", text, AFTER) for text in texts]
    with_both = [
        Program(f"// {n}\n#include <vector>\n#include <algorithm>\nint twice(int x) {{\n", text, AFTER)
        for n in range(executor.MIN_PROGRAMS_TO_PRECOMPILE)
        for text in texts
    ]
    programs = [*with_vector, *with_both]
    fast = dict(Judge(sandbox, speed_up=True).judge(programs))
    assert sum("headers/all.h" in argv for argv in runs) == len(with_both)
    slow = dict(Judge(sandbox, speed_up=False).judge(programs))
    assert sum("headers/all.h" in argv for argv in runs) == len(with_both)
    assert {n: v.outcome for n, v in fast.items()} == {n: v.outcome for n, v in slow.items()}
    assert [fast[n].outcome for n in range(3)] == ["compile error", "pass", "pass"]
    assert {fast[n].outcome for n in range(3, len(programs))} == {"pass"}
    one_by_one = Judge(sandbox)
    for program in with_both[::3]:  # all different
        assert [verdict.outcome for _, verdict in one_by_one.judge([program])] == [fast[3].outcome]
    assert sum("headers/all.h" in argv for argv in runs) == len(with_both) + 1  # the last of them


def test_a_function_that_owes_a_value_never_passes_by_luck(judge) -> None:
    tests = "int main() {\n" + "assert(f(1) == true);\nassert(f(2) == false);\n" * 3 + "}\n"
    program = Program("#include <cassert>\nbool f(int x) {\n", "}\n", tests)
    assert [verdict.outcome for _, verdict in judge.judge([program])] == ["crash"]
