"""What libclang says about small projects; `targets` are given as "file:line" with lines counted from 1."""

import json
import pickle
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.corpus.clang import references
from cpplm.corpus.clang.compile_commands import Database, read_database
from cpplm.corpus.clang.references import FileReferences, Semantics, plan_semantics, read_semantics
from cpplm.corpus.ingest.discovery import Project, find_files
from cpplm.corpus.settings import CorpusSettings
from cpplm.corpus.slicing.units import Includes, scan
from cpplm.sandbox.sandbox import backend_status
from tests.corpus.cpp import needs_gxx, write_files

pytestmark = needs_gxx  # the standard library comes with it


def read(
    folder: Path,
    files: dict[str, str],
    database: Database | None = None,
    *,
    workers: int = 1,
    cpu_seconds: int = 20,
) -> Semantics:
    project = Project("p", (write_files(folder, dict(files)),))
    found, _ = find_files(project)
    edges = Includes({file.name: scan(file) for file in found}).edges
    includes = {name: tuple(targets.values()) for name, targets in edges.items()}
    return read_semantics(
        *(project, found, includes),
        database=database, workers=workers, cpu_seconds=cpu_seconds, quiet=True,
    )  # fmt: skip


def meaning(semantics: Semantics, file: str, line: int, name: str, last: int = 0) -> set[str] | None:
    """Of a name between two lines; None when nothing is known."""
    found = semantics.targets(file, line - 1, (last or line) - 1).get(name.encode())
    return None if found is None else {f"{name}:{line + 1}" for name, line in found}


def test_a_call_means_the_overload_that_fits(tmp_path):
    lines = ["void f(int) {}", "void f(double) {}", "void f(const char*);", "void g() { f(1.5); }",
             "void h() { f(1); f(2.5); }", "void i() { f(nullptr); }"]  # fmt: skip
    found = read(tmp_path, {"a.cpp": "\n".join(lines)})
    assert meaning(found, "a.cpp", 4, "f") == {"a.cpp:2"}
    assert meaning(found, "a.cpp", 5, "f") == {"a.cpp:1", "a.cpp:2"}
    assert meaning(found, "a.cpp", 6, "f") == {"a.cpp:3"}
    assert found.parsed == {"a.cpp"}


def test_namespaces_decide(tmp_path):
    found = read(
        tmp_path,
        {
            "a.h": "#pragma once\nnamespace one { void run(); }\nnamespace two { void run(); }\n",
            "one.cpp": '#include "a.h"\nnamespace one { void run() {} }\n',
            "two.cpp": '#include "a.h"\nnamespace two { void run() {} }\n',
            "use.cpp": '#include "a.h"\nusing namespace two;\nvoid use() { run(); }\n'
            "void also() { one::run(); }",
        },
    )
    # The definitions are in other units: linked by what libclang calls them.
    assert meaning(found, "use.cpp", 3, "run") == {"a.h:3", "two.cpp:2"}
    assert meaning(found, "use.cpp", 4, "run") == {"a.h:2", "one.cpp:2"}
    assert meaning(found, "one.cpp", 2, "run") == {"a.h:2", "one.cpp:2"}


def test_methods_are_found_through_members(tmp_path):
    found = read(
        tmp_path,
        {
            "a.h": "struct Log {\n  void add(int);\n};\nstruct Set {\n  void add(int);\n  Log log;\n};\n",
            "a.cpp": '#include "a.h"\nvoid Log::add(int) {}\nvoid Set::add(int n) { log.add(n); }\n'
            "void use(Set* set) { set->add(1); }\nvoid both(Set& set) {\n  set.log.add(2); }\n",
        },
    )
    assert meaning(found, "a.cpp", 4, "add") == {"a.h:5", "a.cpp:3"}
    assert meaning(found, "a.cpp", 6, "add") == {"a.h:2", "a.cpp:2"}
    assert meaning(found, "a.cpp", 3, "log") == {"a.h:6"}
    assert meaning(found, "a.cpp", 3, "add") == {"a.h:2", "a.cpp:2", "a.h:5", "a.cpp:3"}
    assert meaning(found, "a.h", 6, "Log") == {"a.h:1"}


