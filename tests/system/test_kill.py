"""A run that is killed again and again ends with the very weights of one that was left alone.

Everything that could go wrong then is on: fill-in-the-middle, worker processes, gradient accumulation, n-gram
tables, background saves, uploads. What is there before any single write is
`tests/train/checkpoint/test_save.py`. `KILLS=100 pytest tests/system/test_kill.py` kills more often.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cpplm.core.run_log import read_run_log
from cpplm.train.checkpoint.format import open_run
from cpplm.train.checkpoint.weights import load_tensors
from tests.commands import start_cpplm
from tests.train.records import records

KILLS = int(os.environ.get("KILLS", "3"))
STEPS = 60 * KILLS  # so many that the kills are over before the run is
SETTINGS = ["--depth", "2", "--aspect_ratio", "32", "--head_dim", "16", "--max_seq_len", "64",
            "--engram", "memory", "--engram_table_size", "200", "--no_compile",
            "--fim_rate", "0.5", "--syntax_fim_rate", "0",
            "--data_workers", "2", "--device_batch_size", "4", "--total_batch_size", "512",
            "--num_iterations", str(STEPS), "--eval_every", "-1", "--sample_every", "-1",
            "--save_every", "7", "--save_minutes", "-1"]  # fmt: skip


def start(corpus: Path, tokenizer: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    return start_cpplm("train", corpus, "--tokenizer", tokenizer, "--out", out, *SETTINGS, *more)


def finish(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=1200)
    assert process.returncode == 0, said


def events(out: Path) -> list[str]:
    return [record["event"] for record in read_run_log(out / "log.jsonl")]


def kill_at_random(
    process: subprocess.Popen[str],
    out: Path,
    chance: random.Random,
    after: Sequence[str] = ("session", "step", "step", "step"),
) -> bool:
    """Kill it a random while after one of these events of its session; False if it was at its end."""
    begun = events(out).count("session")
    awaited = chance.choice(after)
    while process.poll() is None:
        now = events(out)
        if now.count("session") > begun and awaited in now[-1 - now[::-1].index("session") :]:
            break
        time.sleep(0.02)
    time.sleep(chance.uniform(0.0, 0.5))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_runs_end_with_the_same_weights(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    finish(start(corpus, tokenizer_path, alone))
    upload = ("--upload_dir", str(tmp_path / "uploads"))
    chance = random.Random(0)
    steps_reached = []
    for _ in range(KILLS):
        assert kill_at_random(start(corpus, tokenizer_path, killed, *upload), killed, chance)
        steps_reached.append(max((r.get("step", 0) for r in read_run_log(killed / "log.jsonl")), default=0))
    finish(start(corpus, tokenizer_path, killed, *upload))
    assert len(set(steps_reached)) > KILLS / 3, "the kills hit a run that does not get anywhere"
    assert_same(alone, killed)
    assert_same(alone, tmp_path / "uploads")
    steps = records(killed, "step")
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert [record["loss"] for record in steps] == [record["loss"] for record in records(alone, "step")]


def assert_same(one: Path, other: Path) -> None:
    for file in ("model.safetensors", "optimizer.safetensors"):
        expected, found = load_tensors(open_run(one), file), load_tensors(open_run(other), file)
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            assert torch.equal(tensor, found[name]), f"{file}: {name}"
