"""Samples of a corpus, compiled under two conditions side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.corpus.build import build
from cpplm.corpus.compile.compiler import CompileResult
from cpplm.corpus.reports.compile_rate import (
    CompiledDocument,
    CompileRateSettings,
    CorpusProject,
    format_table,
    functions_covered,
    measure_compile_rate,
    rate,
    summarize,
)
from cpplm.corpus.settings import CorpusSettings

SOURCES = {
    "harbour/include/harbour/size.h": "#pragma once\nconstexpr int harbour_size = 4;\n",
    "harbour/src/good.cpp": "int good(int a) { return a + 1; }\n",
    "harbour/src/undeclared.cpp": "int bad() { return absent; }\n",
    "harbour/src/nowhere.cpp": '#include "nowhere.h"\nint lost() { return nothing; }\n',
    "harbour/src/vendor.cpp": "#include <vendor/api.h>\nint use() { return vendor_api(); }\n",
    "harbour/src/newer.cpp": "template <class T> concept Any = true;\nint take(Any auto a) { return a; }\n",
    "plainc/a.c": "int f(int new) { return new; }\n",  # C, and no C++
    "plainc/b.c": "int g(int delete) { return delete; }\n",
    "plainc/b.h": "int g(int delete);\nstatic inline int h(int class) { return class; }\n",
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Two projects, and third-party headers that only the file system knows."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        root = Path(name)
        root.chmod(0o755)
        for path, text in SOURCES.items():
            target = root / "projects" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        api = root / "headers" / "vendor" / "api.h"
        api.parent.mkdir(parents=True)
        api.write_text("inline int vendor_api() { return 1; }\n")
        yield root


@pytest.fixture(scope="module")
def corpus(folder: Path) -> str:
    out = str(folder / "corpus")
    build(CorpusSettings(out=out, projects_dir=folder / "projects", mode="file", workers=1))
    return out


def test_two_conditions_side_by_side(corpus: str, folder: Path) -> None:
    result = measure_compile_rate(CompileRateSettings(corpus, headers=(folder / "headers",)))
    assert result["documents"] == len(SOURCES)
    failing = {"undeclared.cpp", "nowhere.cpp", "vendor.cpp"}
    assert result["as_is"]["compile"] == len(SOURCES) - len(failing)
    assert result["with_headers"]["compile"] == len(SOURCES) - len(failing) + 1
    assert result["as_is"]["later_standard"] == result["with_headers"]["later_standard"] == 1
    assert result["by_project"]["plainc"]["as_is"]["compile_rate"] == 1.0
    assert (result["impossible"], result["possible"]["documents"]) == (1, len(SOURCES) - 1)
    (impossible,) = result["impossible_reasons"]
    assert (impossible["reason"], impossible["documents"]) == ("a header that a build writes", 1)
    assert result["missing_headers"] == {"nowhere.h": 1}
    (reason,) = result["reasons"]
    assert (reason["reason"], reason["documents"]) == ("... was not declared in this scope", 1)
    (example,) = reason["examples"]
    assert example["project"] == "harbour"
    assert example["error"] == "'absent' was not declared in this scope"
    # 8 functions, one to a document, of which those of two documents do not compile.
    assert (result["functions"]["functions"], result["functions"]["compile_rate"]) == (8, 0.75)
    assert result["chunk_share"] == 0.0


def test_the_sample_follows_the_seed(corpus: str) -> None:
    first = measure_compile_rate(CompileRateSettings(corpus, sample=3, seed=1, project="harbour"))
    assert first["documents"] == 3
    assert set(first["by_project"]) == {"harbour"}
    assert first == measure_compile_rate(
        CompileRateSettings(corpus, sample=3, seed=1, project="harbour", workers=1)
    )


def test_reads_nothing_outside_the_sandbox(folder: Path) -> None:
    secret = folder / "secret.h"
    secret.write_text("int secret;\n")
    project = folder / "spy"
    project.mkdir()
    (project / "spy.cpp").write_text(f'#include "{secret}"\nint f() {{ return secret; }}\n')
    (project / "link.cpp").write_text('#include "linked.h"\nint g() { return secret; }\n')
    (project / "linked.h").symlink_to(secret)
    out = str(folder / "spy-corpus")
    build(CorpusSettings(out=out, projects=(project,), mode="file", workers=1))
    result = measure_compile_rate(CompileRateSettings(out))
    assert result["as_is"]["compile"] == 0
    assert set(result["missing_headers"]) == {str(secret), "linked.h"}


def test_bad_settings(corpus: str, tmp_path: Path) -> None:
    for change in ({"sample": 0}, {"workers": -1}, {"std": ()}, {"headers": (tmp_path / "none",)}):
        with pytest.raises(UserError, match=next(iter(change))):
            CompileRateSettings(corpus, **change)
    with pytest.raises(UserError, match="no project 'nobody'"):
        measure_compile_rate(CompileRateSettings(corpus, project="nobody"))
    with pytest.raises(UserError, match="no such folder"):
        measure_compile_rate(CompileRateSettings(str(tmp_path / "none")))
    with pytest.raises(UserError, match=r"c\+\+1998"):
        measure_compile_rate(CompileRateSettings(corpus, std=("c++17", "c++1998")))


GOOD, BAD = (
    CompileResult(True, "c++17"),
    CompileResult(False, "c++17", "'x' was not declared in this scope"),
)


def missing(name: str) -> CompileResult:
    return CompileResult(False, "c++17", f"{name}: No such file or directory", missing_headers=(name,))


def project(source_bytes: int, text_bytes: int, functions: int, kinds: dict[str, int]) -> CorpusProject:
    figures = {"source_bytes": source_bytes, "text_bytes": text_bytes, "functions": functions, "kinds": kinds}
    return CorpusProject(figures, functions, {"src/own.h", "src/deep/a.cc"})


PROJECTS = {
    "p": project(100, 150, 10, {"compilable": 8, "chunk": 2}),
    "q": project(300, 300, 30, {"compilable": 10}),
}


def checked(
    number: int, project: str, tokens: int, *, text: str = "abc", functions: int = 1, **results: CompileResult
) -> CompiledDocument:
    document: dict[str, Any] = {"id": f"{number:064x}", "project": project, "kind": "file", "text": text}
    return CompiledDocument(document | {"num_tokens": tokens, "num_functions": functions}, results)


def test_interval_of_wilson() -> None:
    low, high = rate([GOOD] * 8 + [BAD] * 2)["interval"]
    assert (low, high) == (pytest.approx(0.4901, abs=2e-3), pytest.approx(0.9433, abs=2e-3))
    assert rate([GOOD] * 8)["interval"][1] == pytest.approx(1.0)
    assert rate([BAD] * 2)["interval"][0] == pytest.approx(0.0)
    assert rate([])["compile_rate"] is None


def test_names_are_taken_out_of_reasons() -> None:
    assert CompileResult(False, "c", "'a' has no member named \"b\"").reason == "... has no member named ..."
    assert missing("a.h").reason == "a header was not found"


def test_groups_sizes_and_repetition() -> None:
    result = summarize(
        [checked(0, "p", 10, as_is=GOOD), checked(1, "q", 20, as_is=BAD), checked(2, "q", 60, as_is=GOOD)],
        PROJECTS,
    )
    assert (result["mean_tokens"], result["median_tokens"]) == (30, 20)
    assert result["text_per_source"] == pytest.approx(450 / 400, abs=1e-3)
    assert result["by_project"]["p"]["text_per_source"] == pytest.approx(1.5)
    assert result["chunk_share"] == 0.1
    assert result["by_project"]["p"]["chunk_share"] == 0.2
    assert result["by_project"]["q"]["as_is"]["compile_rate"] == 0.5
    assert result["by_kind"]["file"]["documents"] == 3
    assert [each["documents"] for each in result["reasons"]] == [1]
    assert summarize([checked(0, "p", -1, as_is=GOOD)], PROJECTS)["median_bytes"] == 3
    assert result["reasons"][0]["examples"][0]["id"] == f"{1:064x}"[:16]


def test_reasons_are_those_with_headers() -> None:
    result = summarize([checked(0, "p", 1, as_is=missing("a.h"), with_headers=BAD)], PROJECTS)
    assert [each["reason"] for each in result["reasons"]] == ["... was not declared in this scope"]
    assert result["missing_headers"] == {}
    assert result["impossible"] == 0


@pytest.mark.parametrize(
    ("include", "reason"),
    {
        "<vendor/api.h>": "a header of a third party",
        '"zlib.h"': "a header of a third party",
        "<windows.h>": "a header of another platform",
        "<CoreFoundation/CFString.h>": "a header of another platform",
        '"version.h"': "a header that a build writes",
        "<src/version.h>": "a header that a build writes",
        '"own.h"': "",
        '"../own.h"': "",
    }.items(),
)
def test_what_cannot_compile(include: str, reason: str) -> None:
    document = checked(0, "p", 1, text=f"#include {include}\n", as_is=missing(include[1:-1]))
    result = summarize([document, checked(1, "p", 1, as_is=GOOD)], PROJECTS)
    assert [each["reason"] for each in result["impossible_reasons"]] == [reason] * bool(reason)
    assert result["impossible"] == bool(reason)
    assert result["possible"]["compile_rate"] == (1.0 if reason else 0.5)
    assert len(result["reasons"]) == 1 - result["impossible"]


def test_functions_weigh_and_those_in_no_document_count_as_lost() -> None:
    documents = [checked(0, "p", 1, functions=6, as_is=GOOD), checked(1, "p", 1, functions=2, as_is=BAD)]
    covered = functions_covered(documents, in_documents=0.5)
    assert (covered["functions"], covered["compile_rate"]) == (8, 0.375)
    low, high = covered["interval"]
    assert low < 0.375 < high <= 0.5
    assert functions_covered(documents[:1] * 50, 1.0)["interval"][0] > 0.9
    assert functions_covered([checked(0, "p", 1, functions=0, as_is=GOOD)], 1.0)["compile_rate"] is None


def test_the_table_has_each_figure() -> None:
    documents = [checked(0, "p", 1_234, as_is=GOOD), checked(1, "p", 1_234, as_is=missing("vendor/api.h"))]
    more = {"compiler": "g++ 1", "sandbox": "walls", "standards": ["c++17", "c++20"]}
    text = format_table(summarize(documents, PROJECTS) | more)
    for words in (
        *("1,234", "as is", "50.0%", "100.0%", "10.0%", "1.12 bytes", "g++ 1", "walls", "c++20"),
        *("cannot compile: 1 (50.0%)", "1  a header of a third party (p 0000", "vendor/api.h (1)"),
    ):
        assert words in text
    assert "with headers" not in text
