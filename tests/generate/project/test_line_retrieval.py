"""Lines at a cursor that the project has elsewhere: which, under which names, how many, and when none."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.generate.project.files import ProjectFile
from cpplm.generate.project.line_index import LineIndex, line_pattern
from cpplm.generate.project.line_retrieval import RetrievedLines, retrieve_candidates, retrieve_lines

SHAPES = """\
const char* name_of(Shape shape) {
    switch (shape) {
        case Shape::BOX:
            count(shape);
            return "box";
        case Shape::BALL:
            count(shape);
            return "ball";
    }
    return nullptr;
}
"""
COLORS = """\
const char* name_of(Color color) {
    switch (color) {
        case Color::RED:
@
            return "red";
        case Color::BLUE:
"""


def project(**texts: str) -> dict[str, ProjectFile]:
    return {name: ProjectFile(Path(name), (0, 0), text) for name, text in texts.items()}


def at(text: str) -> tuple[str, str]:
    prefix, _, suffix = text.partition("@")
    return prefix, suffix


def test_a_pattern_is_a_line_without_names_numbers_and_strings() -> None:
    assert line_pattern('if (a->b(1.5f) == "x\\"y") {  // z') == "if($->$($)==$){//$"
    assert line_pattern("return width;") == line_pattern("return  x ;") != line_pattern("break;")
    index = LineIndex("\n  int a;\n\n int a;\n")
    assert (index.lines, index.by_text, index.by_pattern) == (
        ["  int a;", " int a;"], {"int a;": [0, 1]}, {"int$;": [0, 1]},
    )  # fmt: skip


def test_what_stands_between_the_same_lines() -> None:
    files = project(a="    open();\n    begin(2);\n    go_on(1);\n    end();\n    close(3, 4);\n")
    found = retrieve_lines(files, "b", *at("  open();\n  begin(2);\n@\n  end();\n  close(3, 4);\n"))
    assert found
    assert found.text == "  go_on(1);"  # with the indentation of here
    assert 0.02 < found.probability < 1


def test_names_are_replaced_as_the_lines_around_show() -> None:
    found = retrieve_lines(project(shapes=SHAPES), "colors", *at(COLORS))
    assert found
    assert found.text == "            count(color);"
    texts = {
        each.text.strip(): each for each in retrieve_candidates(project(shapes=SHAPES), "c", *at(COLORS))
    }
    assert texts["count(color);"].is_changed
    assert not texts["count(shape);"].is_changed  # as it stands there


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("    go@\n", "_on(1);"),
        ("    @\n", "go_on(1);"),
        ("@\n", "    go_on(1);"),
        ("    go_on(@);\n", "1"),
        ("    go_on(1);@\n", None),  # it is all there
        ("    stop@\n", None),
        ("    go@);  // later\n", None),
    ],
)
def test_it_goes_on_from_what_is_typed_up_to_what_stands_behind(line: str, text: str | None) -> None:
    files = project(a="    begin();\n    go_on(1);\n    end();\n")
    found = retrieve_lines(files, "b", *at(f"    begin();\n{line}    end();\n"))
    assert (found and found.text) == text


def test_several_lines_between_those_around() -> None:
    around = "open(a, b);\nbegin(1.5);\nif (c) {{\n{}\n}}\nclose(d);\n"
    files = project(a=around.format("  one(1);\n    +two;\nthree *= 3;") * 3)
    found = retrieve_lines(files, "b", *at("int x;\n" + around.format("@")))
    assert found
    assert found.text == "  one(1);\n    +two;\nthree *= 3;"
    typed = retrieve_lines(files, "b", *at("begin(1.5);\nif (c) {\n  on@\n}\n"))
    assert typed
    assert typed.text == "e(1);\n    +two;\nthree *= 3;"
    inside = retrieve_lines(files, "b", *at("begin(1.5);\nif (c) {\non@);\n    +two;\n"))
    assert inside
    assert inside.text == "e(1"


def test_neither_the_saved_file_nor_what_is_unlike_is_looked_at() -> None:
    text = "alpha();\nbeta();\ngamma();\n"
    cursor = at("alpha();\n@\ngamma();\n")
    assert retrieve_lines(project(a=text), "a", *cursor) is None
    assert retrieve_lines(project(a="while (1) {\n}\n"), "b", *cursor) is None
    assert retrieve_lines({}, "", "", "") is None
    long = text.replace("beta", "b" * 500)
    assert retrieve_lines(project(a=long), "b", *cursor) is None  # of which only the beginning is looked at
    assert retrieve_lines(project(a=""), "", "x", "y") is None


def test_the_file_itself_has_examples_on_both_sides() -> None:
    for text in (
        "begin();\nwork(1);\nend();\n\nbegin();\n@\nend();\n",
        "begin();\n@\nend();\n\nbegin();\nwork(1);\nend();\n",
    ):
        found = retrieve_lines({}, "", *at(text))
        assert found
        assert found.text == "work(1);"


def test_much_of_the_same_does_not_take_long() -> None:
    files = project(a="x = y;\n" * 30_000, b="z" * 400_000 + "\n" + "{},{}," * 10_000)
    retrieve_lines(files, "c", "x = y;\n", "\nx = y;\n")  # the index is made once
    begin = time.process_time()
    assert retrieve_lines(files, "c", "x = y;\n" * 3, "\nx = y;\n" * 3)
    assert time.process_time() - begin < 5


LINES = st.lists(
    st.sampled_from(["a = b;", "  c(d);", "}", "", "if (a) {", "é面 = 1;", '\t"x";']), max_size=8
).map("\n".join)


@given(LINES, LINES, LINES, st.integers(0, 40))
def test_any_answer_fits(other: str, own: str, more: str, place: int) -> None:
    text = own + "\n" + more
    prefix, suffix = text[:place], text[place:]
    found = retrieve_lines(project(a=other, b=own), "", prefix, suffix)
    if found is not None:
        assert found.text
        assert 0 < found.probability < 1
        assert found.text.count("\n") < 8
    for candidate in retrieve_candidates(project(a=other, b=own), "", prefix, suffix):
        assert candidate.text.startswith(prefix.rpartition("\n")[2])
        assert candidate.text.endswith(suffix.partition("\n")[0].rstrip())


def test_a_model_is_preferred_where_as_many_of_its_lines_are_likely() -> None:
    one, two = RetrievedLines("a();", 0.1), RetrievedLines("a();\nb();", 0.1)
    sure = [("c", -0.1), ("();\n", -0.1), ("d();\n", -9.0), ("}", -0.1)]
    assert not one.is_preferred(sure)
    assert two.is_preferred(sure)
    assert one.is_preferred([("c();", -9.0)])
