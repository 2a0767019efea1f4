"""The file of verdicts: what it keeps, what it survives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.judge.result_cache import FILE, Verdict, VerdictCache

PASS = Verdict("pass", "", 0.25, 7, 7)
WRONG = Verdict("wrong answer", "assertion 2 of 7 failed: \u00e9\n", 0.5, 7, 3)


def test_verdicts_are_there_again(tmp_path: Path) -> None:
    store = VerdictCache(tmp_path / "new" / "folder")
    assert store.get("a") is None
    store.add("a", PASS)
    store.add("b", WRONG)
    for reader in (store, VerdictCache(tmp_path / "new" / "folder")):
        assert len(reader._verdicts) == 2
        found = reader.get("b")
        assert found is not None
        assert (found.outcome, found.message, found.assertions_passed) == (WRONG.outcome, WRONG.message, 3)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = VerdictCache(None)
    store.add("a", PASS)
    assert store.get("a") is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[]",
        b"3",
        b"{}",
        b'{"key": "x"}',
        json.dumps({"key": "x", "outcome": "superb", "message": "", "cpu_seconds": 1.0, "assertions": 1,
                    "assertions_passed": 1}).encode(),
        json.dumps({"key": "x", "outcome": "pass", "message": "", "cpu_seconds": 1.0, "assertions": "7",
                    "assertions_passed": 1}).encode(),
    ],
)  # fmt: skip
def test_lines_that_are_no_verdicts_are_passed_over(tmp_path: Path, line: bytes) -> None:
    VerdictCache(tmp_path).add("a", PASS)
    with (tmp_path / FILE).open("ab") as file:
        file.write(line + b"\n")
    VerdictCache(tmp_path).add("b", PASS)
    store = VerdictCache(tmp_path)
    assert (len(store._verdicts), store.get("x")) == (2, None)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot keep verdicts"):
        VerdictCache(tmp_path / "file")
    store = VerdictCache(tmp_path / "folder")
    (tmp_path / "folder" / FILE).mkdir()
    with pytest.raises(UserError, match="cannot write"):
        store.add("a", PASS)
