"""Small tasks, and a model that answers some of them rightly."""

from pathlib import Path

import pytest

from cpplm.post_training.rl.settings import RlSettings
from cpplm.post_training.settings import SftSettings
from cpplm.post_training.sft import fine_tune
from cpplm.tasks.build import build_tasks
from cpplm.tasks.kind import BODY_CHEATS
from cpplm.tasks.settings import TaskBuildSettings


@pytest.fixture(scope="package")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tasks") / "tasks"
    build_tasks(TaskBuildSettings(out=out, kinds=("tiny",), num_train=16, num_val=8))
    return out


@pytest.fixture(scope="package")
def chat_model(base: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sft") / "run"
    settings = SftSettings(
        data=(tasks,), init_from=str(base), out=out, num_iterations=40, max_seq_len=160, device_batch_size=8,
        total_batch_size=1280, eval_every=-1, no_compile=True, lr_scale=1.0, device_type="cpu",
        precision="fp32",
    )  # fmt: skip
    fine_tune(settings)
    return out


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attempt at a server right after the first."""
    monkeypatch.setattr("cpplm.evaluate.models.server.FIRST_WAIT", 0.001)


@pytest.fixture
def few_cheats(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit with two of the cheats that are compiled and run; tests/tasks/test_build.py tries them all.

    One of the others runs until its processor time is over.
    """
    for name in sorted(BODY_CHEATS.keys() - {"empty body", "return one"}):
        monkeypatch.delitem(BODY_CHEATS, name)


@pytest.fixture
def settings(tasks: Path, chat_model: Path, tmp_path: Path) -> RlSettings:
    """A run of four steps, which takes some seconds."""
    return RlSettings(
        tasks=tasks, init_from=str(chat_model), out=tmp_path / "run", num_prompts=2, num_samples=6,
        num_iterations=4, device_batch_size=4, audit_items=0, device_type="cpu",
        precision="fp32",
    )  # fmt: skip
