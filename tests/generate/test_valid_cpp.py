"""Syntax of C++ while it is written: what breaks it is refused, what can go on is not."""

from dataclasses import replace
from itertools import pairwise

import pytest

from cpplm.generate.engine import Engine
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import DraftSettings, SamplingSettings, SchedulerLimits
from cpplm.generate.valid_cpp import CppContext, CppSyntax
from cpplm.tokenizer.special_tokens import BOS, EOS, NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import babbler
from tests.generate.test_speculative import answers

CODE = """#include <vector>
#define OPEN {
template <typename T> struct Pair { T a; int b[2] = {1, 2}; };
int f(int n) {  // a comment with { and ;
    std::vector<int> v{1, 2};
    for (int i = 0; i < n; i++) { v[i] = '{' + "}"[0]; }
    do { n--; } while (n > 0);
    try { n = v.at(1); } catch (...) { return 0; }
    auto g = [&](int x) { return x * 2; };
    switch (n) { case 1: break; default: n = 1'000; }
    const char* s = R"x(
{ ")x";
    f({1, {2, 3}}, [](int a) { return a; }, n); int m[2][2] = {{1, 2}, {f([] { return 1; }), 4}};
    if (n) { return g(n); } else { return n; }
}
"""


@pytest.mark.parametrize("size", [1, 4, 17])
def test_code_that_is_right_is_never_refused(size: int) -> None:
    """However it is cut into tokens, from each line on, and in each line as a hole."""
    data = CODE.encode()
    starts = [0, *(place + 1 for place, value in enumerate(data) if value == ord("\n"))]
    for start in starts[3:-1]:
        syntax = CppSyntax(CppContext(data[:start]))
        for place in range(start, len(data), size):
            assert syntax.accepts(data[place : place + size], ends=False), data[start : place + size]
            syntax.append(data[place : place + size])
        assert syntax.accepts(b"", ends=True)
    for start, end in pairwise(starts[3:]):
        hole = CppSyntax(CppContext(data[:start], data[end:]))
        assert hole.accepts(data[start:end], ends=True), data[start:end]


@pytest.mark.parametrize(
    ("before", "token"),
    [
        ("int y = = 3", ";"),
        ("x = foo(a", ";"),
        ("if (x { y = 1; }", "}"),
        ("x = a]", ";"),
        ("v[1", ")"),
        ("int 3x", ";"),
    ],
)
def test_what_breaks_the_syntax(before: str, token: str) -> None:
    syntax = CppSyntax(CppContext(b"int f(int a) {\n  "))
    syntax.append(before.encode())
    assert not syntax.accepts(token.encode(), ends=False)
    broken = CppSyntax(CppContext(b"void g() { (]; \n"))  # not watched
    broken.append(before.encode())
    assert broken.accepts(token.encode(), ends=False)


def test_a_hole_ends_where_all_of_it_fits() -> None:
    syntax = CppSyntax(CppContext(b"int f() { return ", b"; }\n"))
    assert syntax.accepts(b"1", ends=True)
    assert not syntax.accepts(b"1 +", ends=True)
    assert not syntax.accepts(b"if (", ends=True)
    syntax.append(b"1 +")
    assert syntax.accepts(b" 2", ends=True)


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    return babbler(tokenizer, context=128)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_next_best_token_is_written(engine: Engine, temperature: float) -> None:
    """Beside requests that are not watched, which stay as they were; with drafts as without."""
    before, after = "int f(int a) {\n  return 2 *", "; }\n"
    bias = ((NUM_SPECIAL + ord(")"), 100.0), (NUM_SPECIAL + ord("1"), 60.0), (EOS, 80.0))
    settings = SamplingSettings(max_new_tokens=6, temperature=temperature, logit_bias=bias)
    ids = (BOS, *engine.tokenizer.encode(before))
    free = [engine.request(before, after, settings=settings), GenerationRequest(ids, settings)]
    hole = CppContext(before.encode(), after.encode())
    watched = [replace(free[0], valid=hole), replace(free[1], valid=replace(hole, after=None))]
    limits = SchedulerLimits(max_batch=16)
    mixed = answers(engine, [*free, *watched], limits)
    assert [completion.text for (completion,) in mixed] == ["))))))", "))))))", "1", ""]
    drafted = replace(limits, draft=DraftSettings("lookup", tokens=3, max_batch=16))
    assert answers(engine, [*free, *watched], drafted) == mixed
