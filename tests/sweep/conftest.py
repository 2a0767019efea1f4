"""A sweep whose trials are no processes: a function writes their logs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.run_log import RunLog
from cpplm.sweep import worker as worker_module
from cpplm.sweep.recipe import SweepRecipe
from cpplm.sweep.study import begin_sweep
from cpplm.sweep.worker import Worker
from tests.train.report.test_log_reader import session

RECIPE = """
command = "train"
trials = 6
sampler = "random"
{keys}
[settings]
data_dir = ["{data}"]
tokenizer = "cpp-32k"
num_iterations = 4
[space]
{space}
"""
SPACE = "matrix_lr = { low = 0.01, high = 1.0, log = true }\ndepth = { choices = [2, 4] }"


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[..., Path]:
    def write(keys: str = "", space: str = SPACE, **changes: str) -> Path:
        text = RECIPE.format(keys=keys, space=space, data=tmp_path)
        for old, new in changes.items():
            text = text.replace(old, new)
        path = tmp_path / "recipe.toml"
        path.write_text(text)
        return path

    return write


class Trials:
    """In the place of `run_trial`: each trial measures `loss(values, step)` at steps 1 to 4, and ends.

    `statuses` are exit statuses by name of the folder; `folders` are those that were run, in order.
    """

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.statuses: dict[str, int] = {}
        self.before: Callable[[Path], None] = lambda folder: None
        self.loss = lambda values, step: float(values["matrix_lr"]) + 1 / step

    def __call__(self, arguments: list[str], folder: Path, watch: Callable[[list[Any]], bool]) -> int:
        self.folders.append(folder)
        self.before(folder)
        values = dict(word[2:].split("=", 1) for word in arguments if "=" in word)
        (folder / "output.txt").write_text("line\ncpplm: the loss is nan. Lower it.\n")
        with RunLog(folder / "log.jsonl") as log:
            log.write("session", **{k: v for k, v in session(0, 0).items() if k not in ("event", "time")})
            for step in (1, 2, 3, 4):
                progress = {"step": step, "progress": step / 4}
                log.write("validation", step=step, bits_per_byte=self.loss(values, step), loss=1.0, tokens=1)
                newest = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
                if watch([{"event": "step", **progress}, newest]):
                    return 130
        return self.statuses.get(folder.name, 0)


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    fake = Trials()
    monkeypatch.setattr(worker_module, "run_trial", fake)
    for name in ("write_run_page", "write_sweep_page"):  # each takes a while; test_page.py has them
        monkeypatch.setattr(worker_module, name, lambda *arguments: None)
    return fake


def make_worker(path: Path, folder: Path) -> Worker:
    recipe = SweepRecipe.load(path)
    return Worker(begin_sweep(path, recipe, folder), recipe, folder)
