"""Includes expanded in place mean what they meant to the preprocessor, which is asked for its opinion."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.corpus.cpp import compile_errors, needs_gxx, write_files
from tests.corpus.modes import INLINED, row_of, rows_of


def inlined(folder: Path, files: dict[str, str], of: str = "main.cc", **changes: object) -> str:
    row = row_of(folder, files, INLINED, of, **changes)
    assert row["kind"] == "inlined"
    text = row["text"]
    assert isinstance(text, str)
    return text


def preprocessed(text: str, folder: Path, *defines: str) -> list[str]:
    """The tokens that a compiler sees, line markers apart."""
    flags = [f"-D{name}" for name in defines]
    result = subprocess.run(
        ["g++", "-E", "-P", "-x", "c++", "-w", *flags, "-I", str(folder), "-"],
        input=text, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return re.findall(r"\w+|\S", result.stdout)


GUARDED = "#ifndef {0}_H\n#define {0}_H\n{1}#endif  // {0}_H\n"


def test_a_header_is_there_once_without_its_guard_and_under_its_name(tmp_path):
    files = {
        "base.h": GUARDED.format("BASE", "struct Base { int x; };\n"),
        "once.h": '#pragma once\n#include "base.h"\ninline int once(Base b) { return b.x; }\n',
        "other.h": GUARDED.format("OTHER", '#include "once.h"\n#include "base.h"\nint other(Base b);\n'),
        "main.cc": '#include "other.h"\n#include "once.h"\n\nint other(Base b) { return once(b); }\n',
    }
    assert inlined(tmp_path, files) == (
        "// base.h\nstruct Base { int x; };\n\n"
        "// once.h\ninline int once(Base b) { return b.x; }\n\n"
        "// other.h\nint other(Base b);\n\n"
        "// main.cc\nint other(Base b) { return once(b); }\n"
    )


@needs_gxx
def test_fragments_are_expanded_each_time(tmp_path):
    files = {
        "colours.def": "COLOUR(red)\nCOLOUR(blue)\n",
        "main.cc": (
            "enum Colour {\n#define COLOUR(name) name,\n#include \"colours.def\"\n#undef COLOUR\n};\n"
            "const char* names[] = {\n#define COLOUR(name) #name,\n"
            "#include \"colours.def\"\n#undef COLOUR\n};\n"
        ),
    }  # fmt: skip
    text = inlined(tmp_path, files)
    assert text.count("COLOUR(red)") == 2
    assert compile_errors(text) == ""
    assert preprocessed(text, tmp_path) == preprocessed(files["main.cc"], tmp_path)


@needs_gxx
@pytest.mark.parametrize("once", ["guard", "pragma"])
@pytest.mark.parametrize("defines", [(), ("EARLY",)])
def test_what_was_read_under_a_condition_is_there_again_where_that_need_not_hold(tmp_path, once, defines):
    body = "struct A { int x; };\n"
    header = GUARDED.format("A", body) if once == "guard" else f"#pragma once\n{body}"
    files = {
        "folder/a-1.h": header,
        "b.h": '#pragma once\n#include "folder/a-1.h"\nstruct B : A {};\n',
        "main.cc": (
            '#ifdef EARLY\n#include "folder/a-1.h"\nA early;\n#endif\n#include "b.h"\n'
            '#if EARLIER\n#include "folder/a-1.h"\n#endif\nB b;\n'
        ),
    }
    text = inlined(tmp_path, files)
    assert text.count("struct A {") == 2
    assert "EARLIER" not in text  # the group of which nothing was left
    assert preprocessed(text, tmp_path, *defines) == preprocessed(files["main.cc"], tmp_path, *defines)


def test_includes_that_lead_out_of_the_project_stay_once_where_they_are_needed_first(tmp_path):
    files = {
        "a.h": (
            '#pragma once\n#include <vector>\n#ifdef UNIX\n#include <unistd.h>\n#endif\n#include "gone.h"\n'
        ),
        "main.cc": (
            '#include <string>\n#include "a.h"\n#include <vector>\n#include <string>\n'
            "#include <unistd.h>\n#ifdef UNIX\n#include <unistd.h>\n#include <poll.h>\n#endif\nint x;\n"
        ),
    }
    text = inlined(tmp_path, files)
    assert text == (
        "#include <string>\n\n// a.h\n#include <vector>\n#ifdef UNIX\n#include <unistd.h>\n#endif\n"
        '#include "gone.h"\n\n// main.cc\n#include <unistd.h>\n#ifdef UNIX\n#include <poll.h>\n'
        "#endif\nint x;\n"
    )


@pytest.mark.parametrize(
    "files",
    [
        {"main.cc": '#ifndef DEEP\n#define DEEP\n#include "main.cc"\n#endif\nint x;\n'},
        {"a.h": "#if X\nint a();\n", "main.cc": '#include "a.h"\nint x;\n'},
    ],
    ids=["a file that includes itself", "conditionals that do not add up"],
)
def test_what_cannot_be_expanded_is_built_the_other_way(tmp_path, files):
    rows = rows_of(write_files(tmp_path, files), INLINED)
    (row,) = [row for row in rows if "main.cc" in row["files"]]
    assert row["kind"] != "inlined"
    assert "int x;" in row["text"]


@pytest.mark.slow
def test_a_thousand_includes_deep(tmp_path):
    files = {f"h{i}.h": f'#pragma once\n#include "h{i + 1}.h"\nint f{i}();\n' for i in range(1_200)}
    files |= {"h1200.h": "#pragma once\nint last();\n", "main.cc": '#include "h0.h"\nint x;\n'}
    text = inlined(tmp_path, files, budget=200_000)
    assert text.index("int last();") < text.index("int f1199();") < text.index("int f0();")
