"""References that libclang finds in small projects, and the documents that come of it."""

import json
import re
import signal
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

import cpplm.corpus.project
from cpplm.core.errors import UserError
from cpplm.corpus.build import build
from cpplm.corpus.clang import flags, process, semantics
from cpplm.corpus.clang.semantics import UnitParser, plan_semantics
from cpplm.corpus.ingest.discovery import Project, find_files
from cpplm.corpus.settings import CorpusSettings
from cpplm.corpus.slicing.documents import SliceOptions, build_unit
from cpplm.corpus.slicing.measure import Measure
from cpplm.corpus.slicing.references import UnitReferences
from cpplm.corpus.slicing.shortening import Shortener
from cpplm.sandbox.backends import BACKENDS
from cpplm.sandbox.sandbox import backend_problem
from tests.corpus.cpp import index_of, needs_gxx, utf8_bytes, write_files
from tests.corpus.settings import compilable

pytestmark = needs_gxx  # the standard library comes with it


def parser_of(folder: Path, files: dict[str, str]) -> UnitParser:
    project = Project("p", (write_files(folder, files),))
    plan = plan_semantics(compilable(out="o", projects=(folder,), semantic=True), project)
    assert plan is not None
    return UnitParser(plan, find_files(project)[0])


def meaning(found: UnitReferences | None, file: str, line: int, name: str) -> set[str]:
    """The places, as "file:line" from 1, of what a name on a line means."""
    assert found is not None
    entities = [found.entities[number] for at, (number, _) in found.references[file] if at == line - 1]
    return {f"{f}:{n + 1}" for each in entities if each.name == name.encode() for f, n in each.places}


