from pathlib import Path

from cpplm.corpus.sources import Project, find_files
from cpplm.corpus.units import Unit, make_units, scan
from tests.corpus.cpp import write_files


def units(folder: Path, files: dict[str, str], *, merge: bool = True) -> dict[str, Unit]:
    write_files(folder, files)
    found, _ = find_files(Project("p", (folder,)))
    return {
        unit.name: unit for unit in make_units(found, {file.name: scan(file) for file in found}, merge=merge)
    }


def names(unit: Unit) -> list[str]:
    return [file.name for file in unit.files]


def test_a_header_takes_the_source_that_includes_it_wherever_that_is(tmp_path):
    made = units(
        tmp_path,
        {
            "include/lib/a.h": "#ifndef A\n#define A\nint a();\n#endif\n",
            "src/a.cc": '#include "lib/a.h"\nint a() { return 1; }\n',
            "src/b.cc": '#include "lib/a.h"\nint b() { return a(); }\n',
            "deep/c.hpp": "#pragma once\nint c();\n",
            "deep/c.inl": "inline int c2() { return 1; }\n",
            "deep/c.cpp": "int c() { return 1; }\n",
        },
    )
    assert names(made["include/lib/a.h"]) == ["include/lib/a.h", "src/a.cc"]
    assert names(made["deep/c.hpp"]) == ["deep/c.hpp", "deep/c.inl", "deep/c.cpp"]
    assert names(made["src/b.cc"]) == ["src/b.cc"]
    assert made["include/lib/a.h"].own_includes == {'"lib/a.h"'}


def test_a_second_source_and_mode_file_stay_alone(tmp_path):
    files = {"a.h": "int a();\n", "a.c": "int a() { return 1; }\n", "a.cc": "int a(int);\n"}
    assert sorted(map(names, units(tmp_path, files).values())) == [["a.cc"], ["a.h", "a.c"]]
    assert sorted(map(names, units(tmp_path, files, merge=False).values())) == [["a.c"], ["a.cc"], ["a.h"]]


def test_an_include_that_leads_back(tmp_path):
    back = '#include "a.h"\nint b();\n'
    source = '#include "a.h"\n#include "b.h"\nint a() { return 1; }\n'
    guarded = units(
        tmp_path / "1", {"a.h": "#ifndef A_H\n#define A_H\nint a();\n#endif\n", "b.h": back, "a.cc": source}
    )
    assert names(guarded["a.h"]) == ["a.h", "a.cc"]
    assert guarded["a.h"].guards == (b"A_H",)
    assert guarded["a.h"].late_includes == {'"b.h"'}
    once = units(tmp_path / "2", {"a.h": "#pragma once\nint a();\n", "b.h": back, "a.cc": source})
    assert names(once["a.h"]) == ["a.h"]
    assert names(once["a.cc"]) == ["a.cc"]


def test_include_cycles_end(tmp_path):
    made = units(tmp_path, {"a.h": '#include "b.h"\nint a;\n', "b.h": '#include "a.h"\nint b;\n'})
    assert len(made) == 2


def test_an_include_that_demands_the_header_comes_late(tmp_path):
    made = units(
        tmp_path,
        {
            "a.h": "#ifndef A_H\n#define A_H\n#define A_VERSION 1\nstruct A {};\n#endif\n",
            "internal.h": "#pragma once\n#ifndef A_VERSION\n#error a.h first\n#endif\nstruct B : A {};\n",
            "a.cc": '#include "a.h"\n#include "internal.h"\nB b;\n',
        },
    )
    assert made["a.h"].late_includes == {'"internal.h"'}
    assert made["a.h"].local_includes == {'"internal.h"'}
