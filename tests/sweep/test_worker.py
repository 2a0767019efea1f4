"""Workers: who works on which trial, and what becomes of trials that fail, lag or lose their worker."""

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from cpplm.core import lease
from cpplm.core.errors import UserError
from cpplm.core.heartbeat import Heartbeat
from cpplm.core.storage import Storage
from cpplm.sweep.recipe import SweepRecipe
from cpplm.sweep.study import begin_sweep, open_study
from tests.commands import assert_one_line_error, cpplm, reported
from tests.sweep.conftest import Trials, make_worker

WriteRecipe = Callable[..., Path]


def test_a_sweep_from_begin_to_end(trials: Trials, write_recipe: WriteRecipe, tmp_path: Path) -> None:
    trials.statuses = {"1": 2, "2": -9}
    text, figures = reported("sweep", "--recipe", write_recipe("pruner = 'none'"), "--out", tmp_path / "out")
    assert [folder.name for folder in trials.folders] == ["0", "1", "2", "3", "4", "5"]
    assert figures["counts"] == {"finished": 4, "failed": 2}
    assert figures["trials"][1]["reason"] == "the loss is nan. Lower it."
    assert figures["trials"][2]["reason"].startswith("killed by SIGKILL")
    values = {trial["number"]: trial["value"] for trial in figures["trials"] if trial["value"]}
    assert figures["best"] == min(values, key=values.__getitem__)
    assert values[0] == pytest.approx(figures["trials"][0]["params"]["matrix_lr"] + 0.25)
    ranked = sorted(values, key=values.__getitem__)
    assert [line.split()[0] for line in text.splitlines()[1:5]] == list(map(str, ranked))
    assert "4 finished, 2 failed of 6 trials" in text
    again, _ = reported("sweep", "worker", tmp_path / "out")  # nothing is left
    assert again == text
    assert len(trials.folders) == 6
    shown, _ = reported("sweep", "show", tmp_path / "out" / "journal.log")
    assert text.startswith(shown)


def test_values_depend_on_the_seed_and_the_number_alone(
    trials: Trials, write_recipe: WriteRecipe, tmp_path: Path
) -> None:
    """Whatever the workers: two that draw alike would do everything twice."""
    path = write_recipe("pruner = 'none'")
    workers = [make_worker(path, tmp_path / "out") for _ in range(2)]
    for number in range(6):
        worker = workers[number % 2]
        worker._work(*worker._new())
    assert workers[0]._new() is None
    alone = make_worker(path, tmp_path / "alone")
    alone.run()
    params = [[trial.params for trial in each._study.get_trials()] for each in (workers[0], alone)]
    assert params[0] == params[1]
    rates = [trial["matrix_lr"] for trial in params[0]]
    assert len(set(rates)) == 6
    assert all(0.01 <= rate <= 1.0 for rate in rates)


def test_a_trial_behind_the_median_is_pruned(
    trials: Trials, write_recipe: WriteRecipe, tmp_path: Path
) -> None:
    trials.loss = lambda values, step: 9.0 if trials.folders[-1].name == "5" else 1 / step
    worker = make_worker(write_recipe("prune_after_step = 1"), tmp_path / "out")
    worker.run()
    last = worker._study.get_trials()[5]
    assert (last.state, last.value, list(last.intermediate_values)) == (TrialState.PRUNED, 9.0, [2])


def test_no_trial_is_pruned_at_its_end(trials: Trials, write_recipe: WriteRecipe, tmp_path: Path) -> None:
    """Its last measurement is its result; it would be lost."""
    trials.loss = lambda values, step: 9.0 if trials.folders[-1].name == "5" and step == 4 else 1 / step
    worker = make_worker(write_recipe(), tmp_path / "out")
    worker.run()
    last = worker._study.get_trials()[5]
    assert (last.state, last.value) == (TrialState.COMPLETE, 9.0)