def texts(folder: Path, files: dict[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Documents by the first file of their unit, and what happened to the units."""
    parser = parser_of(folder, files)
    units, index = index_of(folder)
    options = SliceOptions(49_152, Measure(utf8_bytes))
    shortener = Shortener(index.macros)
    found = {unit.name: build_unit(unit, index, shortener, options, parser) for unit in units}
    parser.close()
    contents = {name: "".join(each.text for each in documents) for name, documents in found.items()}
    return contents, semantics.semantic_figures(parser.outcomes)


def test_overloads_operators_and_conversions_are_told_apart(tmp_path):
    lines = ["struct A { operator bool() const; };", "A operator+(A, A);", "A operator+(A, int);",
             "void f(int);", "void f(double);", "void g(A a) { if (a + 1) f(1.5); }",
             "namespace n { void f(int); }"]  # fmt: skip
    parser = parser_of(tmp_path, {"a.cpp": "\n".join(lines)})
    found = parser("a.cpp", ())
    parser.close()
    assert meaning(found, "a.cpp", 6, "f") == {"a.cpp:5"}
    assert meaning(found, "a.cpp", 6, "operator+") == {"a.cpp:3"}
    assert meaning(found, "a.cpp", 6, "operator bool") == {"a.cpp:1"}
    assert parser.outcomes == {"a.cpp": ("", "")}


def test_all_declarations_of_a_thing_are_its_places_and_of_a_template_those_of_the_template(tmp_path):
    files = {
        "a.h": "struct S;\ntemplate <class T> struct Box { T get(); };\nS* make();\n",
        "a.cpp": '#include "a.h"\nstruct S {};\nS* make() { return nullptr; }\n'
        "template <> struct Box<char> { int get(); };\n"
        "int use(Box<int>& a, Box<char>& b) { make(); return a.get() + b.get(); }\n",
    }
    parser = parser_of(tmp_path, files)
    found = parser("a.cpp", ())
    parser.close()
    assert meaning(found, "a.cpp", 3, "S") == {"a.h:1", "a.cpp:2"}
    assert meaning(found, "a.cpp", 5, "make") == {"a.h:3", "a.cpp:3"}
    assert meaning(found, "a.cpp", 5, "get") == {"a.h:2", "a.cpp:4"}
    assert meaning(found, "a.cpp", 4, "Box") >= {"a.h:2", "a.cpp:4"}


def test_a_document_borrows_the_overload_that_is_called(tmp_path):
    files = {
        "a.h": "#pragma once\n#include <string>\nstruct One {};\nstruct Two {};\n"
        "inline void show(One) {}\ninline void show(Two) {}\ninline int size() { return 1; }\n"
        "namespace n { inline void show(One) {} }\n",
        "b.cpp": '#include "a.h"\nvoid use(std::string) { show(One()); int size = 1; (void)size; }\n',
    }
    found, counts = texts(tmp_path, files)
    assert counts["parsed"] == 2
    assert "show(One) {}" in found["b.cpp"]
    assert (
        "Two" not in found["b.cpp"] and "size()" not in found["b.cpp"] and "namespace n" not in found["b.cpp"]
    )


@pytest.mark.parametrize("use", ["template <class T> void use(T t) { f(t); }", "#define USE f(One())"])
def test_what_is_not_understood_is_matched_by_name(tmp_path, use):
    files = {
        "a.h": "#pragma once\nstruct One {};\ninline void f(One) {}\n",
        "b.cpp": f'#include "a.h"\n{use}\n',
    }
    found, _ = texts(tmp_path, files)
    assert "inline void f(One)" in found["b.cpp"]


def test_flags_of_the_database_decide_on_branches(tmp_path):
    files = {
        "a.h": "#pragma once\n#if NAME(1) == 1\nvoid a(int);\n#else\nvoid a(char);\n#endif\n",
        "b.cpp": '#include "a.h"\nvoid b() { a(1); }\n',
    }
    plain, _ = texts(tmp_path / "plain", files)
    assert "void a(char)" in plain["b.cpp"]
    arguments = ["g++", "-DNAME(x)=x"]
    entries = [{"directory": str(tmp_path), "file": "b.cpp", "arguments": arguments}]
    found, counts = texts(tmp_path, {**files, "compile_commands.json": json.dumps(entries)})
    assert "void a(int)" in found["b.cpp"] and "void a(char)" not in found["b.cpp"]
    assert not counts["incomplete"]


def test_an_error_is_named_and_the_rest_is_used(tmp_path):
    files = {
        "a.h": "#pragma once\nvoid f(int);\nvoid f(double);\n",
        "b.cpp": '#include "missing.h"\n#include "a.h"\nvoid good() { f(1); }\nvoid bad() { f(no()); }\n',
    }
    parser = parser_of(tmp_path, files)
    found = parser("b.cpp", ())
    parser.close()
    assert meaning(found, "b.cpp", 3, "f") == {"a.h:2"}
    assert parser.outcomes == {"b.cpp": ("parsed with errors", "b.cpp:1: 'missing.h' file not found")}
    text = texts(tmp_path, {})[0]["b.cpp"]
    assert "void f(int);" in text and "void f(double);" in text


BOMB = (  # two to the 28th instances
    "template <int N, int M> struct F {\n"
    "  static constexpr int v = F<N - 1, 2 * M>::v + F<N - 1, 2 * M + 1>::v; };\n"
    "template <int M> struct F<0, M> { static constexpr int v = M; };\n"
    'static_assert(F<28, 1>::v != 0, "");\n'
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "memory", "reason"), [(1, 4 << 30, "timed out"), (60, 320 << 20, "out of memory")]
)
def test_a_unit_that_takes_too_much_costs_itself_only(tmp_path, monkeypatch, seconds, memory, reason):
    monkeypatch.setattr(process, "CPU_SECONDS", seconds)
    monkeypatch.setattr(process, "MEMORY_BYTES", memory)
    found, counts = texts(tmp_path, {"a.cpp": "int f();\n", "bomb.cpp": BOMB, "z.cpp": "int g();\n"})
    assert counts["incomplete"]["not parsed"]["examples"] == [f"bomb.cpp: {reason}"]
    assert counts["parsed"] == 2
    assert "static_assert" in found["bomb.cpp"]  # by names


def test_a_crash_costs_the_unit_only_and_another_process_goes_on(tmp_path):
    parser = parser_of(tmp_path, {"a.cpp": "int f();\n"})
    assert parser("a.cpp", ()) is not None
    worker = parser._process._process
    assert worker is not None
    worker.send_signal(signal.SIGSEGV)
    assert parser("a.cpp", ()) is not None
    parser.close()
    assert parser.outcomes == {"a.cpp": ("", "")}


def test_a_process_that_always_crashes_is_counted(tmp_path, monkeypatch):
    parser = parser_of(tmp_path, {"a.cpp": "int f();\n"})
    monkeypatch.setattr(
        process.ClangProcess, "_converse", lambda self, job, seconds: None if "path" in job else {}
    )
    monkeypatch.setattr(process.ClangProcess, "close", lambda self: "libclang crashed (signal 11)")
    assert parser("a.cpp", ()) is None
    monkeypatch.undo()
    parser.close()
    assert parser.outcomes == {"a.cpp": ("not parsed", "libclang crashed (signal 11)")}


@pytest.mark.skipif(bool(backend_problem(BACKENDS[-1])), reason="needs Landlock")
def test_files_outside_the_project_cannot_be_read(tmp_path):
    secret = tmp_path / "secret.h"
    secret.write_text("root:password\n")
    parser = parser_of(tmp_path / "project", {"a.cpp": f'#include "{secret}"\nint x;\n'})
    parser("a.cpp", ())
    parser.close()
    assert "Permission denied" in parser.outcomes["a.cpp"][1]
    assert "password" not in str(parser.outcomes)


def test_missing_libclang_or_headers_are_errors_with_their_mending(tmp_path, monkeypatch):
    monkeypatch.setattr(flags, "version", _missing)
    semantics._checked_headers.cache_clear()
    with pytest.raises(UserError, match=r"--semantic needs libclang\. pip install"):
        parser_of(tmp_path, {"a.cpp": "int x;\n"})
    monkeypatch.undo()
    monkeypatch.setattr(semantics, "builtin_headers", lambda: str(tmp_path))
    semantics._checked_headers.cache_clear()
    with pytest.raises(UserError, match=r"no usable compiler headers .*file not found.* pip install"):
        parser_of(tmp_path, {"a.cpp": "int x;\n"})


def _missing(name: str) -> str:
    raise PackageNotFoundError(name)


def test_plans_follow_the_flags(tmp_path):
    project = Project("p", (write_files(tmp_path / "p", {"a.cpp": "int x;"}),))
    assert plan_semantics(compilable(out="o", projects=(tmp_path,)), project) is None
    settings = compilable(out="o", projects=(tmp_path,), semantic=True)
    bare = plan_semantics(settings, project)
    assert bare is not None and bare.database is None
    digests = {bare.digest}
    for flag in ("-DA", "-DB"):
        entry = {"directory": str(tmp_path / "p"), "file": "a.cpp", "arguments": ["g++", flag]}
        write_files(tmp_path / "p", {"build/compile_commands.json": json.dumps([entry])})
        found = plan_semantics(settings, project)
        assert found is not None and found.figures() == {"database": "build/compile_commands.json"}
        digests.add(found.digest)
    assert len(digests) == 3


@pytest.mark.parametrize("text", ["", "{}", '{"a": 1}', "[" * 100_000, b"\xff\xfe", None])
def test_what_is_no_database_is_refused_by_name(tmp_path, text):
    path = tmp_path / "compile_commands.json"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    settings = compilable(out="o", projects=(tmp_path,), semantic=True, compile_commands=path)
    with pytest.raises(UserError, match=r"compile_commands\.json"):
        plan_semantics(settings, Project("p", (tmp_path,)))


def test_a_file_without_an_entry_gets_the_flags_of_its_neighbour(tmp_path):
    (tmp_path / "more.rsp").write_text('-DTWO="two words"')
    entries = [
        {"directory": str(tmp_path), "file": "a.cpp", "command": "ccache g++ -DONE @more.rsp -c a.cpp"}
    ]
    header = "#ifdef ONE\nvoid one();\n#endif\n#ifdef TWO\nvoid two();\n#endif\n"
    files = {"a.cpp": "int a;", "a.h": header, "compile_commands.json": json.dumps(entries)}
    parser = parser_of(tmp_path, files)
    found = parser("a.h", ())
    parser.close()
    assert found is not None and {each.name for each in found.entities} == {b"one", b"two"}


@pytest.mark.parametrize("values", [{"compile_commands": Path("x")}, {"semantic": True, "mode": "file"}])
def test_settings_without_effect_are_refused(values):
    with pytest.raises(UserError, match="no effect"):
        CorpusSettings(out="o", cxx_headers=True, **values)


def test_a_corpus_is_the_same_for_any_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(cpplm.corpus.project, "BATCH_BYTES", 100)
    files = {f"d{n}/u{n}.cpp": f'#include "../h.h"\nint f{n}() {{ return shared({n}); }}\n' for n in range(6)}
    files |= {"h.h": "#pragma once\nint shared(int);\nint shared(double);\n", "bad.cpp": "int x = y;\n"}
    write_files(tmp_path / "p", files)
    shards = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        build(
            compilable(
                out=str(out), projects=(tmp_path / "p",), semantic=True, max_bytes=20_000, workers=workers
            )
        )
        shards.append({path.name: path.read_bytes() for path in sorted(out.glob("**/*.parquet"))})
        (project,) = json.loads((out / "manifest.json").read_text())["projects"].values()
        assert project["semantic"]["parsed"] == 7
        assert re.search("undeclared identifier 'y'", str(project["semantic"]["incomplete"]))
    assert shards[0] and shards[0] == shards[1]
