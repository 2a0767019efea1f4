"""A real sweep: two workers at once, one of them killed in the middle of a trial."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from cpplm.core.run_log import read_run_log
from cpplm.train.settings import TrainSettings
from tests.commands import reported, start_cpplm
from tests.train.records import records

RECIPE = """
command = "train"
trials = 3
sampler = "random"
pruner = "none"
stale_seconds = 4
[settings]
data_dir = ["{corpus}"]
tokenizer = "{tokenizer}"
depth = 1
head_dim = 16
max_seq_len = 64
device_batch_size = 2
total_batch_size = 128
num_iterations = 100
engram_table_size = 100
eval_every = 40
eval_tokens = 500
sample_every = -1
save_every = 10
no_compile = true
precision = "fp32"
[space]
matrix_lr = {{ low = 0.05, high = 0.5, log = true }}
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    return start_cpplm("sweep", *arguments)


def kill_in_a_trial(worker: subprocess.Popen[str], folder: Path) -> int:
    """Kill a worker and its trial once that has saved; the trial's number."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for child in psutil.Process(worker.pid).children():
            run = Path(child.cmdline()[-1].removeprefix("--out="))
            saved = list(run.glob("checkpoints/step_*/manifest.json"))
            if saved and not (run / "checkpoints" / "step_000090").exists():
                worker.send_signal(signal.SIGSTOP)  # or its trial would stop by itself, and say so
                child.kill()
                worker.kill()
                worker.communicate()
                return int(run.name)
        time.sleep(0.01)
    raise AssertionError("no trial has saved")


@pytest.mark.slow
def test_two_workers_of_which_one_is_killed(
    small_run: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as `start_cpplm`: sums have the same order then
    recipe, out = tmp_path / "recipe.toml", tmp_path / "out"
    recipe.write_text(RECIPE.format(corpus=small_run.data_dir[0], tokenizer=small_run.tokenizer))
    first = start("--recipe", recipe, "--out", out)
    while not (out / "sweep.toml").exists():
        assert first.poll() is None
        time.sleep(0.05)
    second = start("worker", out)
    killed = kill_in_a_trial(first, out)
    said = second.communicate(timeout=300)[1]
    assert second.returncode == 0, said
    _, figures = reported("sweep", "show", out)
    assert figures["counts"] == {"finished": 3}

    attempts = {number: len(list((out / "trials" / str(number) / "lease").iterdir())) for number in range(3)}
    assert attempts == {number: 2 if number == killed else 1 for number in range(3)}
    for trial in figures["trials"]:
        log = read_run_log(Path(trial["folder"]) / "log.jsonl")
        assert [record["reason"] for record in log if record["event"] == "end"] == ["finished"]
        assert [record["step"] for record in log if record["event"] == "step"] == list(range(1, 101))
        sessions = [record["step"] for record in log if record["event"] == "session"]
        assert sessions[0] == 0
        assert len(sessions) == attempts[trial["number"]]
        assert all(step >= 10 for step in sessions[1:])  # from a checkpoint, not from the start

    # The trial that was killed, left alone: the same figures.
    resumed = figures["trials"][killed]
    space = f"[space]\nmatrix_lr = {{ choices = [{resumed['params']['matrix_lr']!r}] }}\n"
    text = recipe.read_text().replace("trials = 3", "trials = 1").partition("[space]")[0]
    recipe.write_text(text + space)
    alone = reported("sweep", "--recipe", recipe, "--out", tmp_path / "alone")[1]["trials"][0]
    assert alone["value"] == resumed["value"]
    figures_of = [
        [(record["step"], record["bits_per_byte"]) for record in records(Path(each["folder"]), "validation")]
        for each in (alone, resumed)
    ]
    assert figures_of[0] == figures_of[1]
    assert len(figures_of[0]) == 4


@pytest.mark.slow
def test_a_trial_stops_with_its_worker(small_run: TrainSettings, tmp_path: Path) -> None:
    """Its standard input ends with the worker, also by kill -9; it saves, and holds the folder no longer."""
    recipe, out = tmp_path / "recipe.toml", tmp_path / "out"
    text = RECIPE.format(corpus=small_run.data_dir[0], tokenizer=small_run.tokenizer)
    recipe.write_text(text.replace("num_iterations = 100", "num_iterations = 100000"))
    worker = start("--recipe", recipe, "--out", out)
    log = out / "trials" / "0" / "log.jsonl"
    while not (log.exists() and '"event": "step"' in log.read_text()):
        assert worker.poll() is None
        time.sleep(0.05)
    child = psutil.Process(worker.pid).children()[0]
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate()
    child.wait(60)
    assert read_run_log(log)[-1]["reason"] == "stopped"
