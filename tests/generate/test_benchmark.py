"""The benchmark of decoding runs at a small size and prints what it promises."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from tests.conftest import SMALL_TABLES

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "decode.py"


@pytest.mark.slow
def test_decode() -> None:
    sizes = "--depth 1 --batches 1 3 --prompt 8 --tokens 32 --threads 1 --turns 1"
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *sizes.split()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["tokens_per_second"]) == 5
    assert all(set(of) == {"1", "3"} for of in found["tokens_per_second"].values())
    assert set(found["times_as_fast"]["cpplm / exported"]) == {"1", "3"}
    for peer, close in (("exported", 0.001), ("Llama of transformers", 0.02)):
        ours, theirs = found["facts"]["cpplm"], found["facts"][peer]
        assert ours["parameters"] == pytest.approx(theirs["parameters"], rel=close)
        assert ours["weight_bytes"] == pytest.approx(theirs["weight_bytes"], rel=close)
    assert found["copy_bytes_per_second"]["median"] > 0
    assert set(found["share_of_bandwidth"]) == {"cpplm", "cpplm, default preset"}


@pytest.mark.slow
def test_speculation(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    """On a model of two steps, behind validation documents of its corpus."""
    pretrain(
        TrainSettings(
            data_dir=(str(corpus),), tokenizer=tokenizer_path, out=tmp_path, depth=1, head_dim=16,
            max_seq_len=64, device_batch_size=2, total_batch_size=128, num_iterations=2,
            architecture=dataclasses.replace(SMALL_TABLES, mtp=True), no_compile=True, precision="fp32",
        )
    )  # fmt: skip
    sizes = "--drafts lookup:3 heads:2 --prompts 3 --prompt_tokens 24 --tokens 30 --threads 1 --turns 2"
    benchmark = BENCHMARK.parent / "speculation.py"
    done = subprocess.run(
        [sys.executable, str(benchmark), "--run", str(tmp_path), "--data", str(corpus), *sizes.split()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])["drafts"]
    assert set(found) == {"off", "lookup:3", "heads:2"}
    assert found["off"]["tokens_per_step"] == found["off"]["times_as_fast"]["median"] == 1
    for kind in ("lookup:3", "heads:2"):
        assert 1 <= found[kind]["tokens_per_step"] <= 4
        assert found[kind]["same_texts"] == 1  # in float32