@pytest.mark.parametrize(
    "use",
    [
        "void use() {\n#ifdef NEVER\n  f();\n#else\n  ::f();\n#endif\n}",
        "void use() {\n  ::f();\n#define LATER f()\n}",
        "template <class T> void use(T t) {\n  ::f(); f(t);\n}",
        "template <class T> void use(T t) {\n  ::f(); t.f();\n}",
    ],
)
def test_a_name_with_one_mention_that_is_not_understood_is_left_open(tmp_path, use):
    found = read(tmp_path, {"a.cpp": f"void f();\n{use}\nvoid g() {{ f(); }}\n"})
    last = 2 + use.count("\n")
    assert meaning(found, "a.cpp", 2, "f", last) is None
    assert meaning(found, "a.cpp", last + 1, "f") == {"a.cpp:1"}


def test_constructors_templates_and_out_of_class_definitions(tmp_path):
    text = (
        "template <class T> struct Box {\n  Box(T);\n  T get() const;\n  ~Box();\n};\n"
        "template <class T> T Box<T>::get() const { return T(); }\n"
        "template <> struct Box<char> { char get(); };\n"
        "int use() { Box<int> box(1); return box.get(); }\n"
        "char chars(Box<char>& box) { return box.get(); }\n"
    )
    found = read(tmp_path, {"a.cpp": text})
    assert {"a.cpp:1", "a.cpp:2", "a.cpp:7"} == meaning(found, "a.cpp", 8, "Box")
    assert {"a.cpp:3", "a.cpp:6"} == meaning(found, "a.cpp", 8, "get")
    assert {"a.cpp:7"} == meaning(found, "a.cpp", 9, "get")


def test_c_is_read_as_c_with_its_headers(tmp_path):
    found = read(
        tmp_path,
        {
            "a.h": "struct node { int class; };\nint value(struct node *new);\n",
            "a.c": '#include <unistd.h>\n#include "a.h"\n'
            "int value(struct node *new) { return new->class + getpid(); }\n",
        },
    )
    assert found.parsed == {"a.h", "a.c"}, found.partly
    assert meaning(found, "a.c", 3, "value") == {"a.h:2", "a.c:3"}
    assert meaning(found, "a.c", 3, "getpid") == set()


def test_other_line_ends_and_bytes(tmp_path):
    text = 'const char* s = "\xe9";\r\nint f();\r\nint g() { return /* \xe9 */ f(); }\r\n'
    project = write_files(
        tmp_path, {"b.cpp": text.encode("latin-1"), "c.cpp": "\ufeffint h();\nint i() { return h(); }"}
    )
    found = read(project, {"a.cpp": text})
    for name in ("a.cpp", "b.cpp"):
        assert meaning(found, name, 3, "f") == {f"{name}:2"}
    assert meaning(found, "c.cpp", 2, "h") == {"c.cpp:1"}


def test_flags_of_the_database_decide(tmp_path):
    write_files(tmp_path, {
        "lib/api.h": "void api();\n",
        "src/a.cpp": "#include <api.h>\n#if NAME(1) == 1\nvoid a() { api(); }\n#endif\n",
        "src/new.cpp": "#include <api.h>\nvoid b() { api(); }\n#if NAME(1) != 1\n#error no flags\n#endif",
        "build/compile_commands.json": json.dumps([{
            "directory": str(tmp_path / "build"), "file": "../src/a.cpp",
            "command": 'ccache g++ -I../lib -D"NAME=n b" -UNAME "-DNAME(x)=x" -c ../src/a.cpp -o a.o',
        }]),
    })  # fmt: skip
    database = read_database(tmp_path / "build/compile_commands.json", [tmp_path])
    found = read(tmp_path, {}, database)
    assert meaning(found, "src/a.cpp", 3, "api") == {"lib/api.h:1"}
    assert found.parsed == {"lib/api.h", "src/a.cpp", "src/new.cpp"}, found.partly


def test_an_error_is_named_and_the_rest_is_used(tmp_path):
    found = read(
        tmp_path,
        {
            "bad.cpp": '#include "missing.h"\nint f();\nint g() { return f() + unknown(f()); }\n'
            "int h() { return f(); }\n",
            "good.cpp": "int f();\nint i() { return f(); }\n",
        },
    )
    assert found.parsed == {"good.cpp"}
    assert found.partly == {"bad.cpp": "line 1: 'missing.h' file not found"}
    assert meaning(found, "bad.cpp", 4, "f") == {"bad.cpp:2"}
    assert found.figures()["incomplete"]["parsed with errors"]["examples"] == [
        "bad.cpp: line 1: 'missing.h' file not found"
    ]


