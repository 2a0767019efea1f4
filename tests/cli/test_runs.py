"""`cpplm runs`: what the commands print and refuse."""

from pathlib import Path

import pytest

from cpplm.cli.runs import RunCompareSettings, RunListSettings, compare, list_runs
from cpplm.core.errors import UserError
from cpplm.core.settings import from_command_line
from tests.train.report.test_log_reader import session, steps, validation, write_log


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, bits in (("one", 2.0), ("another", 1.5)):
        log = [session(0, 0), *steps(0, 1, 10), validation(10, 10, bits)]
        log[0]["settings"] = {**log[0]["settings"], "depth": len(name)}
        write_log(tmp_path / name, log)
    return tmp_path


def test_compare(runs: Path, tmp_path: Path) -> None:
    arguments = [str(runs / "one"), str(runs / "another"), "--out", str(tmp_path / "page.html")]
    settings = from_command_line(RunCompareSettings, arguments, program="cpplm runs compare", description="")
    report = compare(settings)
    lines = report.text.splitlines()
    assert lines[0].split() == ["one", "another"]
    assert any(line.split() == ["bits", "per", "byte", "2.0000", "1.5000"] for line in lines)
    assert any(line.split() == ["depth", "3", "7"] for line in lines)
    assert (tmp_path / "page.html").exists()
    assert [run["bits_per_byte"] for run in report.figures["runs"]] == [2.0, 1.5]
    assert report.figures["differences"] == {"depth": [3, 7]}
    assert report.figures["common"] == 2.0


def test_list(runs: Path) -> None:
    (runs / "broken").mkdir()
    (runs / "broken" / "log.jsonl").write_text("{}\n")
    write_log(runs / "strange", [{"event": "session", "time": "noon", "step": 0}])
    report = list_runs(
        from_command_line(RunListSettings, [str(runs)], program="cpplm runs list", description="")
    )
    rows = [line.split() for line in report.text.splitlines()]
    assert rows[1][:5] == [str(runs / "another"), "finished", "10", "1K", "1.5000"]
    assert rows[2][0] == str(runs / "broken")
    assert "log.jsonl:1" in report.text
    assert len(rows) == 5
    assert [run.get("bits_per_byte") for run in report.figures["runs"]] == [1.5, None, 2.0, None]
    assert "no log of a run" in report.figures["runs"][3]["state"]


def test_nothing_to_list(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no runs below"):
        list_runs(RunListSettings(str(tmp_path)))
