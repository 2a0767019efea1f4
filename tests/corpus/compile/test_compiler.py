"""The compiler's messages about one text, taken apart."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpplm.corpus.compile.compiler import compile_document, main_source, parse_diagnostics
from cpplm.sandbox.limits import RunResult
from cpplm.sandbox.sandbox import Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox.probe()


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that the sandbox's user may read, too."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_the_first_missing_header(sandbox: Sandbox) -> None:
    verdict = compile_document("#include <a/b.h>\n#include <c.h>\n", "c++", sandbox)
    assert verdict.missing_headers == ("a/b.h",)
    assert verdict.first_error == "a/b.h: No such file or directory"


def test_a_later_standard_where_the_first_fails(sandbox: Sandbox) -> None:
    concept = "template <class T> concept Any = true;\nint f(Any auto a) { return a; }\n"
    verdict = compile_document(concept, "c++", sandbox)
    assert (verdict.compiles, verdict.standard, verdict.later_standard) == (True, "c++20", True)
    assert not compile_document(concept, "c++", sandbox, standards=("c++17",)).compiles
    plain = compile_document("int n;", "c++", sandbox)
    assert (plain.standard, plain.later_standard) == ("c++17", False)
    library = compile_document("#include <type_traits>\nusing T = std::remove_cvref_t<int&>;", "c++", sandbox)
    assert (library.compiles, library.later_standard) == (True, True)
    both = compile_document("int n = absent;", "c++", sandbox)
    assert (both.compiles, both.standard, both.later_standard) == (False, "c++17", False)


def test_each_version_of_a_library_is_tried(sandbox: Sandbox, shared_folder: Path) -> None:
    folders = [shared_folder / name for name in ("lib-2.0", "other", "lib-3.0", "lib-2.0")]
    for folder, text in zip(folders, ("int old;", "#include <lib.h>\n", "int now;"), strict=False):
        folder.mkdir()
        name = "other.h" if folder.name == "other" else "lib.h"
        (folder / name).write_text(text)
    for name in ("old", "now"):
        assert compile_document(
            f"#include <other.h>\nint n() {{ return {name}; }}\n", "c", sandbox, folders
        ).compiles
    later = compile_document("#include <other.h>\nint n() { return old + now; }\n", "c", sandbox, folders)
    assert (later.compiles, later.place[0]) == (False, 2)


CONCEPT = "template <class T> concept Any = true;\n"
RANGES = "#include <ranges>\n#include <vector>\nauto r = std::views::iota(1);\n"


@pytest.mark.parametrize(
    ("text", "standard", "error"),
    [
        (CONCEPT + "int n = absent;\n", "c++20", "'absent' was not declared in this scope"),
        (CONCEPT + "\nint f(Any auto a) { return a.b }", "c++20", "expected ';' before '}' token"),
        (RANGES + "Absent n;\n", "c++20", "'Absent' does not name a type"),
        ("#include <compare>\nbool n = 1 <=> absent;", "c++20", "'absent' was not declared in this scope"),
        ("constinit int n = absent;", "c++20", "'absent' was not declared in this scope"),
        ("int requires = 1;\nint n = ;\n", "c++17", "expected primary-expression before ';' token"),
        ("int n = ;\n", "c++17", "expected primary-expression before ';' token"),
        ("int n = absent;\n" + CONCEPT, "c++17", "'absent' was not declared in this scope"),
    ],
)
def test_the_error_is_that_of_the_standard_that_gets_furthest(
    sandbox: Sandbox, text: str, standard: str, error: str
) -> None:
    verdict = compile_document(text, "c++", sandbox)
    assert (verdict.standard, verdict.first_error) == (standard, error)


@pytest.mark.slow
def test_what_no_standard_brings_is_tried_once(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    run = Sandbox.run

    def counted(
        self: Sandbox, files: dict[str, bytes], argv: list[str], *rest: Any, **more: Any
    ) -> RunResult:
        commands.append(argv)
        return run(self, files, argv, *rest, **more)

    monkeypatch.setattr(Sandbox, "run", counted)
    runs = {
        "int n = absent;": 1,
        '#include "nowhere.h"': 1,
        "auto s = std::span<int>();": 2,
        "constinit int n = absent;": 2,
        "int n": 2,
    }
    for text, number in runs.items():
        commands.clear()
        compile_document(text, "c++", sandbox)
        assert len(commands) == number, text


def test_the_first_error_counts(sandbox: Sandbox) -> None:
    text = "".join(f"int a{number} = b{number};\n" for number in range(100))
    verdict = compile_document(text, "c++", sandbox, standards=("c++17",))
    assert verdict.first_error.startswith("'b0' was not declared")


def test_a_limit_is_a_reason() -> None:
    for reason in ("timeout", "memory", "output limit"):
        verdict = parse_diagnostics(RunResult(reason, None, None, b"", b"", 1.0, 1.0))
        assert not verdict.compiles
        assert verdict.first_error == f"the compiler was ended: {reason}"


def test_what_an_old_compiler_or_a_crash_says() -> None:
    message = (
        b"g++: internal compiler error: Segmentation fault signal terminated program cc1plus\n"
        b"document:1:1: error: 'x' was not declared in this scope\n"
        b"document:1:1: note: error: not one\n"
    )
    verdict = parse_diagnostics(RunResult("exit", 4, None, b"", message, 1.0, 1.0))
    assert verdict.first_error.startswith("Segmentation fault")


def test_the_file_that_a_document_stands_for() -> None:
    assert main_source(["include/a.h", "src/a.cc", "src/b.cc"]) == "src/a.cc"
    assert main_source(["src/a.cc", "include/a.h"]) == "src/a.cc"
    assert main_source(["a.h", "b.cc"]) == "a.h"
