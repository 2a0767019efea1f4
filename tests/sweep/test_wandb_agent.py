"""The agent of Weights & Biases, faked: our function gets its settings, and reports."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.sweep import wandb_agent
from tests.commands import assert_one_line_error, cpplm
from tests.sweep.conftest import Trials


class FakeWandb:
    """Calls the function once for each of `configs`, as the agent does; what a run logs is in `rows`."""

    def __init__(self, *configs: dict[str, Any]) -> None:
        self.configs = list(configs)
        self.rows: list[dict[str, float]] = []
        self.errors = SimpleNamespace(Error=type("Error", (Exception,), {}))
        self.raised: list[str] = []

    def init(self, dir: str) -> Any:
        number = len(self.configs)
        return SimpleNamespace(
            config=self.configs.pop(0),
            id=f"run{number}",
            log=self.rows.append,
            define_metric=lambda *names, **how: None,
        )

    def agent(self, sweep_id: str, function: Callable[[], None], count: int | None) -> None:
        assert sweep_id == "project/abc"
        while self.configs and count != 0:
            count = count and count - 1
            try:
                function()
            except UserError as error:
                self.raised.append(str(error))


@pytest.fixture
def run(
    trials: Trials, write_recipe: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Run the command with a fake; what it has printed."""
    monkeypatch.setattr(wandb_agent, "run_trial", trials)
    monkeypatch.setattr(wandb_agent, "write_run_page", lambda folder: None)

    def call(fake: FakeWandb, *more: str, **changes: str) -> Any:
        monkeypatch.setattr(wandb_agent, "import_tracker", lambda *names: fake)
        recipe = write_recipe(space="", **changes)
        return cpplm(
            "sweep", "wandb-agent", "project/abc", "--recipe", recipe, "--out", tmp_path / "out", *more
        )

    return call


def test_trials_run_with_its_settings_and_log_there(run: Any, trials: Trials) -> None:
    fake = FakeWandb({"matrix_lr": 0.5}, {"matrix_lr": 0.25}, {"matrix_lr": 0.75})
    assert run(fake, "--count", "2").stdout.startswith("2 trials in")
    assert [folder.name for folder in trials.folders] == ["run3", "run2"]
    name = "validation/bits_per_byte"
    assert fake.rows[:2] == [{name: 1.5, "step": 1}, {name: 1.0, "step": 2}]
    assert fake.rows[-1] == {name: 0.5, "step": 4}


def test_what_fails_is_an_error_there(run: Any, trials: Trials) -> None:
    trials.statuses = {"run2": 2}
    fake = FakeWandb({"matrx_lr": 0.5}, {"matrix_lr": 0.25}, {"matrix_lr": 0.75})
    assert run(fake).stdout.startswith("1 trial in")
    assert "Did you mean 'matrix_lr'" in fake.raised[0]
    assert fake.raised[1:] == ["the loss is nan. Lower it."]


def test_refusals_are_one_line(run: Any) -> None:
    fake = FakeWandb()

    def agent(*arguments: Any, **named: Any) -> None:
        raise fake.errors.Error("no\nkey")

    fake.agent = agent  # type: ignore[method-assign]
    assert_one_line_error(run(fake), "cannot be used: no key", "wandb login")
    changes = {"num_iterations": 'wandb_project = "x"\nnum_iterations'}
    assert_one_line_error(run(fake, **changes), "wandb_project")
