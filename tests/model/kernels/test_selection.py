"""A person's choice of kernels is checked before anything is built."""

import dataclasses

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.model.config import ModelConfig
from cpplm.model.kernels.selection import select_training_kernels
from cpplm.model.settings import KernelSettings
from tests.model.features import SPARSE

CONFIG = ModelConfig.seed(4, vocab_size=256, head_dim=64)
CPU = {"device": torch.device("cpu"), "dtype": torch.float32, "compiling": True}


def test_what_auto_takes() -> None:
    found = select_training_kernels(CONFIG, KernelSettings(), **CPU)
    assert found == {"loss": "chunked", "windowed attention": "chunked", "attention": "sdpa"}
    apart = select_training_kernels(CONFIG, KernelSettings(), **CPU, documents=True)
    assert apart == found | {"attention": "chunked"}
    sparse = dataclasses.replace(CONFIG, dsa=dataclasses.replace(SPARSE, start_layer=0))
    assert set(select_training_kernels(sparse, KernelSettings(), **CPU)) == {"loss", "sparse attention"}


@pytest.mark.parametrize("name", ["sdpa", "chunked"])
def test_what_was_named(name: str) -> None:
    found = select_training_kernels(CONFIG, KernelSettings(attention=name, kernel="native"), **CPU)
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
def test_what_cannot_be_had(kernels: KernelSettings, message: str) -> None:
    with pytest.raises(UserError, match=message):
        select_training_kernels(CONFIG, kernels, **CPU)
