"""Rates, intervals and reasons, from verdicts."""

from __future__ import annotations

import pytest

from cpplm.corpus.compile.compiler import CompileResult
from cpplm.corpus.reports.compile_rate_report import CompiledDocument, format_table, rate, summarize

GOOD, BAD = (
    CompileResult(True, "c++17"),
    CompileResult(False, "c++17", 1, "'x' was not declared in this scope"),
)
PROJECTS = {"p": {"source_bytes": 100, "text_bytes": 150}, "q": {"source_bytes": 300, "text_bytes": 300}}


def checked(number: int, project: str, tokens: int, **verdicts: CompileResult | None) -> CompiledDocument:
    document = {
        "id": f"{number:064x}",
        "project": project,
        "kind": "file",
        "num_tokens": tokens,
        "text": "abc",
    }
    return CompiledDocument(document, verdicts)


def test_interval_of_wilson() -> None:
    low, high = rate([GOOD] * 8 + [BAD] * 2)["interval"]
    assert (low, high) == (pytest.approx(0.4901, abs=2e-3), pytest.approx(0.9433, abs=2e-3))
    assert rate([GOOD] * 8)["interval"][1] == pytest.approx(1.0)
    assert rate([BAD] * 2)["interval"][0] == pytest.approx(0.0)
    assert rate([])["compile_rate"] is None


def test_names_are_taken_out_of_reasons() -> None:
    assert (
        CompileResult(False, "c", 1, "'a' has no member named \"b\"").reason == "... has no member named ..."
    )
    missing = CompileResult(False, "c", 1, "a.h: No such file or directory", missing_headers=("a.h",))
    assert missing.reason == "a header was not found"


def test_groups_sizes_and_repetition() -> None:
    result = summarize(
        [
            checked(0, "p", 10, as_is=GOOD),
            checked(1, "q", 20, as_is=BAD),
            checked(2, "q", 60, as_is=GOOD),
        ],
        PROJECTS,
    )
    assert (result["mean_tokens"], result["median_tokens"]) == (30, 20)
    assert result["text_per_source"] == pytest.approx(450 / 400, abs=1e-3)
    assert result["by_project"]["p"]["text_per_source"] == pytest.approx(1.5)
    assert result["by_project"]["q"]["as_is"]["compile_rate"] == 0.5
    assert result["by_kind"]["file"]["documents"] == 3
    assert [each["documents"] for each in result["reasons"]] == [1]
    assert result["reasons"][0]["examples"][0]["id"] == f"{1:064x}"[:16]


def test_sizes_without_a_tokenizer_are_bytes() -> None:
    assert summarize([checked(0, "p", -1, as_is=GOOD)], PROJECTS)["median_bytes"] == 3


def test_reasons_are_those_with_headers() -> None:
    missing = CompileResult(False, "c++17", 1, "a.h: No such file or directory", missing_headers=("a.h",))
    result = summarize([checked(0, "p", 1, as_is=missing, with_headers=BAD)], PROJECTS)
    assert [each["reason"] for each in result["reasons"]] == ["... was not declared in this scope"]
    assert result["missing_headers"] == {}


def test_documents_and_their_files_are_compared_where_both_are_known() -> None:
    result = summarize(
        [
            checked(0, "p", 1, as_is=GOOD, in_project=GOOD),
            checked(1, "p", 1, as_is=BAD, in_project=GOOD),
            checked(2, "q", 1, as_is=GOOD, in_project=None),
        ],
        PROJECTS,
    )
    assert result["as_is"]["compile_rate"] == pytest.approx(2 / 3, abs=1e-4)
    assert result["in_project"]["documents"] == 2
    assert (result["in_project"]["documents_rate"], result["in_project"]["share"]) == (0.5, 0.5)
    nothing = summarize([checked(0, "p", 1, as_is=BAD, in_project=BAD)], PROJECTS)
    assert nothing["in_project"]["share"] is None


def test_the_table_has_each_figure() -> None:
    result = summarize([checked(0, "p", 1_234, as_is=GOOD, in_project=GOOD)], PROJECTS)
    text = format_table(result | {"compiler": "g++ 1", "sandbox": "walls", "standards": ["c++17", "c++20"]})
    for words in ("1,234", "as is", "in project", "100.0%", "1.12 bytes", "g++ 1", "walls", "c++20"):
        assert words in text
    assert "with headers" not in text
