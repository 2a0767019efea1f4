"""Compile labels in a corpus, and what a build with them says."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import SPLITS, ShardReader
from cpplm.corpus.build import build
from cpplm.corpus.compile import labels
from cpplm.corpus.compile.labels import plan_labeler
from cpplm.corpus.reports.stats import corpus_totals, format_summary
from cpplm.sandbox.backends import SandboxBackend
from cpplm.sandbox.limits import RunResult
from cpplm.sandbox.sandbox import Sandbox
from tests.corpus.cpp import write_files
from tests.corpus.killing import contents
from tests.corpus.settings import compilable

SOURCES = {
    "harbour/good.cc": "int good(int a) { return a + 1; }\n",
    "harbour/bad.cc": "int bad() { return absent; }\n",
    "harbour/vendor.cc": "#include <vendor/api.h>\nint use() { return vendor_api(); }\n",
    "harbour/crane.h": "#pragma once\nstruct Crane { Hull hull; };\n",
    "harbour/hull.h": "#pragma once\nstruct Hull { int beam; };\n",
    "plainc/a.c": "int f(int a) { return a; }\n",
    "plainc/b.c": "int g(int new) { return f(new); }\n",  # C, and no C++
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Two projects, and third-party headers that only the file system knows."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        root = Path(name)
        root.chmod(0o755)
        write_files(root / "projects", SOURCES)
        write_files(root / "headers", {"vendor/api.h": "inline int vendor_api() { return 1; }\n"})
        yield root


def built(folder: Path, out: Path, **change: Any) -> dict[str, Any]:
    return build(compilable(out=str(out), projects_dir=folder / "projects", workers=1, **change))


def rows(out: Path) -> dict[str, dict[str, Any]]:
    """The rows of a corpus by their first file."""
    reader = ShardReader(out)
    tables = [reader.table(shard) for split in SPLITS for shard in reader.shards(split)]
    return {row["files"][0]: row for table in tables for row in table.to_pylist()}


def test_no_label_unless_asked(folder: Path, tmp_path: Path) -> None:
    result = built(folder, tmp_path / "out")
    assert {(row["compiles"], row["first_error"]) for row in rows(tmp_path / "out").values()} == {
        (None, None)
    }
    assert "labels" not in corpus_totals(result)
    assert "compile" not in format_summary(result, "out")


def test_every_row_has_its_label(folder: Path, tmp_path: Path) -> None:
    result = built(folder, tmp_path / "out", label=True)
    found = {name: (row["compiles"], row["first_error"]) for name, row in rows(tmp_path / "out").items()}
    assert found == {
        "good.cc": (True, ""),
        "bad.cc": (False, "... was not declared in this scope"),
        "vendor.cc": (False, "a header was not found"),
        "crane.h": (False, "... does not name a type"),
        "hull.h": (True, ""),
        "a.c": (True, ""),
        "b.c": (False, "implicit declaration of function ..."),
    }
    built(folder, tmp_path / "plain")
    assert {name: row["text"] for name, row in rows(tmp_path / "plain").items()} == {
        name: row["text"] for name, row in rows(tmp_path / "out").items()
    }
    totals = corpus_totals(result)
    assert totals["labels"]["compile_rate"] == round(3 / 7, 4)
    assert totals["labels"]["by_kind"] == {"compilable": {"documents": 7, "compile": 3}}
    assert totals["labels"]["reasons"]["a header was not found"] == 1
    assert result["projects"]["plainc"]["labels"] == {
        "compile": {"compilable": 1},
        "reasons": {"implicit declaration of function ...": 1},
    }
    text = format_summary(result, "out")
    assert "compile    42.9% (3 of 7 compilable)" in text
    assert "1  a header was not found" in text


def test_headers_of_third_parties_are_found(folder: Path, tmp_path: Path) -> None:
    built(folder, tmp_path / "out", label=True, headers=(folder / "headers",))
    assert rows(tmp_path / "out")["vendor.cc"]["compiles"]


@pytest.mark.slow
def test_the_same_bytes_for_any_number_of_workers_and_any_hash_seed(folder: Path, tmp_path: Path) -> None:
    built(folder, tmp_path / "one", label=True)
    script = (
        "import sys\nfrom pathlib import Path\nfrom cpplm.corpus import build as b, project, project_cache\n"
        "from cpplm.corpus.settings import CorpusSettings\n"
        "if __name__ == '__main__':\n"
        "    project_cache._SMALL_PROJECT = 1_500\n"  # one project goes to a worker whole, one in batches
        "    given = {'out': sys.argv[1], 'projects_dir': Path(sys.argv[2]), 'mode': 'compilable'}\n"
        "    b.build(CorpusSettings(**given, workers=2, label=True))\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "two"), str(folder / "projects")],
        check=True, timeout=120, env={**os.environ, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_another_corpus_when_labels_headers_or_the_compiler_differ(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    built(folder, out, label=True)
    assert built(folder, out, label=True)["already_complete"]
    for change in ({}, {"label": True, "headers": (folder / "headers",)}):
        with pytest.raises(UserError, match="holds another corpus"):
            built(folder, out, **change)
    monkeypatch.setattr(labels, "require_standards", lambda sandbox: "g++ 99")
    with pytest.raises(UserError, match=r"compiler was '.*', now 'g\+\+ 99'"):
        built(folder, out, label=True)


def test_without_a_compiler_nothing_begins(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = RunResult("start", None, None, b"", b"g++: no such program in the sandbox", 0, 0)
    monkeypatch.setattr(Sandbox, "run", lambda *_, **__: absent)
    with pytest.raises(UserError, match=r"no C\+\+ compiler"):
        built(folder, tmp_path / "out", label=True)
    assert not (tmp_path / "out").exists()


def test_a_worker_makes_its_own_sandbox(folder: Path) -> None:
    settings = compilable(out="x", projects=(folder,), label=True)
    plan = plan_labeler(settings)
    assert plan is not None
    assert isinstance(plan.backend, SandboxBackend)
    assert plan.compiler()("int f() { return 1; }\n", "c++").compiles
    assert plan_labeler(compilable(out="x", projects=(folder,))) is None