def test_lines_with_an_error_are_left_open(tmp_path):
    text = "static void run() {}\nBENCHMARK(run);\nvoid both() { run(); }\n"  # declares a variable, it seems
    found = read(tmp_path, {"a.cpp": text})
    assert "a.cpp" in found.partly
    assert meaning(found, "a.cpp", 2, "run") is None
    assert meaning(found, "a.cpp", 3, "run") == {"a.cpp:1"}


def test_every_declaration_of_one_thing_is_a_target(tmp_path):
    files = {
        "a.h": "struct S;\n",
        "b.h": "struct S;\nS* make();\n",
        "s.h": '#include "a.h"\n#include "b.h"\nstruct S {};\n',
        "a.cpp": '#include "s.h"\nS* make() { return nullptr; }\n',
        "b.cpp": '#include "b.h"\nS* again() { return make(); }\n',
    }
    found = read(tmp_path, files)
    assert meaning(found, "b.cpp", 2, "S") == {"a.h:1", "b.h:1", "s.h:3"}
    assert meaning(found, "b.cpp", 2, "make") == {"b.h:2", "a.cpp:2"}
    assert found.declarations("s.h", 2, 2) == {b"S": frozenset({("a.h", 0), ("b.h", 0), ("s.h", 2)})}
    assert found.declarations("b.cpp", 1, 1).keys() == {b"again"}


def test_a_declaration_with_an_error_is_not_taken_for_known(tmp_path):
    text = "class Fixture : public missing::Test {\n public:\n  Fixture() {}\n};\nFixture* f;\n"
    found = read(tmp_path, {"a.cpp": text})
    assert found.declarations("a.cpp", 0, 3) == {}  # the constructor is, but its name is the class's too
    assert meaning(found, "a.cpp", 5, "Fixture") == {"a.cpp:1"}


def test_a_header_is_read_where_it_is_sound(tmp_path):
    files = {
        "h.h": "#include <utility>\nNUMBER f(int);\ninline NUMBER g(int x) { return f(std::move(x)); }\n",
        "a.cpp": '#include "h.h"\n',
        "b.cpp": '#define NUMBER int\n#include "h.h"\n#include "missing.h"\n',
        "c.cpp": '#define NUMBER int\n#include "h.h"\n',
    }
    found = read(tmp_path, files)
    assert found.parsed == {"a.cpp", "c.cpp", "h.h"}
    assert meaning(found, "h.h", 3, "f") == {"h.h:2"}
    assert meaning(found, "h.h", 3, "move") == set()


def test_the_project_comes_before_an_installed_copy_of_it(tmp_path):
    use = "#include <pthread.h>\nint use() { return f(); }\n"  # any header that lies in /usr/include
    found = read(tmp_path, {"include/pthread.h": "int f();\n", "lib/a.cpp": use})
    assert meaning(found, "lib/a.cpp", 2, "f") == {"include/pthread.h:1"}


BOMB = (  # two to the 28th instances
    "template <int N, int M> struct F {\n"
    "  static constexpr int v = F<N - 1, 2 * M>::v + F<N - 1, 2 * M + 1>::v; };\n"
    "template <int M> struct F<0, M> { static constexpr int v = M; };\n"
    'static_assert(F<28, 1>::v != 0, "");\n'
)


@pytest.mark.slow
def test_a_file_that_takes_too_long_costs_itself_only(tmp_path):
    good = "int f();\nint g() { return f(); }\n"
    files = {"a.cpp": good, "bomb.cpp": '#include "bomb.h"\n' + BOMB, "bomb.h": good, "z.cpp": good}
    found = read(tmp_path, files, cpu_seconds=1)
    assert found.failed == {"bomb.cpp": "timed out"}
    assert found.parsed == {"a.cpp", "bomb.h", "z.cpp"}  # the header without the unit that was to read it
    assert found.targets("bomb.cpp", 0, 9) == {}
    assert meaning(found, "bomb.h", 2, "f") == {"bomb.h:1"}
    assert found.figures()["incomplete"]["not parsed"]["examples"] == ["bomb.cpp: timed out"]


