"""What the compiler says about one text, taken apart."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpplm.corpus.compile.compiler import (
    MAX_ERRORS,
    compile_document,
    compile_file,
    main_source,
    parse_diagnostics,
)
from cpplm.cpp.parser import Language
from cpplm.sandbox.limits import RunResult
from cpplm.sandbox.sandbox import Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox.probe()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that programs in the sandbox may read, whoever runs the tests."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("int f() { return absent; }", ["absent"]),
        ("int f() { return absent(1); }", ["absent"]),
        ("Vessel load(int n);", ["Vessel"]),
        ("using Cargo = Vessel;", ["Vessel"]),
        ("int f(const Vessel& v);", ["Vessel"]),
        ("void Vessel::load() {}", ["Vessel"]),
        ("port::Lock lock;", ["port"]),
        ("namespace port { int n; } port::Lock lock;", ["port::Lock"]),
        ("namespace port { int n; } int f() { return port::open; }", ["port::open"]),
        ("struct Dock {}; Dock::Gate gate;", ["Dock::Gate"]),
        ("struct Dock {}; int f() { return Dock::gate; }", ["Dock::gate"]),
        ("struct Ship : public Vessel {};", ["Vessel"]),
        ("template <class T> struct Ship : Vessel<T> {};", ["Vessel"]),
        ("template <> struct Crate<int> {};", ["Crate"]),
        ("using namespace harbour;", ["harbour"]),
        ("template <class T> void f(T t) { later(3); }", ["later"]),
        ("struct Dock {};\nint f(Dock d) { return d.gate(); }", ["Dock::gate"]),
        ("class HULL_API Hull { int n; };", ["HULL_API"]),
        ("namespace sea { class HULL_API Hull { int n; }; }", ["HULL_API"]),
        ("typedef Vessel V;\nint g() { return absent; }", ["Vessel", "absent"]),
        ("int f() { return absent; }\nint g() { return absent; }", ["absent"]),
    ],
)
def test_undeclared_names(sandbox: Sandbox, text: str, names: list[str]) -> None:
    verdict = compile_document(text, "c++", sandbox, standards=("c++17",))
    assert not verdict.compiles
    assert list(verdict.undeclared_names) == names
    assert verdict.incomplete_types == verdict.missing_headers == ()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("vessel_t load(int n);", ["vessel_t"]),
        ("int f(vessel_t *v) { return 0; }", ["vessel_t"]),
        ("int f(void) { return absent; }", ["absent"]),
        ("int a[COUNT];", ["COUNT"]),
        ("int f(void) { return absent(1); }", ["absent"]),  # gcc before 14 only warns
    ],
)
def test_undeclared_names_in_c(sandbox: Sandbox, text: str, names: list[str]) -> None:
    verdict = compile_document(text, "c", sandbox)
    assert not verdict.compiles
    assert list(verdict.undeclared_names) == names


@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize(
    "text",
    [
        "struct Box;\nstruct Box box;\n",
        "struct Box;\nstruct Crate { struct Box inner; };\n",
        "struct Box;\nint f(struct Box *b) { return b->size; }\n",
        "struct Box;\nint f(void) { return sizeof(struct Box); }\n",
        "struct Box;\nvoid f(void) { struct Box box; }\n",
        "struct Box;\nstruct Box f(void) { }\n",
        "struct Box;\nvoid f(struct Box b) { }\n",
        "struct Box;\nextern struct Box *p;\nint f(void) { return p[1].size; }\n",
    ],
)
def test_incomplete_types(sandbox: Sandbox, text: str, language: str) -> None:
    verdict = compile_document(text, language, sandbox, standards=("c++17",))
    assert not verdict.compiles
    assert verdict.incomplete_types == ("Box",)
    assert verdict.undeclared_names == ()


def test_incomplete_types_of_cpp_alone(sandbox: Sandbox) -> None:
    for text in (
        "namespace port { class Box; }\nstruct Crate : port::Box {};",
        "namespace port { class Box; void f(Box& b) { b.open(); } }",
        "namespace port { template <class T> class Box; }\nport::Box<int> box;",
        "namespace port { class Box; }\nint n = port::Box::size;",
    ):
        assert compile_document(text, "c++", sandbox, standards=("c++17",)).incomplete_types == (
            "port::Box",
        ), text


def test_the_first_missing_header(sandbox: Sandbox) -> None:
    verdict = compile_document("#include <a/b.h>\n#include <c.h>\n", "c++", sandbox)
    assert verdict.missing_headers == ("a/b.h",)
    assert verdict.first_error == "a/b.h: No such file or directory"
    assert verdict.undeclared_names == ()


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


def test_errors_are_bounded(sandbox: Sandbox) -> None:
    text = "".join(f"int a{number} = b{number};\n" for number in range(100))
    verdict = compile_document(text, "c++", sandbox, standards=("c++17",))
    assert verdict.errors == MAX_ERRORS
    assert verdict.undeclared_names == tuple(f"b{number}" for number in range(MAX_ERRORS))
    assert verdict.first_error.startswith("'b0' was not declared")


def test_a_limit_is_a_reason() -> None:
    for reason in ("timeout", "memory", "output limit"):
        verdict = parse_diagnostics(RunResult(reason, None, None, b"", b"", 1.0, 1.0))
        assert not verdict.compiles
        assert (verdict.errors, verdict.first_error) == (0, f"the compiler was ended: {reason}")


def test_what_an_old_compiler_or_a_crash_says() -> None:
    message = (
        b"g++: internal compiler error: Segmentation fault signal terminated program cc1plus\n"
        b"document:1:1: error: 'x' was not declared in this scope\n"
        b"document:1:1: note: error: not one\n"
    )
    verdict = parse_diagnostics(RunResult("exit", 4, None, b"", message, 1.0, 1.0))
    assert verdict.undeclared_names == ("x",)
    assert verdict.errors == 2
    assert verdict.first_error.startswith("Segmentation fault")


def test_a_file_in_its_place(sandbox: Sandbox, public_folder: Path) -> None:
    (public_folder / "src").mkdir()
    (public_folder / "include").mkdir()
    (public_folder / "include" / "far.h").write_text("int far();\n")
    (public_folder / "src" / "near.h").write_text("int near();\n")
    (public_folder / "src" / "a.cpp").write_text(
        '#include "near.h"\n#include "far.h"\nint a = near() + far();\n'
    )
    without = compile_file("src/a.cpp", "", "c++", sandbox, project=public_folder)
    assert without.missing_headers == ("far.h",)
    options = ["-iquote", "project/include"]
    assert compile_file("src/a.cpp", "", "c++", sandbox, project=public_folder, options=options).compiles


def test_the_file_that_a_document_stands_for() -> None:
    assert main_source(["include/a.h", "src/a.cc", "src/b.cc"]) == "src/a.cc"
    assert main_source(["src/a.cc", "include/a.h"]) == "src/a.cc"
    assert main_source(["a.h", "b.cc"]) == "a.h"


@pytest.mark.parametrize(
    ("text", "language", "headers"),
    [
        ("struct S { uint8_t n; };", "c++", ["<cstdint>"]),
        ("int f(const char* a) { return strlen(a); }\nstd::string s;", "c++", ["<cstring>", "<string>"]),
        ("int f(const char* a) { return strlen(a); }", "c", ["<string.h>"]),
        ("int f(void) { return EOF; }", "c", ["<stdio.h>"]),
        ("int f() { return absent; }", "c++", []),
    ],
)
def test_headers_that_the_compiler_suggests(
    sandbox: Sandbox, text: str, language: Language, headers: list[str]
) -> None:
    assert list(compile_document(text, language, sandbox).suggested_headers) == headers


@pytest.mark.parametrize(
    ("text", "macros"),
    [
        ("#ifndef PORT\n#error set PORT\n#endif\n", ["PORT"]),
        ("#if !defined(PORT) // by the build\n#if 0\n#endif\n#  error\n#endif\n", ["PORT"]),
        ("# if ! defined PORT\n#error set PORT\n#endif\n#ifndef SEA\n#error\n#endif\n", ["PORT", "SEA"]),
        ("#ifndef PORT\n#else\n#endif\n#error never\n", []),
        ("#ifdef __GNUC__\n#error not for GCC\n#endif\n", []),
        ("#ifndef PORT\n#ifdef __GNUC__\n#error not for GCC\n#endif\n#endif\n", []),
        ("#error never\n", []),
    ],
)
def test_macros_that_errors_demand(sandbox: Sandbox, text: str, macros: list[str]) -> None:
    assert list(compile_document(text, "c++", sandbox).required_macros) == macros
