"""Cutting completions, the estimator, the report."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.judge.scoring import (
    Outcome,
    SampleResult,
    find_forbidden,
    function_body,
    is_empty,
    pass_at_k,
    summarize,
)


@given(st.lists(st.sampled_from([" ", "\n", "\t", ";", "{", "}", "<%", "// a }\n", "/* b; */"]), max_size=8))
def test_empty_is_what_holds_no_word(parts: list[str]) -> None:
    text = "".join(parts)
    assert is_empty(text)
    assert not any(is_empty(f"{text} {word} {text}") for word in ("0", "x", '""', "+", "()", "#"))


@pytest.mark.parametrize(
    "body",
    [
        " return 1; }",
        "}",
        " if (a) { b(); } else { c(); } }",
        ' return "}"; }',
        r' return "\"}\\"; }',
        " return '}'; }",
        r" return '\''; }",
        r" return '\\' + '}'; }",
        " // }\n return 1; }",
        " // } \\\n still a comment }\n return 1; }",
        " /* } \n } */ return 1; }",
        " /* // */ return 1; }",
        ' return R"(})"; }',
        ' return R"x()" })x"; }',
        ' return u8R"--(}"})--"; }',
        ' return LR"(\\)"; }',
        " return 1'000'000 + 0x1'F; }",
        " return u8'}' + L'}'; }",
        " int x = 1'0; char c = '}'; return c; }",
        ' return "/*"; }',
        ' return "//"; }',
        " return '\"' + '{'; }",
        ' return prefixR"(" + f(")"); }',
        " auto f = [&] { return std::vector<int>{1, 2}; }; return f(); }",
        " <% return 1; %> }",
    ],
)
def test_cut_behind_the_function(body: str) -> None:
    """Whatever follows, the body ends at its own brace."""
    for rest in ("", "\nint main() { return 0; }", '\n"', "}", "\n#include <x>", "'", "/*"):
        cut = function_body(body + rest)
        assert cut.complete
        assert cut.text == body
        assert find_forbidden(cut.text) == ""


@pytest.mark.parametrize(
    "text", ["", " return 1;", " if (a) { }", ' "}', " // }", " /* }", " '}", ' R"x(})y"']
)
def test_an_unclosed_function_is_kept_whole(text: str) -> None:
    cut = function_body(text)
    assert not cut.complete
    assert cut.text == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n#define assert(x)\n }", "#"),
        ("\n  #  undef assert\n }", "#"),
        ("/* c */ # pragma once\n }", "#"),
        ("\n%:define assert\n }", "%:"),
        ("\n??=define assert\n }", "??="),
        (' asm(".globl f"); }', "asm"),
        (' __asm__ volatile(""); }', "__asm__"),
        (' _Pragma("redefine_extname f g") }', "_Pragma"),
        (' return "#define asm"; }', ""),
        (" // #define\n }", ""),
        (" /*\n#define\n*/ }", ""),
        (' return R"(\n#define\n)"; }', ""),
        (" a # b }", ""),
        (" int asmara = plasm; }", ""),
        (" __attribute__((constructor)) }", "__attribute__"),
        (" [[using gnu: constructor]] }", "gnu"),
        (" [[fallthrough]]; }", ""),
        (" cpplm_judge::finish(); }", "cpplm_judge"),
        (" as\\\nm(); }", "asm"),
        (" as\\ \t\nm(); }", "asm"),
        ("\n\\\n#define x\n }", "#"),
        (" /\\\n* }", "/*"),
        (" /* }", "/*"),
        (' u8R"x(}")', 'R"'),
        (' R"x(})x" }', ""),
    ],
)
def test_what_could_change_the_tests_is_seen(text: str, expected: str) -> None:
    assert find_forbidden(text) == expected


@example('"}\\')  # a backslash that ends the text inside a string
@example("'}\\")
@given(st.text(alphabet="{}\"'/*\\\n#R()x1<%> ", max_size=60))
def test_any_text_can_be_cut(text: str) -> None:
    cut = function_body(text)
    assert text.startswith(cut.text)
    assert cut.complete == (cut.text.endswith(("}", "%>")) and cut.complete)
    assert cut.complete or cut.text == text
    if cut.complete:
        assert function_body(cut.text) == cut, "cutting twice changes nothing"


def test_a_long_completion_is_cut_fast() -> None:
    assert not function_body('R"' * 30_000).complete
    assert not function_body('R"(' * 20_000).complete
    assert not function_body("/*" * 30_000).complete
    assert not function_body("{" * 65_536).complete
    assert function_body("x" * 65_000 + "}").complete


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_counts_subsets(case: tuple[int, int, int]) -> None:
    samples, passed, k = case
    subsets = list(combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    exact = 1 - math.comb(samples - passed, k) / math.comb(samples, k)
    assert pass_at_k(samples, passed, k) == pytest.approx(exact)


@pytest.mark.parametrize(("samples", "passed", "k"), [(3, 1, 4), (3, 4, 1), (3, 1, 0), (0, 0, 1), (3, -1, 1)])
def test_pass_at_k_range(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@k"):
        pass_at_k(samples, passed, k)


def sample(problem: str, difficulty: str, outcome: Outcome, passed: int = 0) -> SampleResult:
    return SampleResult(problem, difficulty, "", outcome, "needs it", 0.0, 4, passed)


def test_report() -> None:
    outcomes: dict[tuple[str, str], list[Outcome]] = {
        ("a", "easy"): ["pass", "wrong answer"],
        ("b", "easy"): ["compile error", "forbidden"],
        ("c", "hard"): ["pass", "pass"],
    }
    report = summarize(
        [sample(*key, outcome) for key, group in outcomes.items() for outcome in group], "namespaces"
    )
    assert (report.overall["problems"], report.num_samples) == (3, 2)
    assert report.overall["compile_rate"] == pytest.approx(4 / 6)
    assert report.overall["pass@1"] == pytest.approx(0.5)
    easy = {"problems": 2, "compile_rate": 0.5, "assertions_passed": 0.0, "pass@1": 0.25}
    assert report.by_difficulty["easy"] == easy
    assert report.by_difficulty["hard"]["pass@1"] == 1.0
    assert report.outcomes == {"pass": 3, "wrong answer": 1, "compile error": 1, "forbidden": 1}
    assert report.figures()["pass@1"] == pytest.approx(0.5)
    assert [row["outcome"] for row in report.details()] == [o for group in outcomes.values() for o in group]
    assert "50.0%" in report.table()
    assert "hard" in report.table()


def test_pass_at_ten_needs_ten_samples_of_each_problem() -> None:
    ten = [sample("a", "easy", "pass")] + [sample("a", "easy", "crash")] * 9
    overall = summarize(ten, "x").overall
    assert (overall["pass@1"], overall["pass@10"], "pass@100" in overall) == (pytest.approx(0.1), 1.0, False)
    assert "pass@10" not in summarize([*ten, sample("b", "easy", "pass")], "x").overall


def test_share_of_assertions_is_a_mean_over_samples_then_problems() -> None:
    judged = [
        sample("a", "easy", "wrong answer", 1),
        sample("a", "easy", "crash", 3),
        sample("b", "hard", "pass", 4),
    ]
    report = summarize(judged, "x")
    assert report.overall["assertions_passed"] == pytest.approx((0.5 + 1) / 2)
    assert report.by_difficulty["easy"]["assertions_passed"] == pytest.approx(0.5)
    assert report.figures()["assertions_passed"] == report.overall["assertions_passed"]
    assert "75.0%" in report.table()


def test_problems_that_cannot_be_judged_here_are_apart() -> None:
    judged = [
        sample("a", "easy", "pass", 4),
        sample("b", "easy", "not judged"),
        sample("c", "easy", "not judged"),
    ]
    report = summarize(judged, "x")
    assert [report.overall[name] for name in ("problems", "compile_rate", "pass@1")] == [1, 1.0, 1.0]
    assert report.not_judged == {"b": "needs it", "c": "needs it"}
    assert report.outcomes == {"not judged": 2, "pass": 1}
    assert "not judged: b, c (needs it)" in report.table()
    with pytest.raises(UserError, match=r"none of the problems .* needs it"):
        summarize(judged[1:], "x")
