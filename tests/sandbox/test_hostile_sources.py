"""Hostile source text: the compiler is the program that is attacked, or that is made to attack."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cpplm.evaluate.cpp import COMPILE_COMMAND
from cpplm.sandbox.limits import MIB, Limits, Result
from cpplm.sandbox.sandbox import Sandbox

LIMITS = Limits(wall_seconds=4, cpu_seconds=3, memory_bytes=512 * MIB, processes=16, scratch_bytes=16 * MIB)


def compile_in(sandbox: Sandbox, source: str, limits: Limits = LIMITS) -> Result:
    result = sandbox.run(
        {"program.cpp": source.encode()}, list(COMPILE_COMMAND), limits, fetch={"program": 16 * MIB}
    )
    after = sandbox.run({}, ["/bin/echo", "unaffected"], Limits())
    assert after.stdout == b"unaffected\n"
    return result


def test_an_honest_source_compiles(sandbox: Sandbox) -> None:
    result = compile_in(sandbox, '#include <iostream>\nint main() { std::cout << "x"; }')
    assert result.succeeded
    assert result.files["program"].startswith(b"\x7fELF")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/proc/1/environ",
        pytest.param("/etc/shadow", marks=pytest.mark.slow),
        pytest.param("/etc/hostname", marks=pytest.mark.slow),
        pytest.param("/proc/self/environ", marks=pytest.mark.slow),
    ],
)
def test_files_cannot_be_included(sandbox: Sandbox, path: str) -> None:
    """Unsandboxed: the file's first lines stand in the error message."""
    result = compile_in(sandbox, f'#include "{path}"\nint main() {{}}')
    assert result.exit_code == 1 or path.startswith("/proc")
    assert b"root" not in result.stderr
    assert b"PATH" not in result.stderr or path.startswith("/proc/self")


def test_files_cannot_be_put_into_the_program(sandbox: Sandbox, public_file: Path) -> None:
    """Unsandboxed: the file's contents stand in the program."""
    result = compile_in(sandbox, f'asm(".incbin \\"{public_file}\\"");\nint main() {{}}')
    assert result.exit_code == 1
    assert result.files == {}
    assert b"the secret" not in result.stderr


def test_linker_scripts_of_the_host_are_out_of_reach(sandbox: Sandbox, public_file: Path) -> None:
    """Unsandboxed: the linker reads any file and quotes it."""
    arguments = [*COMPILE_COMMAND, str(public_file)]
    result = sandbox.run({"program.cpp": b"int main() {}"}, arguments, LIMITS)
    assert not result.succeeded
    assert b"the secret" not in result.stderr


@pytest.mark.parametrize(
    "source",
    [
        pytest.param('#include "program.cpp"\nint main() {}', id="self_include"),
        pytest.param("int numbers[100000000] = {1};\nint main() {}", id="huge_object"),
        pytest.param(
            "constexpr int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\nconstexpr int x = f(60);",
            id="constexpr",
            marks=pytest.mark.slow,
        ),
        pytest.param("template <int N> struct S { S<N + 1> s; };\nS<0> s;\nint main() {}", id="template"),
    ],
)
def test_costly_sources_end_soon(sandbox: Sandbox, source: str) -> None:
    """Unsandboxed: up to minutes, or a file of 400 MB."""
    result = compile_in(sandbox, source)
    assert not result.succeeded
    assert result.wall_seconds < LIMITS.wall_seconds + 2
    assert len(result.stderr) < 64 * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        pytest.param('#include "/dev/zero"\nint main() {}', id="dev_zero"),
        pytest.param(
            "template <int N, int M> struct T { T<N - 1, 2 * M> a; T<N - 1, 2 * M + 1> b; };\n"
            "template <int M> struct T<0, M> { int x; };\nT<26, 0> tree;\nint main() {}",
            id="template_tree",
        ),
        pytest.param(
            "#define A0 x x x x x x x x\n"
            + "".join(f"#define A{i} {' '.join([f'A{i - 1}'] * 8)}\n" for i in range(1, 10))
            + "int main() { A9 }",
            id="macro_bomb",
        ),
    ],
)
def test_bombs_are_ended_by_a_limit(sandbox: Sandbox, source: str) -> None:
    """Unsandboxed: gigabytes of memory, and a compiler that outlives the time limit of its driver."""
    result = compile_in(sandbox, source, dataclasses.replace(LIMITS, wall_seconds=2.5))
    assert not result.succeeded
    assert result.wall_seconds < 4.5


def test_many_errors_make_a_short_message(sandbox: Sandbox) -> None:
    """Unsandboxed and without -fmax-errors: megabytes of text."""
    result = compile_in(sandbox, "".join(f"int a{i} = undeclared{i};\n" for i in range(5000)))
    assert result.exit_code == 1
    assert 0 < len(result.stderr) < 4096
