"""The libraries that train: PyTorch on CPU, CUDA and MPS, JAX on TPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cpplm.core.errors import UserError
from cpplm.core.hardware import count_tpus
from cpplm.model.settings import LoraSettings
from cpplm.train.backend import TrainBackend
from cpplm.train.settings import TrainSettings
from cpplm.train.torch_backend import TorchBackend

BackendFactory = Callable[[TrainSettings], TrainBackend]
_FACTORIES: dict[str, BackendFactory] = {"torch": TorchBackend}


class BackendChoice(Protocol):
    """Settings that name a library and a device."""

    @property
    def backend(self) -> str:
        """ "auto", "torch" or "jax"."""

    @property
    def device_type(self) -> str:
        """Empty for the best one present."""

    @property
    def lora(self) -> LoraSettings:
        """Rank 0 for none."""


def register_backend(name: str, factory: BackendFactory) -> None:
    """Make a library known to `open_backend`; `cpplm.jax.backend` does so when it is imported."""
    _FACTORIES[name] = factory


def open_backend(settings: TrainSettings) -> TrainBackend:
    """The backend that `--backend` names.

    Raises:
        UserError: it is not registered, or does not train on the device that is asked for.
    """
    refuse_lora_with_jax(settings)
    name = "jax" if trains_with_jax(settings) else "torch"
    if name not in _FACTORIES:
        raise UserError(
            f"the backend {name} is not registered",
            fix="Train with 'cpplm train', or import cpplm.jax.backend before.",
        )
    return _FACTORIES[name](settings)


def refuse_lora_with_jax(settings: BackendChoice) -> None:
    """Refuse an adapter where JAX would train it.

    Raises:
        UserError: so it is.
    """
    if settings.lora.lora_rank and trains_with_jax(settings):
        raise UserError(
            "--lora_rank is PyTorch's, and --backend jax does not know it",
            fix="Use --backend torch, or leave it out to train the whole model.",
        )


def trains_with_jax(settings: BackendChoice) -> bool:
    """True where JAX trains: if it is asked for, else where a TPU is present."""
    if settings.backend != "auto":
        return settings.backend == "jax"
    if settings.device_type:
        return settings.device_type == "tpu"
    return count_tpus() > 0
