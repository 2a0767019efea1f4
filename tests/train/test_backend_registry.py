"""Which library trains, and what is refused before anything is written."""

import dataclasses
from pathlib import Path

import pytest

from cpplm.cli import train as train_command
from cpplm.cli.train import train
from cpplm.core.errors import UserError
from cpplm.core.hardware import count_tpus
from cpplm.train import backend_registry
from cpplm.train.backend_registry import open_backend, trains_with_jax
from cpplm.train.estimate import estimate_run
from cpplm.train.settings import TrainSettings


def pci(folder: Path, *devices: tuple[str, str]) -> Path:
    for number, (vendor, device) in enumerate(devices):
        (folder / str(number)).mkdir()
        (folder / str(number) / "vendor").write_text(f"{vendor}\n")
        (folder / str(number) / "device").write_text(f"{device}\n")
    return folder


def test_tpus_are_counted_and_their_network_cards_are_not(tmp_path: Path) -> None:
    v6e, network, intel = ("0x1ae0", "0x006f"), ("0x1ae0", "0x0042"), ("0x8086", "0x006f")
    assert count_tpus(pci(tmp_path, v6e, network, intel, v6e)) == 2
    assert count_tpus(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("backend", "device", "chips", "jax"),
    [
        ("auto", "", 4, True), ("auto", "", 0, False), ("auto", "cpu", 4, False), ("auto", "tpu", 0, True),
        ("torch", "", 4, False), ("jax", "", 0, True), ("jax", "cpu", 0, True),
    ],
)  # fmt: skip
def test_jax_trains_where_a_tpu_is(
    monkeypatch: pytest.MonkeyPatch, backend: str, device: str, chips: int, jax: bool
) -> None:
    monkeypatch.setattr(backend_registry, "count_tpus", lambda: chips)
    assert trains_with_jax(backend, device) is jax


def test_without_jax_it_is_said(settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_registry, "count_tpus", lambda: 4)
    monkeypatch.setattr(train_command.importlib.util, "find_spec", lambda name: None)
    for backend in ("auto", "jax"):  # never weeks on the CPU beside a TPU
        with pytest.raises(UserError, match=r"needs JAX, which is not installed.*cpplm\[tpu\]"):
            train(dataclasses.replace(settings, backend=backend))
    assert not settings.out.exists()


def test_torch_refuses_a_tpu(settings: TrainSettings) -> None:
    with pytest.raises(UserError, match="does not train on a TPU"):
        open_backend(dataclasses.replace(settings, backend="torch", device_type="tpu"))


def test_a_dry_run_is_for_gpus(settings: TrainSettings) -> None:
    with pytest.raises(UserError, match="knows no TPUs"):
        estimate_run(dataclasses.replace(settings, backend="jax"))
