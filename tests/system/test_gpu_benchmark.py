"""`benchmarks/gpu.py --dry_run` takes a training step on a CPU, so that its rows run where there is a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_step_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/gpu.py", "--work", str(tmp_path), "--dry_run", "--only"]
    done = subprocess.run(
        [*command, "step, depth 1, loss native, not compiled", "step, depth 1, auto"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(": measured") == 2
