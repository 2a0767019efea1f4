"""Units of files, and the files that includes mean."""

from pathlib import Path

from tests.corpus.cpp import index_of, write_files


def units(folder: Path, files: dict[str, str], *, merge: bool = True) -> list[list[str]]:
    made, _ = index_of(write_files(folder, files), merge=merge)
    return sorted([file.name for file in unit.files] for unit in made)


def test_a_header_takes_the_source_that_includes_it_wherever_that_is(tmp_path):
    files = {
        "include/lib/a.h": "#ifndef A\n#define A\nint a();\n#endif\n",
        "src/a.cc": '#include "lib/a.h"\nint a() { return 1; }\n',
        "src/b.cc": '#include "lib/a.h"\nint b() { return a(); }\n',
        "deep/c.hpp": "#pragma once\nint c();\n",
        "deep/c.inl": "inline int c2() { return 1; }\n",
        "deep/c.cpp": "int c() { return 1; }\n",
    }
    assert units(tmp_path, files) == [
        ["deep/c.hpp", "deep/c.inl", "deep/c.cpp"], ["include/lib/a.h", "src/a.cc"], ["src/b.cc"]
    ]  # fmt: skip


def test_a_second_source_and_mode_file_stay_alone(tmp_path):
    files = {"a.h": "int a();\n", "a.c": "int a() { return 1; }\n", "a.cc": "int a(int);\n"}
    assert units(tmp_path, files) == [["a.cc"], ["a.h", "a.c"]]
    assert units(tmp_path, files, merge=False) == [["a.c"], ["a.cc"], ["a.h"]]


def test_an_include_means_the_nearest_file_of_that_path(tmp_path):
    files = {
        "one/util.h": "int one;\n",
        "two/util.h": "int two;\n",
        "two/lib/deep.h": "int deep;\n",
        "two/a.cc": "\n",
    }
    _, index = index_of(write_files(tmp_path, files))
    arguments = ('"util.h"', "<lib/deep.h>", '"../one/util.h"', "<map>", '"absent.h"')
    assert [index.includes.resolve("two/a.cc", argument) for argument in arguments] == [
        "two/util.h", "two/lib/deep.h", "one/util.h", None, None
    ]  # fmt: skip


def test_a_header_of_the_system_in_angle_brackets_is_never_the_project_s(tmp_path):
    _, index = index_of(write_files(tmp_path, {"compat/string.h": "int mine;\n", "a.c": "int a;\n"}))
    assert index.includes.resolve("a.c", "<string.h>") is None
    assert index.includes.resolve("a.c", '"string.h"') == "compat/string.h"


def test_which_includes_a_build_answers(tmp_path):
    _, index = index_of(write_files(tmp_path, {"lib/a.h": "int a;\n"}))
    built = ('"config.h"', "<config.h>", '"version.h"', "<lib/config.h>", '"../gen.h"')
    others = ("<map>", '"stdio.h"', '"zlib.h"', "<boost/any.hpp>")
    assert [argument for argument in (*built, *others) if index.includes.is_build_written(argument)] == list(
        built
    )
