"""Compiling goes on where an earlier run was killed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from cpplm.train.compile import code_tag, remove_damaged_libraries

PROGRAM = """
import torch
import torch._dynamo.utils
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.train.compile import compiled_losses

sizes = dict(num_layers=1, model_dim=32, num_heads=2, num_kv_heads=2, head_dim=16)
model = Transformer(ModelConfig(vocab_size=320, **sizes))
model.init_weights()
loss = compiled_losses(model, [(2, 8)])
assert loss is not model.training_losses
assert all(parameter.grad is None for parameter in model.parameters())
ids, targets = torch.ones(2, 8, dtype=torch.int64), torch.full((2, 8), 2)
graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
for weight in (0.3, 0.1):
    assert torch.isfinite(loss(ids, targets, torch.tensor(weight), None, torch.ones(1)).total)
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs  # compiled before the first step
counters = torch._dynamo.utils.counters["aot_autograd"]
print(*(counters[f"autograd_cache_{name}"] for name in ("bypass", "miss", "hit")))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="nothing is compiled without it")
def test_libraries_that_a_killed_compiler_left_are_made_again(tmp_path: Path) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
        )

    first = run()
    assert first.returncode == 0, first.stderr
    libraries = sorted(path for path in tmp_path.rglob("*.main.so"))
    assert libraries
    for number, library in enumerate(libraries):
        library.write_bytes(library.read_bytes()[: 2_000 * (number % 2)])
    second = run()
    assert second.returncode == 0, second.stderr
    assert "was cut short" in second.stderr
    assert all(library.stat().st_size > 2_000 for library in libraries)
    bypassed, missed, _ = map(int, first.stdout.split())
    assert (bypassed, missed > 0) == (0, True)
    third = run()
    assert third.returncode == 0, third.stderr
    bypassed, missed, hit = map(int, third.stdout.split())
    assert (bypassed, missed, hit > 0) == (0, 0, True)  # nothing is traced again


def test_a_library_that_is_just_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    library = tmp_path / "ab" / "cabc.main.so"
    library.parent.mkdir()
    library.touch()
    with FileLock(tmp_path / "locks" / "cabc.lock"):
        remove_damaged_libraries()
        assert library.exists()
    remove_damaged_libraries()
    assert not library.exists()


def test_the_cache_is_told_which_code_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    code = tmp_path / "kernels" / "loss.py"
    code.write_text("x = 1\n")
    tags = [code_tag(tmp_path), code_tag(tmp_path)]
    code.write_text("x = 2\n")
    tags.append(code_tag(tmp_path))
    code.rename(tmp_path / "loss.py")
    tags.append(code_tag(tmp_path))
    assert tags[0] == tags[1]
    assert len(set(tags)) == 3
    assert code_tag() != code_tag(tmp_path)
