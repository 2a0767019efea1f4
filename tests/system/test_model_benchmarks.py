"""The benchmarks of the model run, at small sizes, and print what they promise."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, arguments: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / name), *arguments.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=check)


def figures(name: str, arguments: str) -> dict[str, Any]:
    return json.loads(run(name, arguments).stdout.splitlines()[-1])


@pytest.mark.slow
def test_training_step() -> None:
    sizes = "--depth 1 --seq_len 32 --batch_size 2 --vocab_size 512 --threads 1 --turns 1 --steps 1"
    found = figures("train_step.py", sizes)
    rates = found["tokens_per_second"]
    assert len(rates) == 5
    assert all(rate["median"] > 0 for rate in rates.values())
    ours, peer = found["parameters"]["cpplm"], found["parameters"]["Llama of transformers"]
    assert ours == pytest.approx(peer, rel=0.02)
    assert set(found["times_as_fast_as"]) == set(rates) - {"cpplm"}


@pytest.mark.slow
def test_sparse_attention() -> None:
    found = figures("sparse_attention.py", "--seq_len 2048 --top_k 256 --threads 1 --turns 1")
    assert found["plain"]["mebibytes"]["median"] > 4 * 2048**2 * 4 / 2**20
    assert all(found[name]["seconds"]["median"] > 0 for name in ("plain", "fused", "sparse"))


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="runs for minutes where there is a GPU")
def test_the_gpu_benchmark_says_that_there_is_none() -> None:
    result = run("gpu_train.py", "", check=False)
    assert result.returncode == 1
    assert "needs a CUDA GPU" in result.stderr.splitlines()[-1]
