"""The repair loop, with g++ as the judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from cpplm.corpus.compile.compiler import CompileResult, compile_document
from cpplm.corpus.document import Document
from cpplm.corpus.slicing.documents import Options, build_unit
from cpplm.corpus.slicing.packing import Measure
from cpplm.corpus.slicing.repair import Loop, Repaired, RepairFigures, Version, within
from cpplm.cpp.parser import Language
from cpplm.sandbox.sandbox import Sandbox
from tests.corpus.cpp import in_order, index_of, utf8_bytes, write_files

Sources = Mapping[str, str]


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox.probe()


class Compiler:
    """Counts what it compiles."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.texts: list[str] = []

    def __call__(self, text: str, language: Language) -> CompileResult:
        self.texts.append(text)
        return compile_document(text, language, self.sandbox)


def repaired(
    folder: Path, sources: Sources, file: str, sandbox: Sandbox, *, budget: int = 49_152, tries: int = 2
) -> tuple[Repaired, Compiler]:
    """The unit of a file of a project, after the loop."""
    units, index = index_of(write_files(folder, sources))
    unit = next(unit for unit in units if file in {member.name for member in unit.files})
    compiler = Compiler(sandbox)
    options = Options(budget, Measure(utf8_bytes), ordered=True)
    documents, _ = build_unit(unit, index, options)
    return Loop(unit, index, options, compiler).run(documents, tries), compiler


def only_text(built: Repaired) -> str:
    (document, verdict), *others = built.version
    assert not others
    assert verdict.compiles, verdict.first_error
    return document.text


HULL = {
    # Not self-contained: whoever includes it includes hull.h first.
    "crane.h": "#pragma once\nstruct Crane { Hull hull; int lift() const { return hull.beam; } };\n",
    "hull.h": "#pragma once\n#include <cstdint>\nstruct Deck { std::int8_t planks; };\n"
    "struct Hull { Deck deck; int beam; };\n",
    "quay.cc": '#include "hull.h"\n#include "crane.h"\nint f() { return Crane{}.lift(); }\n',
}


def test_a_header_that_is_not_self_contained(tmp_path: Path, sandbox: Sandbox) -> None:
    built, compiler = repaired(tmp_path, HULL, "crane.h", sandbox)
    in_order(only_text(built), "#include <cstdint>", "struct Deck", "struct Hull", "struct Crane")
    assert built.better
    assert built.reasons == ("an undeclared name",)
    assert len(compiler.texts) == 2
    assert built.version[0][0].files[:2] == ("crane.h", "hull.h")


def test_a_definition_behind_a_forward_declaration(tmp_path: Path, sandbox: Sandbox) -> None:
    sources = {
        "crane.h": "#pragma once\nclass Hull;\ninline int beam(const Hull& hull) { return hull.beam; }\n",
        "hull.h": "#pragma once\nclass Hull { public: int beam; };\n",
        "wreck.h": "#pragma once\nclass Hull;\n",
    }
    built, _ = repaired(tmp_path, sources, "crane.h", sandbox)
    in_order(only_text(built), "class Hull { public: int beam; };", "inline int beam")
    assert built.reasons == ("an incomplete type",)


@pytest.mark.parametrize("ending", ["cc", "c"])
def test_a_function_that_only_another_source_has(tmp_path: Path, sandbox: Sandbox, ending: str) -> None:
    sources = {
        f"a.{ending}": "int twice(int a) { return once(a) + once(a); }\n",
        f"b.{ending}": "static int half(int a) { return a / 2; }\nint once(int a) { return half(2 * a); }\n",
    }
    built, _ = repaired(tmp_path, sources, f"a.{ending}", sandbox)
    text = only_text(built)
    in_order(text, "int once(int a);", "int twice(int a)")
    assert "half" not in text