@pytest.mark.slow
def test_a_file_that_takes_too_much_memory_costs_itself_only(tmp_path, monkeypatch):
    monkeypatch.setattr(references, "MEMORY_BYTES", 320 << 20)
    found = read(tmp_path, {"a.cpp": "int f();\n", "bomb.cpp": BOMB, "z.cpp": "int g();\n"}, cpu_seconds=60)
    assert found.failed == {"bomb.cpp": "out of memory"}
    assert found.parsed == {"a.cpp", "z.cpp"}


@pytest.mark.skipif(bool(backend_status("landlock").problem), reason="needs Landlock")
def test_files_outside_the_project_cannot_be_read(tmp_path):
    secret = tmp_path / "secret.h"
    secret.write_text("root:password\n")
    found = read(tmp_path / "project", {"a.cpp": f'#include "{secret}"\nint x;\n'})
    assert "Permission denied" in found.partly["a.cpp"]
    assert "password" not in str(found.partly)


def test_the_result_does_not_depend_on_workers_or_hashes(tmp_path):
    files = {f"d{n}/u{n}.cpp": f'#include "../h.h"\nint f{n}() {{ return shared({n}); }}\n' for n in range(6)}
    files |= {"h.h": "#pragma once\nint shared(int);\nint shared(double);\n", "bad.cpp": "int x = y;\n"}
    one = read(tmp_path, files)
    two = read(tmp_path, files, workers=3)
    assert pickle.dumps(one) == pickle.dumps(two)


def test_missing_compiler_headers_are_an_error_with_its_mending(tmp_path, monkeypatch):
    monkeypatch.setattr(references, "builtin_headers", lambda: [["-nostdinc", "-nostdinc"]])
    with pytest.raises(UserError, match=r"no usable compiler headers .*file not found.* pip install"):
        read(tmp_path, {"a.cpp": "int x;\n"})


def test_without_the_setting_nothing_is_planned_and_plans_follow_the_flags(tmp_path):
    project = Project("p", (write_files(tmp_path / "p", {"a.cpp": "int x;"}),))
    settings = CorpusSettings(out="o", projects=(tmp_path,))
    assert plan_semantics(settings, project) is None
    settings = CorpusSettings(out="o", projects=(tmp_path,), semantic=True)
    bare = plan_semantics(settings, project)
    assert bare is not None and bare.database is None
    entry = {"directory": "", "file": "a.cpp", "arguments": ["g++", "-DA"]}
    write_files(tmp_path / "p", {"build/compile_commands.json": json.dumps([entry])})
    found = plan_semantics(settings, project)
    assert found is not None and found.database is not None and not found.database.named
    assert found.digest != bare.digest
    assert found.figures() == {"database": "build/compile_commands.json", "entries": 1, "left_out": {}}
    path = tmp_path / "other.json"
    path.write_text(json.dumps([entry]))
    named = plan_semantics(
        CorpusSettings(out="o", projects=(tmp_path,), semantic=True, compile_commands=path), project
    )
    assert named is not None and named.database is not None and named.database.named


@pytest.mark.parametrize("values", [{"compile_commands": Path("x")}, {"semantic": True, "mode": "file"}])
def test_settings_without_effect_are_refused(values):
    with pytest.raises(UserError, match="no effect"):
        CorpusSettings(out="o", cxx_headers=True, **values)


@given(
    st.sets(st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 4))),
    st.sets(st.tuples(st.integers(0, 12), st.integers(0, 3))),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_ranges_agree_with_a_plain_search(triples, left_open, first, last):
    names = tuple(f"n{number}".encode() for number in range(4))
    targets = tuple(frozenset({("f", number)} if number else ()) for number in range(5))
    lines, name_of, target_of = ([each[k] for each in sorted(triples)] for k in range(3))
    open_lines, open_names = ([each[k] for each in sorted(left_open)] for k in range(2))
    references = FileReferences(
        *(names, targets, array("I", lines), array("I", name_of), array("I", target_of)),
        *(array("I", open_lines), array("I", open_names)),
    )
    closed = {name for line, name in left_open if first <= line <= last}
    expected: dict[bytes, set[tuple[str, int]]] = {}
    for line, name, target in triples:
        if first <= line <= last and name not in closed:
            expected.setdefault(names[name], set()).update(targets[target])
    assert references.between(first, last) == expected
