"""What the compiler printed, by line: as gcc 12 to 15 say it, and as nobody does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.serve.page_compile import Diagnostic, diagnostics_of

SOURCE = "#include <vector>\n#include <algorithm>\n\nint main() {\n    äö wrong;\n}\n"


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("main.cpp:4:1: error: it is wrong", (4, 1, "error", "it is wrong")),
        ("main.cpp:4:1: warning: odd [-Wodd]", (4, 1, "warning", "odd [-Wodd]")),
        ("main.cpp:4: note: see here: there", (4, None, "note", "see here: there")),
        ("main.cpp:1:10: fatal error: no: No such file", (1, 10, "error", "no: No such file")),
        ("main.cpp:4:5: internal compiler error: in f", (4, 5, "error", "in f")),
        ("main.cpp:4:5: sorry, unimplemented: that", (4, 5, "error", "that")),
        ("main.cpp:5:10: error: behind two letters", (5, 8, "error", "behind two letters")),
        ("main.cpp:99:1: error: behind the end", (None, None, "error", "behind the end")),
        ("main.cpp:0:0: error: in front", (None, None, "error", "in front")),
        ("ld: /dir/main.cpp:4: undefined reference to `f", (4, None, "error", "undefined reference to `f")),
        ("/tmp/main.cpp:4: multiple definition of `f'", (4, None, "error", "multiple definition of `f'")),
    ],
)  # fmt: skip
def test_one_line(printed: str, expected: tuple[int | None, int | None, str, str]) -> None:
    assert diagnostics_of(printed, SOURCE) == [Diagnostic(*expected)]


def test_a_template_of_a_header() -> None:
    printed = """\
In file included from /usr/include/c++/14/algorithm:61,
                 from main.cpp:2:
/usr/include/c++/14/bits/stl_algo.h: In instantiation of 'void std::sort(_RAIter, _RAIter)':
/usr/include/c++/14/bits/stl_algo.h:4771:18:   required from 'void std::sort(It, It)'
main.cpp:4:12:   required from here
/usr/include/c++/14/bits/stl_algo.h:1906:50: error: no match for 'operator-'
/usr/include/c++/14/bits/stl_iterator.h:67:5: note: candidate
main.cpp:5:1: error: another
"""
    assert diagnostics_of(printed, SOURCE) == [
        Diagnostic(4, 12, "error", "stl_algo.h:1906: no match for 'operator-'"),
        Diagnostic(5, 1, "error", "another"),
    ]


def test_a_header_that_is_wrong_by_itself() -> None:
    printed = "In file included from main.cpp:1:\n/usr/include/a.h:3:2: error: #error never include this\n"
    assert diagnostics_of(printed, SOURCE) == [
        Diagnostic(1, None, "error", "a.h:3: #error never include this")
    ]


def test_a_complaint_about_no_place() -> None:
    printed = "/usr/include/a.h:3:2: error: from nowhere\n"
    assert diagnostics_of(printed, SOURCE) == [Diagnostic(None, None, "error", "a.h:3: from nowhere")]


@pytest.mark.parametrize(
    "printed",
    [
        "", "compilation terminated.", "main.cpp: In function 'int main()':", "main.cpp: At global scope:",
        "cc1plus: some warnings being treated as errors", "collect2: error: ld returned 1 exit status",
    ],
)  # fmt: skip
def test_other_lines_are_no_complaints(printed: str) -> None:
    assert diagnostics_of(printed, SOURCE) == []


PIECES = st.sampled_from(
    ["main.cpp", ":", "1", "99999999999", " error", " from ", "\n", "ä", "note: ", "\x00", " "]
)


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)), st.text())
def test_any_text_is_read(printed: str, source: str) -> None:
    lines = source.count("\n") + 1
    for diagnostic in diagnostics_of(printed, source):
        assert diagnostic.severity in {"error", "warning", "note"}
        assert diagnostic.line is None or 1 <= diagnostic.line <= lines
        assert diagnostic.column is None or diagnostic.column >= 1
