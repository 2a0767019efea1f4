"""Samples of a corpus, compiled under three conditions side by side."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.corpus.build import build
from cpplm.corpus.compile.compiler import CompileResult
from cpplm.corpus.reports.compile_rate import (
    CompiledDocument,
    CompileRateSettings,
    format_table,
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
    assert "in_project" not in result
    assert result["by_project"]["plainc"]["as_is"]["compile_rate"] == 1.0
    assert {each["reason"]: each["documents"] for each in result["reasons"]} == {
        "a header was not found": 1,
        "... was not declared in this scope": 1,
    }
    assert result["missing_headers"] == {"nowhere.h": 1}
    example = next(each for each in result["reasons"] if "declared" in each["reason"])["examples"][0]
    assert example["project"] == "harbour"
    assert example["error"] == "'absent' was not declared in this scope"


def test_files_in_their_projects(folder: Path) -> None:
    """A document that lost its way to a header, where its file has not."""
    project = folder / "lone" / "harbour"
    shutil.copytree(folder / "projects" / "harbour" / "include", project / "include")
    (project / "src").mkdir()
    (project / "src" / "user.cpp").write_text(
        "#include <harbour/size.h>\nint sum() { return harbour_size; }\n"
    )
    (project / "src" / "bad.cpp").write_text("int bad() { return absent; }\n")
    out = str(folder / "lone-corpus")
    build(CorpusSettings(out=out, projects=(project,), mode="file", workers=1))
    result = measure_compile_rate(CompileRateSettings(out, projects=(project,)))
    assert result["as_is"]["compile"] == 1
    own = result["in_project"]
    assert (own["documents"], own["compile"]) == (3, 2)
    assert (own["documents_rate"], own["share"]) == (pytest.approx(1 / 3, abs=1e-4), 0.5)
    assert measure_compile_rate(CompileRateSettings(out, projects_dir=folder / "lone"))["in_project"] == own


def test_projects_that_are_others(corpus: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of the projects given is in the corpus"):
        measure_compile_rate(CompileRateSettings(corpus, projects=(tmp_path,)))
    changed = folder / "changed" / "plainc"
    shutil.copytree(folder / "projects" / "plainc", changed)
    (changed / "a.c").unlink()
    with pytest.raises(UserError, match=r"has no file a\.c"):
        measure_compile_rate(CompileRateSettings(corpus, projects=(changed,)))


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
    result = measure_compile_rate(CompileRateSettings(out, projects=(project,)))
    assert result["as_is"]["compile"] == 0
    assert result["in_project"]["compile"] == 0
    assert [each["reason"] for each in result["reasons"]] == ["a header was not found"]


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
        [checked(0, "p", 10, as_is=GOOD), checked(1, "q", 20, as_is=BAD), checked(2, "q", 60, as_is=GOOD)],
        PROJECTS,
    )
    assert (result["mean_tokens"], result["median_tokens"]) == (30, 20)
    assert result["text_per_source"] == pytest.approx(450 / 400, abs=1e-3)
    assert result["by_project"]["p"]["text_per_source"] == pytest.approx(1.5)
    assert result["by_project"]["q"]["as_is"]["compile_rate"] == 0.5
    assert result["by_kind"]["file"]["documents"] == 3
    assert [each["documents"] for each in result["reasons"]] == [1]
    assert summarize([checked(0, "p", -1, as_is=GOOD)], PROJECTS)["median_bytes"] == 3
    assert result["reasons"][0]["examples"][0]["id"] == f"{1:064x}"[:16]


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
