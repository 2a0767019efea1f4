"""The benchmark of judging runs as a user would, on a tenth of the problems."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "evaluate.py"


@pytest.mark.slow
def test_the_benchmark_prints_what_it_promises() -> None:
    command = [sys.executable, BENCHMARK, "--quick", "--workers", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    judging = figures["judging"]
    assert judging["passed"] == judging["judged"] >= 15
    assert set(judging["seconds"]) == {"again", "first time", "plain"}
    assert all(0 < spread["median"] < 200 for spread in judging["seconds"].values())
    measured = [backend for backend in figures["sandbox"].values() if "added_ms" in backend]
    assert measured
    for added in (backend["added_ms"] for backend in measured):  # one /bin/true alone may be the slow one
        assert added["low"] <= added["median"] <= added["high"]
        assert added["median"] > 0
