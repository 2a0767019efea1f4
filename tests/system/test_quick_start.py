"""The README's commands, run as a user would: in order, killed on the way, run again."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cpplm.core.run_log import read_run_log
from cpplm.core.settings import from_command_line
from cpplm.train.settings import TrainSettings
from tests.commands import cpplm

ROOT = Path(__file__).parents[2]
CPPLM = [sys.executable, "-m", "cpplm.cli.main"]


def readme_commands() -> list[str]:
    """The commands behind `make demo`, as the README prints them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## The commands behind it\s+.*?```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return block.group(1).strip().splitlines()


def test_make_demo_runs_the_commands_of_the_readme() -> None:
    shown = subprocess.run(
        ["make", "--dry-run", "--assume-old", ".venv/.installed", "demo"],
        cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "MAKEFLAGS": ""},
    ).stdout  # fmt: skip
    made = [line.replace(".venv/bin/cpplm", "cpplm") for line in shown.splitlines() if "cpplm" in line]
    *commands, last = made
    assert [line.removesuffix(" --save") for line in commands] == readme_commands()
    assert last.startswith("echo ")  # how to go on
    assert "cpplm serve runs/demo/run" in last


def test_the_demos_model_learns_to_fill_in() -> None:
    """As docs/serving.md and editors ask of it."""
    flags = ["--data_dir", "corpus", "--tokenizer", "tokenizer.json", "--out", "run"]
    settings = from_command_line(
        TrainSettings, flags, program="cpplm train", description="", recipe=ROOT / "recipes" / "demo.toml"
    )
    assert settings.fim.enabled


def run(arguments: list[str], *, kill_after: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run one cpplm command; with `kill_after`, SIGKILL it and its children after that many seconds."""
    process = subprocess.Popen(
        [*CPPLM, *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.slow
def test_quick_start_killed_once_ends_with_the_page(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    commands = []
    for line in readme_commands():
        here = line.replace("runs/demo", str(demo)).replace("--max_minutes 3", "--num_iterations 40")
        commands.append(shlex.split(here.removeprefix("cpplm ")))
    for command in commands:
        if command[0] == "generate":
            command += ["--save"]
        if command[0] == "evaluate":
            command += ["--eval_bytes", "60000", "--max_new_tokens", "48"]
        if command[0] == "train":
            command += ["--save_minutes", "0.02", "--eval_every", "1000"]
            run(command, kill_after=random.Random(2).uniform(8.0, 20.0))
        done = run(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    log = read_run_log(demo / "run" / "log.jsonl")
    steps = [record["step"] for record in log if record["event"] == "step"]
    assert steps == list(range(1, len(steps) + 1))
    bits = [record["bits_per_byte"] for record in log if record["event"] == "validation"]
    assert bits[-1] < bits[0] - 0.2
    page = (demo / "run" / "page.html").read_text(encoding="utf-8")
    assert "What it writes" in page
    assert "C++ problems" in page
    assert page.count("<figure data-chart") >= 6

    before = {path: path.stat().st_mtime_ns for path in demo.rglob("*") if path.is_file()}
    for command in commands[:4]:  # all done: nothing is made anew
        assert run(command).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in demo.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_json_is_the_last_line(tmp_path: Path, corpus: Path, tokenizer_path: Path) -> None:
    out = str(tmp_path / "run")
    train = (
        f"train --data_dir {corpus} --tokenizer {tokenizer_path} --out {out} --depth 1 --head_dim 16 "
        "--max_seq_len 64 --device_batch_size 2 --total_batch_size 128 --num_iterations 3 --no_compile "
        "--engram_table_size 100 --eval_tokens 500"
    ).split()
    figures = {}
    for command in (
        train,
        ["evaluate", "bpb", "--run", out, "--data_dir", str(corpus)],
        ["generate", "--run", out, "--prompt", "int x", "--max_new_tokens", "4"],
        ["runs", "page", out],
    ):
        done = cpplm(*command, "--json")
        assert done.returncode == 0, done.stderr
        figures[command[0]] = json.loads(done.stdout.splitlines()[-1])
    assert figures["train"]["step"] == 3
    assert figures["evaluate"]["bpb"]["bits_per_byte"] > 0
    assert len(figures["generate"]["completions"]) == 1
    assert Path(figures["runs"]["page"]).exists()
