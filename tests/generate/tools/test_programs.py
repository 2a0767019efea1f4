"""Programs that a model wrote, compiled and run: what it is told, and what they cannot do."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.generate.tools.programs import Programs
from cpplm.sandbox.sandbox import Sandbox
from tests.generate.talker import project


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with project() as root:
        (root / "include").mkdir()
        (root / "include" / "deep.h").write_text("inline int deep() { return 7; }\n")
        (root / "twice.h").write_text("inline int twice(int x) { return 2 * x; }\n")
        yield root


@pytest.fixture(scope="module")
def programs(root: Path) -> Programs:
    return Programs(Sandbox.probe(), root)


def soon(seconds: float = 30) -> float:
    return time.monotonic() + seconds


# ---- compile ----------------------------------------------------------------------------------------------


def test_what_the_compiler_says(programs: Programs) -> None:
    assert programs.compile(soon(), "int main() {}\n") == "compiled"
    warned = programs.compile(soon(), "int main() { int unused; }\n")
    assert warned.startswith("compiled, with warnings:\nprogram.cpp: In function 'int main()'")
    assert "unused variable" in warned
    failed = programs.compile(soon(), "int main() {\n    return x;\n}\n")
    assert failed.startswith("does not compile\n")
    assert "program.cpp:2:12: error: 'x' was not declared" in failed
    assert "undefined reference to `main'" in programs.compile(soon(), "int f();")


def test_the_project_has_its_headers(programs: Programs) -> None:
    source = "#include <twice.h>\n#include <deep.h>\nint main() { return twice(deep()) - 14; }\n"
    assert programs.run(soon(), source) == "ended with exit code 0"


def test_the_compiler_reads_nothing_else(programs: Programs) -> None:
    said = programs.compile(soon(), '#include "project/../../../etc/passwd"\nint main() {}\n')
    assert said.startswith("does not compile")
    assert "root:" not in said


@pytest.mark.parametrize(
    "source",
    [
        "constexpr int f() { for (;;) {} } constexpr int x = f(); int main() {}",
        "\ud800 \0 int main() { \xff }",
        "",
    ],
    ids=["for ever", "no text", "nothing"],
)
def test_hostile_sources(programs: Programs, source: str) -> None:
    begin = time.monotonic()
    assert programs.compile(soon(5), source).startswith("does not compile")
    assert time.monotonic() - begin < 12


# ---- run --------------------------------------------------------------------------------------------------


def test_how_a_program_ended(programs: Programs) -> None:
    source = (
        "#include <cstdio>\n#include <cstdlib>\n"
        "int main() { int c; while ((c = getchar()) != EOF) putchar(c - 1);\n"
        'fputs("oh\\n", stderr); exit(3); }\n'
    )
    assert programs.run(soon(), source, "IBM") == "ended with exit code 3\nHAL\nstderr:\noh"
    assert programs.run(soon(), "int main() { *(volatile int*)0 = 1; }") == "ended by signal 11 (SIGSEGV)"
    assert programs.run(soon(), "int main() { return x; }").startswith("does not compile")
    assert "65,536 bytes" in programs.run(soon(), "int main() {}", "x" * 65537)


def test_programs_see_nothing_of_the_host_and_change_nothing(programs: Programs, root: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    source = (
        "#include <cstdio>\nvoid look(const char* name, const char* mode) {\n"
        '    if (FILE* f = fopen(name, mode)) { char s[9] = ""; fgets(s, 9, f);\n'
        'printf("%s: %s\\n", name, s); }\n}\n'
        f'int main() {{ look("/etc/passwd", "r"); look("{root}/twice.h", "a"); look("{root}/new", "w");\n'
        '    look("project/twice.h", "a"); look("x", "w"); look("../x", "w"); }\n'
    )
    assert programs.run(soon(), source) == "ended with exit code 0"
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


# ---- test -------------------------------------------------------------------------------------------------

SQUARE = "#include <cassert>\nint square(int x) { return x * x; }\n"


@pytest.mark.parametrize(
    ("source", "tests", "expected"),
    [
        (SQUARE, "assert(square(3) == 9); assert(square(-1) == 1);", "passed\n2 of 2 assertions held"),
        ("int f() { return 1; }", "assert(f() == 1)", "passed\n1 of 1 assertions held"),
        (
            SQUARE,
            "assert(square(3) == 9);\nassert(square(2) == 5); assert((square(1), true));",
            "failed\nfailed: assert(square(2) == 5)\n2 of 3 assertions held",
        ),
        (SQUARE, "", "the tests assert nothing\n0 of 0 assertions held"),
        (
            "#include <cstdlib>\nint f() { exit(0); }",
            "assert(f() == 1);",
            "ended with exit code 0 before the end of the tests",
        ),
        (
            "int f() { __builtin_trap(); }",
            "assert(f() == 1);",
            "ended by signal 4 (SIGILL) before the end of the tests",
        ),
    ],
)
def test_tests_are_counted(programs: Programs, source: str, tests: str, expected: str) -> None:
    assert programs.test(soon(), source, tests) == expected


def test_tests_that_do_not_compile_are_told_their_line(programs: Programs) -> None:
    said = programs.test(soon(), SQUARE, "assert(square(3) == 9);\nassert(cube(3) == 27);")
    assert said.startswith("does not compile")
    assert "tests:2:" in said
    assert "redefinition of 'int main()'" in programs.test(soon(), "int main() {}", "assert(true);")
