"""The parser tells code from what only looks like it, and says when it is not there."""

import pytest

from cpplm.cpp.syntax import syntax_valid
from cpplm.evaluate.problems import load_problems


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("", True),
        ("int f() { return 1; }", True),
        ("template <typename T> concept C = requires(T t) { t + 1; };", True),
        ("int f() { return undeclared(3); }", True),  # no names are looked up
        ("int f() { return 1 }", False),  # a MISSING node
        ("int f() { return 1;", False),
        ("int f( { }", False),
        ("FOO_API int f();\nFOO_BEGIN_NAMESPACE\nint g();\nFOO_END_NAMESPACE\n", True),  # macros are masked
        ("int f() {\n#if A\n  if (a) {\n#else\n  {\n#endif\n  }\n}\n", True),  # one branch is read
        ("int f() { /* return 1; }", False),
        ("int f() { ) }", False),  # an ERROR node
        ("\x00\x01\udcff", False),
        ("((((" * 10_000, False),
    ],
)  # fmt: skip
def test_syntax_valid(text: str, valid: bool) -> None:
    assert syntax_valid(text) is valid


def test_canonical_solutions_are_valid_and_halves_of_them_are_not() -> None:
    for problem in load_problems("small"):
        assert syntax_valid(problem.prompt + problem.canonical_solution), problem.name
        assert not syntax_valid(problem.prompt + problem.canonical_solution.rstrip().removesuffix("}"))
