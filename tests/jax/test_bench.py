"""`cpplm tpu bench` on the CPU: the trainer's step, and no share of a peak that nobody has measured."""

import pytest

from cpplm.core.errors import UserError
from cpplm.jax.bench import bench
from cpplm.jax.check_settings import BenchSettings, StepSettings
from cpplm.model.settings import ArchitectureSettings
from cpplm.train.jax_settings import JaxSettings


def small(**more: object) -> StepSettings:
    return StepSettings(
        seq=64,
        vocab_size=512,
        depth=2,
        aspect_ratio=32,
        head_dim=32,
        architecture=ArchitectureSettings(preset="seed"),
        **more,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "chips", "tokens"),
    [
        (small(jax=JaxSettings(mesh="data=1")), 1, 64),
        (small(document_mask=True, total_batch_size=512, jax=JaxSettings(mesh="data=2,fsdp=2")), 4, 512),
    ],
)
def test_on_the_cpu(step: StepSettings, chips: int, tokens: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(BenchSettings(steps=2, warm_up=1, step=step))
    assert "these are figures of the CPU" in capsys.readouterr().err
    assert found.mfu is None
    assert "no share of a peak" in found.text()
    assert (found.device, found.devices, found.tokens_per_step) == ("cpu", chips, tokens)
    assert 0 < found.fastest_seconds <= found.step_seconds <= found.slowest_seconds
    assert found.tokens_per_second == pytest.approx(tokens / found.step_seconds)
    assert 0 < found.loss < 8  # a new model is near log(512) = 6.2


def test_no_steps_are_no_measurement() -> None:
    with pytest.raises(UserError, match="at least one step"):
        BenchSettings(steps=0)
