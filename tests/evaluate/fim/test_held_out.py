"""Holes in held-out code: where they are, the same everywhere, and what a model sees of the rest."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.evaluate.fim.held_out import (
    FILE_KINDS,
    MAX_HOLE_BYTES,
    MAX_HOLE_LINES,
    compile_standalone,
    file_holes,
    find_hole_spans,
)
from cpplm.sandbox.sandbox import Sandbox

TEXT = """\
#include <vector>
// The sum of all values, counted twice.
int twice(const std::vector<int>& values) {
    int sum = 0;  // begins at 0
    for (int value : values) {
        sum += 2 * value;
    }
    return sum;
}

int one() { return twice(std::vector<int>{1, 2, 3}); }
"""
ALL = (10**6, 10**6)


def found(text: str, kind: str) -> list[str]:
    data = text.encode()
    return [
        data[place.start : place.end].decode() for place in find_hole_spans(text)[1] if place.kind == kind
    ]


def test_places_of_each_kind() -> None:
    assert found(TEXT, "single") == [
        "int twice(const std::vector<int>& values) {",
        "    int sum = 0;  // begins at 0",
        "    for (int value : values) {",
        "        sum += 2 * value;",
        "    return sum;",
        "int one() { return twice(std::vector<int>{1, 2, 3}); }",
    ]
    assert len(found(TEXT, "multi")) == 6 * 5 / 2
    bodies = sorted(found(TEXT, "body"))
    assert bodies[0].startswith("    int sum = 0;")
    assert bodies[0].endswith("    return sum;")
    assert bodies[1] == "return twice(std::vector<int>{1, 2, 3});"
    assert found(TEXT, "block") == ["{\n        sum += 2 * value;\n    }"]
    assert "return twice(std::vector<int>{1, 2, 3});" in found(TEXT, "statement")
    assert found(TEXT, "arguments") == ["(std::vector<int>{1, 2, 3})"]


def test_holes_are_short_and_comments_and_directives_are_none() -> None:
    long = "int x = " + " + ".join(["1"] * 2 * MAX_HOLE_BYTES) + ";\n"
    text = long + "/* a\n b\n c */\n#define A \\\n  b\n" + "".join(f"int v{n};\n" for n in range(20))
    assert {place.kind for place in find_hole_spans(text)[1]} == {"single", "multi"}
    assert found(text, "single") == [f"int v{n};" for n in range(20)]
    assert max(hole.count("\n") for hole in found(text, "multi")) == MAX_HOLE_LINES - 1


@given(st.text(alphabet="aé{}();\n \"'/*#", max_size=60))
def test_any_text_can_be_cut(text: str) -> None:
    data = text.encode()
    for place in find_hole_spans(text)[1]:
        data[: place.start].decode()
        assert data[place.start : place.end].decode().strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(4):
        path = tmp_path / "project" / f"{number}.cpp"
        path.parent.mkdir(exist_ok=True)
        path.write_text(TEXT.replace("twice", f"times_{number}") + "// é\n")
    return tmp_path


def test_holes_come_from_as_many_texts_as_there_are(folder: Path) -> None:
    holes, texts = file_holes(str(folder), 6, 0, *ALL)
    assert list(dict.fromkeys(hole.kind for hole in holes)) == list(FILE_KINDS)
    for kind in FILE_KINDS:
        groups = [hole.group for hole in holes if hole.kind == kind]
        assert len(groups) == (4 if kind in ("block", "arguments") else 6)
        assert len(set(groups)) == 4  # the first of each before the second of any
    assert len({hole.name for hole in holes}) == len(holes)
    for hole in holes:
        text = texts[hole.group].text
        assert hole.filled(hole.middle) == text
        assert (hole.prefix + hole.middle + hole.suffix, hole.tests) == (text, "")
        assert re.fullmatch(rf"project/[0-9a-f]{{12}}/{hole.kind}/\d+-\d+", hole.name)


def test_texts_that_the_parser_reads_come_first(folder: Path) -> None:
    for number in range(4):
        (folder / "project" / f"broken_{number}.cpp").write_text("int f( {\n" * (number + 1) + TEXT)
    holes, texts = file_holes(str(folder), 4, 0, *ALL)
    assert not any(text.text.startswith("int f( {") for text in texts.values())
    more, texts = file_holes(str(folder), 8, 0, *ALL)
    assert sum(text.text.startswith("int f( {") for text in texts.values()) == 4
    assert {hole.name for hole in holes} < {hole.name for hole in more}


def test_the_choice_depends_on_texts_and_seed(folder: Path) -> None:
    first, _ = file_holes(str(folder), 3, 0, *ALL)
    assert file_holes(str(folder), 3, 0, *ALL)[0] == first
    assert file_holes(str(folder), 3, 1, *ALL)[0] != first
    for number in range(4):  # other names, hence another order, and a copy
        (folder / "project" / f"{number}.cpp").rename(folder / "project" / f"{9 - number}.h")
    (folder / "project" / "copy.h").write_bytes((folder / "project" / "9.h").read_bytes())
    assert file_holes(str(folder), 3, 0, *ALL)[0] == first


@given(before=st.integers(1, 400), after=st.integers(0, 400))
def test_a_window_shows_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, before: int, after: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.cpp").write_text(TEXT)
    for hole in file_holes(str(folder), 1, 0, before, after)[0]:
        assert hole.before.endswith(hole.prefix)
        assert hole.after.startswith(hole.suffix)
        assert len(hole.prefix) <= before
        assert len(hole.suffix) <= after
        cut = hole.before.removesuffix(hole.prefix)
        assert cut.endswith("\n") or cut == "" or "\n" not in hole.prefix
        assert hole.suffix.endswith("\n") or hole.suffix == hole.after or "\n" not in hole.suffix
        assert hole.filled(hole.middle) == TEXT


def test_texts_that_compile_alone() -> None:
    sandbox = Sandbox.probe()
    assert compile_standalone(TEXT, sandbox) == "compiles"
    assert (
        compile_standalone(TEXT.replace("sum += 2 * value;", "sum += undeclared;"), sandbox)
        == "compile error"
    )
    assert compile_standalone('#include "/etc/hostname"\n', sandbox) == "compile error"
    assert compile_standalone("\x00\udcff", sandbox) == "compile error"
