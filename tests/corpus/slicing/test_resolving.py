"""`cpplm corpus build --semantic` from projects to documents: only what is meant is borrowed."""

import json
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.corpus import project_cache
from cpplm.corpus.build import build
from cpplm.corpus.reports.stats import corpus_totals, format_summary
from cpplm.corpus.settings import CorpusSettings
from tests.corpus.cpp import compile_errors, in_order, needs_gxx, write_files
from tests.corpus.killing import build_killed_at_change, contents

pytestmark = needs_gxx  # the standard library comes with it

UNITS = (
    "struct Metre { int value; };\nstruct Foot { int value; };\n"
    "inline Metre read(int n) { return Metre{n}; }\ninline Foot read(long n) { return Foot{int(n)}; }\n"
)
PROJECT: dict[str, str | bytes] = {
    "lib/units.h": UNITS,
    "overload.cc": '#include "lib/units.h"\nint overload() { return read(1).value; }\n',
    "dependent.cc": '#include "lib/units.h"\n'
    "template <class T> int dependent(T t) { return read(t).value; }\nint any() { return dependent(1); }\n",
    "lib/spaces.h": "namespace one { struct One { int a; }; inline One run() { return One{1}; } }\n"
    "namespace two { struct Two { int a; }; inline Two run() { return Two{2}; } }\n",
    "space.cc": '#include "lib/spaces.h"\nusing namespace two;\nint space() { return run().a; }\n',
    "lib/swap.h": "struct Widget { int a; };\n"
    "inline void swap(Widget& a, Widget& b) { int c = a.a; a.a = b.a; b.a = c; }\n",
    "standard.cc": '#include <utility>\n#include "lib/swap.h"\n'
    "using namespace std;\nvoid standard(int& a, int& b) { swap(a, b); }\n",
    "lib/ahead.h": "namespace deep { struct Node; }\n",
    "lib/behind.h": "namespace deep { struct Node; }\ninline deep::Node* none() { return nullptr; }\n",
    "lib/node.h": '#include "lib/ahead.h"\n#include "lib/behind.h"\n'
    "namespace deep { struct Node { int a; }; }\n",
    "before.cc": '#include "lib/node.h"\nint before(deep::Node* node) { return node->a; }\n',
    "forward.cc": '#include "lib/behind.h"\nbool forward() { return none() == nullptr; }\n',
    "lib/box.h": "template <class T> struct Box { int size() { return 1; } };\n"
    "template <class T> struct Box<T*> { int stars() { return 2; } };\n"
    "template <> struct Box<char> { int chars() { return 3; } };\n",
    "special.cc": '#include "lib/box.h"\nint special(Box<int*> box) { return box.stars(); }\n',
    "lib/using.h": "namespace far { struct Far { int a; }; }\nusing far::Far;\n",
    "using.cc": '#include "lib/using.h"\nint use(Far far) { return far.a; }\n',
    "lib/choice.h": "#ifdef _WIN32\ninline int choice() { return 1; }\n#else\n"
    "inline int choice() { return 2; }\n#endif\n",
    "choose.cc": '#include "lib/choice.h"\nint choose() { return choice(); }\n',
    "lib/help1.h": "inline int helper() { return 1001; }\n",
    "lib/help2.h": "inline int helper() { return 1002; }\n",
    "lib/context.h": "inline int in_context() { return helper(); }\n",
    "context1.cc": '#include "lib/help1.h"\n#include "lib/context.h"\nint c1() { return in_context(); }\n',
    "context2.cc": '#include "lib/help2.h"\n#include "lib/context.h"\nint c2() { return in_context(); }\n',
    "order.cc": "int f(int);\nint f(double);\nint caller() { return f(1); }\n"
    "int f(double) { return caller(); }\nint f(int) { return 2; }\n",
    "broken.cc": '#include "lib/units.h"\n#include <no/such/header.h>\n'
    "int broken() { return read(1).value; }\n",
}  # fmt: skip


