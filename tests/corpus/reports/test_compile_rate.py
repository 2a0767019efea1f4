"""Samples of a corpus, compiled under three conditions side by side."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.corpus.build import build
from cpplm.corpus.reports.compile_rate import CompileRateSettings, measure_compile_rate
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


def test_the_standard_that_is_asked_for(corpus: str) -> None:
    both = measure_compile_rate(CompileRateSettings(corpus))
    older = measure_compile_rate(CompileRateSettings(corpus, std=("c++17",)))
    assert older["as_is"]["compile"] == both["as_is"]["compile"] - 1
    assert older["as_is"]["later_standard"] == 0
    assert older["standards"] == ["c++17"]


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


def test_projects_that_are_only_partly_given(corpus: str, folder: Path) -> None:
    result = measure_compile_rate(CompileRateSettings(corpus, projects=(folder / "projects" / "plainc",)))
    assert result["in_project"]["documents"] == result["by_project"]["plainc"]["documents"] == 3
    assert result["by_project"]["harbour"]["in_project"]["compile_rate"] is None


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