def test_names_are_found_in_their_namespace(tmp_path: Path, sandbox: Sandbox) -> None:
    sources = {
        "use.h": "#pragma once\ninline int use() { return sea::depth() + river::Bed{}.mud; }\n",
        "sea.h": "#pragma once\nnamespace sea { inline int depth() { return 1; } }\n",
        "lake.h": "#pragma once\nnamespace lake { inline int depth() { return 2; } struct Bed {}; }\n",
        "river.h": "#pragma once\nnamespace river { struct Bed { int mud; }; }\n",
    }
    built, _ = repaired(tmp_path, sources, "use.h", sandbox)
    text = only_text(built)
    assert "struct Bed { int mud; };" in text
    assert "lake" not in text


def test_headers_that_the_compiler_suggests_and_others_of_the_system(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    sources = {
        "a.h": "#pragma once\nstruct Clock { uint32_t ticks; std::chrono::seconds since; };\n"
        "inline void wait(struct iovec* v) { v->iov_len = 0; std::this_thread::yield(); }\n"
    }
    built, _ = repaired(tmp_path, sources, "a.h", sandbox)
    text = only_text(built)
    for header in ("cstdint", "chrono", "sys/uio.h", "thread"):
        assert text.index(f"#include <{header}>") < text.index("struct Clock")
    assert {source.first for source in built.version[0][0].sources} == {2}


def test_a_macro_that_the_build_defines(tmp_path: Path, sandbox: Sandbox) -> None:
    sources = {"a.cc": "#ifndef HARBOUR_BUILD\n#error define HARBOUR_BUILD\n#endif\nint f() { return 1; }\n"}
    built, _ = repaired(tmp_path, sources, "a.cc", sandbox)
    in_order(only_text(built), "#define HARBOUR_BUILD\n", "#ifndef HARBOUR_BUILD\n", "int f()")
    assert built.reasons == ("a macro of the build",)


@pytest.mark.slow
def test_what_cannot_be_repaired_stays_as_it_was(tmp_path: Path, sandbox: Sandbox) -> None:
    sources = {
        # A declaration of it is there, and does not help: it takes two arguments.
        "a.cc": "int f() { return tally(1); }\nint g() { return 2; }\n",
        "b.h": "#pragma once\nint tally(int a, int b);\n",
    }
    built, compiler = repaired(tmp_path, sources, "a.cc", sandbox)
    untouched, _ = repaired(tmp_path, sources, "a.cc", sandbox, tries=0)
    assert built.version == untouched.version
    assert not built.better
    assert built.reasons == ("an undeclared name",)
    assert len(compiler.texts) == 2


def version(*texts: str) -> Version:
    return [
        (Document(text, "compilable", ("a.cc",), len(text), 0), CompileResult(True, "c++17"))
        for text in texts
    ]


def test_repairs_that_grow_most_are_undone_where_there_is_no_room() -> None:
    units = [
        Repaired(version("a" * 10), version("a" * 14), ("x",)),
        Repaired(version("b" * 10), version("b" * 18, "b"), ("x",)),
        Repaired(version("c" * 10), version("c" * 5), ("x",)),
        Repaired(version("d" * 10), version("d" * 10), ("x",)),
    ]
    assert [unit.growth for unit in units] == [4, 9, -5, 0]
    assert within(units, 48) == units
    assert [unit.better for unit in within(units, 47)] == [True, False, True, True]
    assert [unit.better for unit in within(units, 10)] == [True, False, True, True]  # it was 40 before
    assert within(units[:2], 20)[0].version == units[0].first


def test_figures_count_units_once_and_under_each_reason() -> None:
    figures, more = RepairFigures(), RepairFigures()
    same = version("a")
    figures.add(Repaired(same, same))
    figures.add(Repaired(same, version("b"), ("an undeclared name", "a standard header")))
    more.add(Repaired(same, same, ("an undeclared name",)))
    figures.merge(more)
    assert figures.to_dict() == {
        "units": 2,
        "better": 1,
        "reasons": {
            "an undeclared name": {"tried": 2, "better": 1},
            "a standard header": {"tried": 1, "better": 1},
        },
    }
