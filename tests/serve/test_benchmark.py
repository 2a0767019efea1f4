"""The benchmark of the server runs, at a small size, and prints what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serve.py"


@pytest.mark.slow
def test_it_measures() -> None:
    sizes = "--clients 3 --seconds 3 --depth 1 --context 256 --tokens 16 --threads 1 --precision fp32"
    command = [sys.executable, str(BENCHMARK), *sizes.split()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["errors"] == 0
    assert found["requests"] >= 3
    assert found["tokens_per_second"] > 0
    assert 0 < found["gap_ms"]["median"] <= found["gap_ms"]["p99"] <= found["gap_ms"]["longest"]
    assert found["p99_over_median_per_client"]["runs"] == 3
    assert set(found["memory_mib"]) == {"start", "half time", "end"}
    assert found["cache_blocks_used_at_end"] == 0
