"""`cpplm tpu bench` on the CPU: the trainer's step, and no share of a peak that nobody has measured."""

from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.dataloader.settings import DataSettings
from cpplm.jax.bench import bench
from cpplm.jax.check_settings import BenchSettings
from cpplm.model.settings import ArchitectureSettings
from cpplm.train.settings import JaxSettings

SMALL: dict[str, Any] = {
    "depth": 2, "aspect_ratio": 32, "head_dim": 32, "max_seq_len": 64, "device_batch_size": 1,
    "architecture": ArchitectureSettings(preset="seed"), "steps": 2, "warm_up": 1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "chips", "tokens"),
    [
        ({"total_batch_size": 64, "jax": JaxSettings(mesh="data=1")}, 1, 64),
        (
            {
                "total_batch_size": 512,
                "data": DataSettings(document_mask=True),
                "jax": JaxSettings(mesh="data=2,fsdp=2"),
            },
            4,
            512,
        ),
    ],
)
def test_on_the_cpu(
    more: dict[str, Any], chips: int, tokens: int, tokenizer_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench(BenchSettings(**SMALL, **more, tokenizer=tokenizer_path))
    assert "these are figures of the CPU" in capsys.readouterr().err
    assert found.mfu is None
    assert "no share of a peak" in found.text()
    assert (found.device, found.devices, found.tokens_per_step) == ("cpu", chips, tokens)
    assert 0 < found.fastest_seconds <= found.step_seconds <= found.slowest_seconds
    assert found.tokens_per_second == pytest.approx(tokens / found.step_seconds)
    assert 0 < found.loss < 8  # a new model is near the logarithm of its vocabulary, 6.2 or so


def test_no_steps_are_no_measurement() -> None:
    with pytest.raises(UserError, match="at least one step"):
        BenchSettings(steps=0)
