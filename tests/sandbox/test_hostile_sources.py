"""Hostile source text: the compiler is the program that is attacked, or that is made to attack."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path

import psutil
import pytest

from cpplm.judge.executor import COMPILER
from cpplm.sandbox.backends import UNSAFE
from cpplm.sandbox.limits import MIB, ResourceLimits, RunResult
from cpplm.sandbox.sandbox import Sandbox
from tests.sandbox.conftest import assert_next_is_unaffected
from tests.sandbox.sources import BOMBS, COSTLY, HARMLESS_HERE, READING

# For what ends by itself: a busy machine is no failure.
LIMITS = ResourceLimits(
    wall_seconds=60, cpu_seconds=20, memory_bytes=512 * MIB, processes=16, scratch_bytes=16 * MIB
)
TIGHT = dataclasses.replace(LIMITS, wall_seconds=4, cpu_seconds=3)


def compile_in(sandbox: Sandbox, source: str, limits: ResourceLimits = LIMITS) -> RunResult:
    """Compile, see that nothing of the compiler lives on, and that the next program runs as ever."""
    name = f"h{secrets.token_hex(5)}.cpp"  # in the command line of all that the compiler starts
    command = [*COMPILER, "-o", "program", name]
    result = sandbox.run({name: source.encode()}, command, limits, fetch={"program": 16 * MIB})
    running = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert [line for line in running if line and name in " ".join(line)] == []
    assert_next_is_unaffected(sandbox)
    return result


def test_an_honest_source_compiles(sandbox: Sandbox) -> None:
    result = compile_in(sandbox, '#include <iostream>\nint main() { std::cout << "x"; }')
    assert result.succeeded
    assert result.files["program"].startswith(b"\x7fELF")


@pytest.mark.parametrize("name", READING)
def test_files_cannot_be_read(sandbox: Sandbox, name: str, public_file: Path) -> None:
    if (sandbox.name, name) == ("landlock", "existence"):
        pytest.skip("Landlock hides what is in a file, not that it is there (`Backend.lacks`)")
    result = compile_in(sandbox, READING[name].source.replace("{secret}", str(public_file)))
    for shown in (result.stdout, result.stderr, result.files.get("program", b"")):
        assert b"the secret" not in shown
        assert b"there it is" not in shown
    assert result.exit_code == (0 if name == "existence" else 1)


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/hostname", "/proc/1/environ", "/proc/1/cmdline"])
def test_well_known_files_cannot_be_included(sandbox: Sandbox, path: str) -> None:
    result = compile_in(sandbox, f'#include "{path}"\nint main() {{}}')
    for word in (b"root:", b"python", b"PATH="):
        assert word not in result.stderr


@pytest.mark.parametrize(
    "name", ["include", "include_of_a_macro", "incbin", "assembler_include", "existence"]
)
def test_those_attacks_are_real(name: str, public_file: Path) -> None:
    """Unsandboxed they succeed, so the tests above can fail."""
    source = READING[name].source.replace("{secret}", str(public_file)).encode()
    command = [*COMPILER, "-o", "program", "a.cpp"]
    result = Sandbox(UNSAFE).run({"a.cpp": source}, command, LIMITS, fetch={"program": 16 * MIB})
    shown = result.stderr + result.files.get("program", b"")
    assert (b"there it is" if name == "existence" else b"the secret") in shown


def test_linker_scripts_of_the_host_are_out_of_reach(sandbox: Sandbox, public_file: Path) -> None:
    """Unsandboxed: the linker reads any file and quotes it."""
    arguments = [*COMPILER, "-o", "program", "program.cpp", str(public_file)]
    result = sandbox.run({"program.cpp": b"int main() {}"}, arguments, LIMITS)
    assert not result.succeeded
    assert b"the secret" not in result.stderr


def test_the_harness_environment_does_not_reach_the_compiler(
    sandbox: Sandbox, public_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unsandboxed: these add folders of headers, libraries and programs to the compiler's own."""
    folder = public_file.parent
    (folder / "planted.h").write_text("#error planted\n")
    (folder / "cc1plus").write_text("#!/bin/sh\necho planted >&2\nexit 1\n")
    (folder / "cc1plus").chmod(0o755)
    paths = ("CPLUS_INCLUDE_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH", "LD_LIBRARY_PATH")
    for variable in paths:
        monkeypatch.setenv(variable, f"{folder}/")
    result = compile_in(
        sandbox, "#if __has_include(<planted.h>)\n#include <planted.h>\n#endif\nint main() {}"
    )
    assert result.succeeded, result.message()


@pytest.mark.usefixtures("patient_harness")
@pytest.mark.parametrize("name", COSTLY)
def test_costly_sources_end_soon(sandbox: Sandbox, name: str) -> None:
    result = compile_in(sandbox, COSTLY[name].source, TIGHT)
    assert not result.succeeded
    assert result.wall_seconds < 20
    assert len(result.stderr) < 64 * 1024 + 1


@pytest.mark.parametrize("name", HARMLESS_HERE)
def test_what_does_no_harm_here(sandbox: Sandbox, name: str) -> None:
    assert compile_in(sandbox, HARMLESS_HERE[name].source).reason == "exit"


@pytest.mark.slow
@pytest.mark.usefixtures("patient_harness")
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_ended_by_a_limit(sandbox: Sandbox, name: str) -> None:
    result = compile_in(sandbox, BOMBS[name].source, dataclasses.replace(TIGHT, wall_seconds=2.5))
    assert not result.succeeded
    assert result.wall_seconds < 20


def test_many_errors_make_a_short_message(sandbox: Sandbox) -> None:
    result = compile_in(sandbox, COSTLY["many_errors"].source)
    assert result.exit_code == 1
    assert 0 < len(result.stderr) < 4096
