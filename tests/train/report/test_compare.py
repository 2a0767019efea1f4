"""Runs side by side: figures, differences, curves in one frame; and finding them."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.optim.schedules import LearningRates
from cpplm.train.pretrain import pretrain
from cpplm.train.report.compare import (
    Comparison,
    compare,
    comparison_charts,
    find_runs,
    read_runs,
    write_comparison,
)
from cpplm.train.report.log_reader import RunHistory
from cpplm.train.settings import TrainSettings
from tests.train.report.test_html import charts_of
from tests.train.report.test_log_reader import session, steps, validation, write_log


@pytest.fixture
def two(tmp_path: Path) -> list[RunHistory]:
    """The second one is better at the end, and reaches the first one's best between two validations."""
    slow = [session(0, 0), validation(0, 0, 3.0), *steps(0, 1, 10), validation(10, 10, 2.0)]
    fast = [session(0, 0), validation(0, 0, 3.0), *steps(0, 1, 8, of=8), validation(8, 8, 1.0)]
    return read_runs([str(write_log(tmp_path / name, log)) for name, log in (("slow", slow), ("fast", fast))])


def test_figures_side_by_side(two: list[RunHistory]) -> None:
    found = compare(two)
    assert found.names == ["slow", "fast"]
    assert found.common == 2.0
    assert [run["seconds_to_common"] for run in found.runs] == [5.0, 2.0]  # step 10; half way to step 8
    assert [run["tokens_to_common"] for run in found.runs] == [1000, 400]
    rows = {row.name: row for row in found.rows()}
    assert rows["bits per byte"].cells == ["2.0000", "1.0000"]
    assert rows["bits per byte"].best == [1]
    assert rows["time to 2.0000"].cells == ["5.0 s", "2.0 s"]
    assert rows["tokens per second"].best == []  # equal
    assert "MFU" not in rows
    assert found.differences == {}


def test_a_run_without_validation_has_no_common_point(two: list[RunHistory], tmp_path: Path) -> None:
    plain = RunHistory(write_log(tmp_path / "plain", [session(0, 0), *steps(0, 1, 2)]))
    found = compare([*two, plain])
    assert found.common is None
    row = next(row for row in found.rows() if row.name == "bits per byte")
    assert row.cells == ["2.0000", "1.0000", ""]


def test_bits_per_byte_of_different_texts_are_not_compared(tmp_path: Path) -> None:
    def runs(*sessions: dict[str, Any]) -> Comparison:
        logs = [
            [record, *steps(0, 1, 10, tokens_per_second=rate), validation(10, 10, bits)]
            for record, bits, rate in zip(sessions, (2.0, 1.0), (200.0, 300.0), strict=True)
        ]
        folders = [write_log(tmp_path / name, log) for name, log in zip("ab", logs, strict=True)]
        return compare(read_runs([str(folder) for folder in folders]))

    def on(text: str) -> dict[str, Any]:
        return session(0, 0, validation_text={"sha256": text})

    older = [session(0, 0), session(0, 0)]
    for record, place in zip(older, ("here", "there"), strict=True):
        record["settings"] = {**record["settings"], "data_dir": [place]}
    for found in (runs(on("x"), on("y")), runs(*older)):
        best = {row.name: row.best for row in found.rows()}
        assert (best["bits per byte"], best["training loss"], best["tokens per second"]) == ([], [], [1])
        assert found.common is None
        assert "different texts" in found.remark
    alike = runs(on("x"), on("x"))
    assert next(row.best for row in alike.rows() if row.name == "bits per byte") == [1]
    assert alike.remark == ""


def test_the_page_of_real_runs_shows_what_differs(
    settings: TrainSettings,
    tmp_path: Path,
) -> None:
    other = dataclasses.replace(
        settings, out=tmp_path / "other", rates=LearningRates(matrix_lr=0.25), save_every=4
    )
    for each in (settings, other):
        pretrain(dataclasses.replace(each, num_iterations=2))
    histories = read_runs([str(settings.out), str(other.out)])
    found = compare(histories)
    defaults = LearningRates()
    assert found.differences == {
        "rates.matrix_lr": [0.5, 0.25],
        "rates.embedding_lr": [5.0, defaults.embedding_lr],
        "rates.unembedding_lr": [0.2, defaults.unembedding_lr],
        "save_every": [-1, 4],
    }
    write_comparison(histories, found, tmp_path / "new" / "page.html")
    html = (tmp_path / "new" / "page.html").read_text()
    for chart in charts_of(html):
        assert [(line["name"], line["color"]) for line in chart["series"]] == [
            (tmp_path.name, 0),
            ("other", 1),
        ]
    assert "<code>rates.matrix_lr</code></td><td>0.5</td><td>0.25</td>" in html


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [write_log(tmp_path / name, [session(0, 0)]) for name in ("a", "b")]
    moved = [folder.rename(folder.parent / f"under-{folder.name}") for folder in folders]
    same = [folder / "mine" for folder in moved]
    for folder in same:
        write_log(folder, [session(0, 0)])
    assert compare(read_runs(list(map(str, same)))).names == list(map(str, same))


def test_what_cannot_be_compared(two: list[RunHistory], tmp_path: Path) -> None:
    slow = str(two[0].folder)
    for runs, message in (
        ([slow], "Name two runs or more"),
        ([slow, str(tmp_path / "x" / ".." / "slow")], "is named twice"),
        ([slow, str(tmp_path / "nowhere")], "not the folder of a run"),
    ):
        with pytest.raises(UserError, match=message):
            read_runs(runs)


def test_runs_are_found_below_a_folder(two: list[RunHistory], tmp_path: Path) -> None:
    write_log(tmp_path / "slow" / "inner", [session(0, 0)])  # part of that run
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    write_log(deep, [session(0, 0)])
    (tmp_path / "loop").symlink_to(tmp_path)
    found = list(find_runs(tmp_path))
    assert found == [deep, tmp_path / "fast", tmp_path / "slow"]
    assert list(find_runs(deep)) == [deep]
    with pytest.raises(UserError, match="no such folder"):
        list(find_runs(tmp_path / "nowhere"))


def test_right_answers_of_runs_that_sample_some(tmp_path: Path) -> None:
    right = [{"event": "rollouts", "time": 1, "step": step, "solved": 0.5} for step in (1, 2)]
    logs = {"rl": [session(0, 0), *right, *steps(0, 1, 2)], "base": [session(0, 0), *steps(0, 1, 2)]}
    histories = [RunHistory(write_log(tmp_path / name, log)) for name, log in logs.items()]
    first, *_ = comparison_charts(histories, list(logs))
    assert first["title"] == "Right answers"
    assert [(line["name"], line["y"]) for line in first["series"]] == [("rl", [50, 50])]
