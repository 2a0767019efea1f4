"""A person's choice of kernels is checked before anything is built."""

import dataclasses

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.model.config import ModelConfig
from cpplm.model.settings import KernelSettings
from cpplm.train.settings import TrainSettings
from cpplm.train.setup import choose_kernels
from tests.model.features import SPARSE

CONFIG = ModelConfig.seed(4, vocab_size=256, head_dim=64)
CPU = torch.device("cpu")


@pytest.fixture
def settings(settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> TrainSettings:
    monkeypatch.setattr("cpplm.train.setup.can_compile", lambda device: True)
    return dataclasses.replace(settings, no_compile=False)


def test_what_auto_takes(settings: TrainSettings) -> None:
    found = choose_kernels(settings, CONFIG, CPU)
    assert found == {"loss": "chunked", "windowed attention": "chunked", "attention": "sdpa"}
    data = dataclasses.replace(settings.data, document_mask=True)
    apart = choose_kernels(dataclasses.replace(settings, data=data), CONFIG, CPU)
    assert apart == found | {"attention": "chunked"}
    sparse = dataclasses.replace(CONFIG, dsa=dataclasses.replace(SPARSE, start_layer=0))
    assert set(choose_kernels(settings, sparse, CPU)) == {"loss", "sparse attention"}


@pytest.mark.parametrize("name", ["sdpa", "chunked"])
def test_what_was_named(settings: TrainSettings, name: str) -> None:
    settings = dataclasses.replace(settings, kernels=KernelSettings(attention=name, kernel="native"))
    found = choose_kernels(settings, CONFIG, CPU)
    assert found == {"loss": "native", "windowed attention": name, "attention": name}


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        (KernelSettings(attention="flash2"), r"'flash2' needs a cuda device.* What works here: auto, sdpa"),
        (
            KernelSettings(attention="flex"),
            r"'flex' has no backward pass on cpu.* What works here: auto, sdpa",
        ),
        (KernelSettings(kernel="cce"), r"'cce' needs a cuda device.* What works here: auto, chunked, native"),
    ],
)
def test_what_cannot_be_had(settings: TrainSettings, kernels: KernelSettings, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_kernels(dataclasses.replace(settings, kernels=kernels), CONFIG, CPU)