def documents(out: Path) -> dict[str, str]:
    """By the file that each is for."""
    reader = ShardReader(out)
    rows = [
        row for shard in (*reader.shards("train"), *reader.shards("val"))
        for row in reader.table(shard).to_pylist()
    ]  # fmt: skip
    return {row["files"][0]: row["text"] for row in rows}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The project by name only and with semantics: documents, and what the second build returned."""
    folder = tmp_path_factory.mktemp("semantic")
    projects = (write_files(folder / "project", dict(PROJECT)),)
    build(CorpusSettings(out=str(folder / "names"), projects=projects, workers=1))
    result = build(CorpusSettings(out=str(folder / "exact"), projects=projects, workers=1, semantic=True))
    return documents(folder / "names"), documents(folder / "exact"), result


@pytest.mark.parametrize(
    ("file", "kept", "gone"),
    [
        ("overload.cc", "struct Metre", "struct Foot"),
        ("space.cc", "struct Two", "struct One"),
        ("standard.cc", "swap(a, b)", "struct Widget"),
    ],
)
def test_only_what_is_meant_comes_along(built, file, kept, gone):
    names, exact, _ = built
    assert kept in names[file] and gone in names[file]
    assert kept in exact[file] and gone not in exact[file]
    assert not compile_errors(exact[file])


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("dependent.cc", ("struct Metre", "struct Foot")),  # decided where the template is used
        ("forward.cc", ("struct Node;",)),  # the reference was read where another declaration came first
        ("special.cc", ("struct Box<T*>", "struct Box<char>")),
        ("using.cc", ("using far::Far;", "struct Far")),
        ("choose.cc", ("return 1;", "return 2;")),  # a branch that libclang did not see
        ("context1.cc", ("return 1001;",)),
        ("context2.cc", ("return 1002;",)),  # its header was read in the other unit, where that means 1001
        ("broken.cc", ("struct Metre", "no/such/header.h")),
    ],
)
def test_what_may_be_meant_stays(built, file, kept):
    _, exact, _ = built
    assert all(text in exact[file] for text in kept)
    if file != "broken.cc":
        assert not compile_errors(exact[file])


def test_an_overload_comes_before_those_that_call_it(built):
    names, exact, _ = built
    in_order(names["order.cc"], "int caller() {", "int f(double) {", "int f(int) {")  # all seem to call all
    in_order(exact["order.cc"], "int f(int) {", "int caller() {", "int f(double) {")


def test_files_that_fall_back_to_names_are_counted_and_named(built):
    _, _, result = built
    found = result["projects"]["project"]["semantic"]
    assert found["parsed"] == len(PROJECT) - 1
    assert found["incomplete"]["parsed with errors"]["files"] == 1
    text = format_summary(result, "out")
    assert f"semantics  {len(PROJECT) - 1} of {len(PROJECT)} files parsed without an error" in text
    assert 'by name    1 parsed with errors, such as "project: broken.cc: line 2:' in text
    assert corpus_totals(result)["semantic"]["parsed"] == len(PROJECT) - 1


@pytest.mark.slow
def test_a_call_brings_the_body_that_is_meant(tmp_path):
    bodies = "int area({0}) {{ return {1}; }}\n"
    files = {
        "area.h": "int area(int);\nint area(double);\n",
        "a.cc": '#include "area.h"\n' + bodies.format("double", 1001),
        "b.cc": '#include "area.h"\n' + bodies.format("int", 1002),
        "use.cc": '#include "area.h"\nint use() { return area(2); }\n',
    }
    projects = (write_files(tmp_path / "project", dict(files)),)
    for name, semantic in (("names", False), ("exact", True)):
        out = str(tmp_path / name)
        build(CorpusSettings(out=out, projects=projects, workers=1, mode="cross-file", semantic=semantic))
    assert "1001" in documents(tmp_path / "names")["use.cc"]
    exact = documents(tmp_path / "exact")["use.cc"]
    assert "1002" in exact and "1001" not in exact


def two_projects(folder: Path) -> tuple[Path, ...]:
    use = (
        '#include "units.h"\n#ifdef WIDE\ntypedef long number;\n#else\ntypedef int number;\n#endif\n'
        "int use(number n) { return read(n).value; }\n"
    )
    flags = [{"directory": "..", "file": "use.cc", "command": "g++ -DWIDE -fplugin=x.so -c use.cc"}]
    write_files(folder / "one", {
        "units.h": UNITS, "use.cc": use, "build/compile_commands.json": json.dumps(flags),
    })  # fmt: skip
    calls = "".join(f"int call{n}(int a) {{ return f(a) + f({n}.5); }}\n" for n in range(30))
    write_files(folder / "two", {"f.h": "int f(int);\nint f(double);\n", "f.cc": f'#include "f.h"\n{calls}'})
    return folder / "one", folder / "two"


def test_flags_decide_and_a_change_of_them_is_noticed(tmp_path):
    projects = two_projects(tmp_path)[:1]
    settings = CorpusSettings(out=str(tmp_path / "out"), projects=projects, workers=1, semantic=True)
    result = build(settings)
    text = documents(tmp_path / "out")["use.cc"]
    assert "struct Foot" in text and "struct Metre" not in text
    assert result["projects"]["one"]["semantic"]["database"] == "build/compile_commands.json"
    assert "flags      1 flag -fplugin" in format_summary(result, "out")
    assert build(settings)["already_complete"]
    database = projects[0] / "build" / "compile_commands.json"
    database.write_text(database.read_text().replace("-DWIDE", "-DNARROW"))
    with pytest.raises(UserError, match="the files of project one changed, or its compiler flags"):
        build(settings)
    build(CorpusSettings(out=str(tmp_path / "new"), projects=projects, workers=1, semantic=True))
    text = documents(tmp_path / "new")["use.cc"]
    assert "struct Metre" in text and "struct Foot" not in text


@pytest.mark.slow
def test_flags_that_changed_in_between_build_a_project_anew(tmp_path):
    projects = two_projects(tmp_path)
    settings = CorpusSettings(out=str(tmp_path / "out"), projects=projects, workers=1, semantic=True)
    assert build_killed_at_change(settings, 4)  # parts and record of the first project are there
    assert list((tmp_path / "out").glob("_parts/*.json"))
    database = projects[0] / "build" / "compile_commands.json"
    database.write_text(database.read_text().replace("-DWIDE", "-DNARROW"))
    build(settings)
    assert "struct Metre" in documents(tmp_path / "out")["use.cc"]


@pytest.mark.slow
def test_the_same_bytes_after_a_kill_and_for_two_workers(tmp_path, monkeypatch):
    projects = two_projects(tmp_path)
    build(CorpusSettings(out=str(tmp_path / "out_whole"), projects=projects, workers=1, semantic=True))
    expected = contents(tmp_path / "out_whole")
    settings = CorpusSettings(out=str(tmp_path / "out_killed"), projects=projects, workers=1, semantic=True)
    for change in (1, 3):
        assert build_killed_at_change(settings, change)
    build(settings)
    assert contents(tmp_path / "out_killed") == expected
    monkeypatch.setattr(
        project_cache, "_SMALL_PROJECT", 1_000
    )  # one project to a worker, one in batches for both
    build(CorpusSettings(out=str(tmp_path / "out_two"), projects=projects, workers=2, semantic=True))
    assert contents(tmp_path / "out_two") == expected
