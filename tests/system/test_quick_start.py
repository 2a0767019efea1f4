"""The README's commands, run as a user would: in order, and run again."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from cpplm.core.settings import from_command_line
from cpplm.train.settings import TrainSettings
from tests.commands import cpplm_process
from tests.train.records import records

ROOT = Path(__file__).parents[2]


def readme_commands() -> list[str]:
    """The commands behind `make demo`, as the README prints them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## The commands behind it\s+.*?```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return block.group(1).strip().splitlines()


def test_make_demo_runs_the_commands_of_the_readme() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--assume-old", ".venv/.installed", "demo"],
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


@pytest.mark.slow
def test_quick_start_ends_with_the_page(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    commands = []
    for line in readme_commands():
        here = line.replace("runs/demo", str(demo)).replace("--max_minutes 3", "--num_iterations 12")
        commands.append(shlex.split(here.removeprefix("cpplm ")))
    for command in commands:
        if command[0] == "generate":
            command += ["--save"]
        if command[0] == "runs":
            command += ["--json"]
        if command[0] == "evaluate":
            command += ["--eval_bytes", "60000", "--max_new_tokens", "48"]
        if command[0] == "train":
            command += ["--eval_every", "1000", "--eval_tokens", "16384"]
        done = cpplm_process(*command, cwd=ROOT, timeout=1200)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    steps = [record["step"] for record in records(demo / "run", "step")]
    assert steps == list(range(1, len(steps) + 1))
    bits = [record["bits_per_byte"] for record in records(demo / "run", "validation")]
    assert bits[-1] < bits[0] - 0.2
    page = Path(json.loads(done.stdout.splitlines()[-1])["page"]).read_text(encoding="utf-8")
    assert "What it writes" in page
    assert "C++ problems" in page
    assert page.count('"title": ') >= 6

    before = {path: path.stat().st_mtime_ns for path in demo.rglob("*") if path.is_file()}
    for command in commands[:4]:  # all done: nothing is made anew
        assert cpplm_process(*command, cwd=ROOT).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in demo.rglob("*") if path.is_file()} == before