def test_a_lost_trial_is_taken_over_once_and_a_living_one_never(
    trials: Trials, write_recipe: WriteRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe("pruner = 'none'\nstale_seconds = 30")
    dead, first, second = (make_worker(path, tmp_path / "out") for _ in range(3))
    lost, _ = dead._new()
    folder = tmp_path / "out" / "trials" / "0"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for number in range(4):
        Heartbeat(1, "training", time=number).write(Storage(folder))
        assert first._take_over() is None
        assert second._take_over() is None
        now += 29
    now += 2
    taken = first._take_over()
    assert taken
    assert (taken[0].number, taken[1].attempt) == (lost.number, 2)
    assert second._take_over() is None
    first._work(*taken)
    assert first._study.get_trials()[0].state == TrialState.COMPLETE


def test_a_trial_whose_worker_died_before_it_had_a_folder_is_not_lost(
    trials: Trials, write_recipe: WriteRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe("pruner = 'none'")
    dead, living = (make_worker(path, tmp_path / "out") for _ in range(2))
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(dead, "_claim", lambda *arguments: sys.exit())
        dead._new()
    assert not (tmp_path / "out" / "trials").exists()
    assert living._take_over() is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    living.run()
    states = [trial.state for trial in living._study.get_trials()]
    assert states == [TrialState.COMPLETE] * 6


def test_a_worker_that_wakes_up_leaves_the_trial_to_the_other_one(
    trials: Trials, write_recipe: WriteRecipe, tmp_path: Path
) -> None:
    worker = make_worker(write_recipe(), tmp_path / "out")
    trial, claimed = worker._new()
    trials.before = lambda folder: lease.claim(Storage(folder), "another", 0.0) and None
    worker._work(trial, claimed)
    assert worker._study.get_trials()[0].state == TrialState.RUNNING


def test_a_stopped_worker_leaves_its_trial_to_anybody_at_once(
    trials: Trials, write_recipe: WriteRecipe, tmp_path: Path
) -> None:
    def stop(folder: Path) -> None:
        if len(trials.folders) == 1:
            raise KeyboardInterrupt

    trials.before = stop
    path = write_recipe("pruner = 'none'")
    with pytest.raises(KeyboardInterrupt):
        make_worker(path, tmp_path / "out").run()
    make_worker(path, tmp_path / "out").run()
    assert [folder.name for folder in trials.folders] == ["0", "0", "1", "2", "3", "4", "5"]


def test_a_grid_by_two_workers(trials: Trials, write_recipe: WriteRecipe, tmp_path: Path) -> None:
    space = "matrix_lr = { choices = [0.1, 0.2, 0.3] }\ndepth = { choices = [2, 4] }"
    path = write_recipe("pruner = 'none'", space, **{'"random"': '"grid"', "trials = 6": ""})
    workers = [make_worker(path, tmp_path / "out") for _ in range(2)]
    workers[0]._work(*workers[0]._new())
    workers[1].run()
    params = [tuple(trial.params.values()) for trial in workers[0]._study.get_trials()]
    assert params == [(rate, depth) for rate in (0.1, 0.2, 0.3) for depth in (2, 4)]


# ---- storage ----------------------------------------------------------------------------------------------


def test_another_recipe_is_refused(trials: Trials, write_recipe: WriteRecipe, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_worker(write_recipe(), out)
    before = {path: path.read_bytes() for path in out.iterdir()}
    path = write_recipe(space="matrix_lr = { low = 0.01, high = 2.0, log = true }")
    assert_one_line_error(cpplm("sweep", "--recipe", path, "--out", out), "space.depth")
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    more = write_recipe(**{"trials = 6": "trials = 8"})
    assert make_worker(more, out)._recipe.num_trials == 8


def test_storage_that_is_gone_or_damaged(trials: Trials, write_recipe: WriteRecipe, tmp_path: Path) -> None:
    out = tmp_path / "out"
    worker = make_worker(write_recipe(), out)
    worker._work(*worker._new())
    journal = (out / "journal.log").read_text()
    (out / "journal.log").unlink()
    for arguments in (["worker", out], ["show", out], ["--recipe", out / "sweep.toml", "--out", out]):
        assert_one_line_error(cpplm("sweep", *arguments), "journal", "is gone")
    with pytest.raises(UserError, match="is gone"):
        worker.run()
    assert not (out / "journal.log").exists()
    (out / "journal.log").write_text(journal.replace("{", "", 1))
    assert_one_line_error(cpplm("sweep", "show", out), "journal.log", "is damaged")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_storage_that_cannot_be_written(trials: Trials, write_recipe: WriteRecipe, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_worker(write_recipe(), out)
    out.chmod(0o500)
    try:
        assert_one_line_error(cpplm("sweep", "worker", out), "cannot be used")
    finally:
        out.chmod(0o700)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        pytest.param("sqlite:////nowhere/at/all.db", "unable to open database file", marks=pytest.mark.slow),
        ("postgresql+nodriver://me:secret@127.0.0.1/x", "nodriver"),
        ("no url", "Could not parse"),
    ],
)
def test_a_database_that_cannot_be_used(
    url: str, part: str, write_recipe: WriteRecipe, tmp_path: Path
) -> None:
    path = write_recipe(f'storage = "{url}"')
    result = cpplm("sweep", "--recipe", path, "--out", tmp_path / "out")
    assert_one_line_error(result, "the recipe's database", part)
    assert "secret" not in result.stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow  # its tables are made by migrations
def test_a_locked_database(trials: Trials, write_recipe: WriteRecipe, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db?timeout=0.1"
    path = write_recipe(f'storage = "{url}"')
    make_worker(path, tmp_path / "out")
    connection = sqlite3.connect(tmp_path / "studies.db")
    connection.execute("BEGIN EXCLUSIVE")
    assert_one_line_error(cpplm("sweep", "worker", tmp_path / "out"), "database is locked")
    connection.close()


@pytest.mark.slow
def test_machines_with_a_database_and_folders_of_their_own(
    trials: Trials, write_recipe: WriteRecipe, tmp_path: Path
) -> None:
    """What another machine works on is not here: neither waited for nor begun again."""
    path = write_recipe(f'storage = "sqlite:///{tmp_path}/studies.db"\nname = "one"\npruner = "none"')
    there = make_worker(path, tmp_path / "there")
    there._new()
    here = make_worker(path, tmp_path / "here")
    here.run()
    assert [folder.name for folder in trials.folders] == ["1", "2", "3", "4", "5"]
    states = [trial.state for trial in here._study.get_trials()]
    assert states == [TrialState.RUNNING, *[TrialState.COMPLETE] * 5]
    other = write_recipe(f'storage = "sqlite:///{tmp_path}/studies.db"\nname = "two"')
    begin_sweep(other, SweepRecipe.load(other), tmp_path / "other")
    assert len(optuna.get_all_study_names(f"sqlite:///{tmp_path}/studies.db")) == 2


def test_folders_of_something_else_are_refused(write_recipe: WriteRecipe, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").touch()
    path = write_recipe()
    assert_one_line_error(cpplm("sweep", "--recipe", path, "--out", tmp_path / "run"), "something else")
    assert_one_line_error(cpplm("sweep", "worker", tmp_path / "run"), "not the folder of a sweep")
    recipe = SweepRecipe.load(path)
    with pytest.raises(UserError, match="is gone"):
        open_study(recipe, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
