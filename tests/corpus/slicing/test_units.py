from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cpplm.corpus.slicing.units import Include, Includes, Scan, Unit
from cpplm.cpp.segments import Condition
from tests.corpus.cpp import index_of, write_files


def units(folder: Path, files: dict[str, str], *, merge: bool = True) -> dict[str, Unit]:
    made, _ = index_of(write_files(folder, files), ordered=merge)
    return {unit.name: unit for unit in made}


def includes(folder: Path, files: dict[str, str]) -> Includes:
    return index_of(write_files(folder, files))[1].includes


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
    assert names(once["a.h"]) == ["a.h", "a.cc"]
    assert once["a.h"].guards == ()
    assert once["a.h"].late_includes == {'"b.h"'}


def test_an_include_means_the_nearest_file_of_that_path(tmp_path):
    found = includes(
        tmp_path,
        {
            "one/util.h": "int one;\n",
            "two/util.h": "int two;\n",
            "two/lib/deep.h": "int deep;\n",
            "two/use.cc": '#include "util.h"\n#include <lib/deep.h>\n'
            '#include "../one/util.h"\n#include <map>\n',
        },
    )
    assert found.edges["two/use.cc"] == {
        '"util.h"': "two/util.h",
        "<lib/deep.h>": "two/lib/deep.h",
        '"../one/util.h"': "one/util.h",
    }
    assert found.targets("two/use.cc") == ["two/util.h", "two/lib/deep.h", "one/util.h"]


def test_a_header_of_the_system_in_angle_brackets_is_never_the_project_s(tmp_path):
    files = {"compat/string.h": "int mine;\n", "a.c": "#include <string.h>\n", "b.c": '#include "string.h"\n'}
    found = includes(tmp_path, files)
    assert found.edges["a.c"] == {}
    assert found.edges["b.c"] == {'"string.h"': "compat/string.h"}


def test_what_is_visible_and_under_which_conditions(tmp_path):
    found = includes(
        tmp_path,
        {
            "a.cc": '#ifdef WITH_B\n#include "b.h"\n#endif\n#include "c.h"\n',
            "b.h": '#pragma once\n#if B_EXTRA\n#include "d.h"\n#endif\n#include "e.h"\nint b;\n',
            "c.h": '#pragma once\n#include "e.h"\nint c;\n',
            "d.h": "int d;\n",
            "e.h": "int e;\n",
        },
    )
    assert found.visible(["a.cc"]) == {
        "a.cc": (),
        "b.h": (Condition((b"#ifdef WITH_B",)),),
        "c.h": (),
        "d.h": (Condition((b"#ifdef WITH_B",)), Condition((b"#if B_EXTRA",))),
        "e.h": (),  # one path to it has no condition
    }


def test_of_headers_that_the_build_system_chooses_from_one_is_taken(tmp_path):
    choice = '#if defined(PORT_WINDOWS)\n#include "win.h"\n#elif defined(PORT_POSIX)\n#include "posix.h"\n'
    choice += '#elif defined(PORT_OTHER)\n#include "other.h"\n#endif\n'
    headers = {f"{name}.h": f"int {name};\n" for name in ("win", "posix", "other")}
    found = includes(tmp_path / "1", {"port.h": choice, **headers})
    assert found.visible(["port.h"]) == {"port.h": (), "posix.h": ()}
    decided = {"port.h": "#define PORT_OTHER 1\n" + choice, **headers}
    seen = includes(tmp_path / "2", decided).visible(["port.h"])
    assert seen["other.h"] != ()  # the project itself decides: a compiler can tell


@given(st.data())
def test_a_segment_ranks_after_everything_that_the_includes_before_it_bring(data):
    count = data.draw(st.integers(2, 7))
    scans = {}
    for number in range(count):
        later = st.integers(number + 1, count - 1) if number + 1 < count else st.nothing()
        lines = sorted(data.draw(st.sets(st.integers(0, 20), max_size=4))) if number + 1 < count else []
        wanted = tuple(Include(line, f'"{data.draw(later)}.h"', ()) for line in lines)
        scans[f"{number}.h"] = Scan(wanted, b"", frozenset(), {})
    found = Includes(scans)
    for name, scanned in scans.items():
        for include in scanned.includes:
            brought = found.reachable([found.edges[name][include.argument]])
            assert found.rank(name, include.line + 1) > max(found.rank(other, 99) for other in brought)
        assert [found.rank(name, line) for line in range(30)] == sorted(
            found.rank(name, line) for line in range(30)
        )
