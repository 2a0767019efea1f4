"""The libraries that train: PyTorch on CPU, CUDA and MPS, JAX on TPUs."""

from __future__ import annotations

from collections.abc import Callable

from cpplm.core.errors import UserError
from cpplm.core.hardware import count_tpus
from cpplm.train.backend import TrainBackend
from cpplm.train.settings import TrainSettings
from cpplm.train.torch_backend import TorchBackend

_FACTORIES: dict[str, Callable[[TrainSettings], TrainBackend]] = {"torch": TorchBackend}


def register_backend(name: str, factory: Callable[[TrainSettings], TrainBackend]) -> None:
    """Make a library known to `open_backend`; `cpplm.jax.backend` does so when it is imported."""
    _FACTORIES[name] = factory


def open_backend(settings: TrainSettings) -> TrainBackend:
    """The backend that `--backend` names.

    Raises:
        UserError: it is not registered, or does not train on the device that is asked for.
    """
    refuse_lora_with_jax(settings.lora.lora_rank, settings.backend, settings.device_type)
    name = "jax" if trains_with_jax(settings.backend, settings.device_type) else "torch"
    if name not in _FACTORIES:
        raise UserError(
            f"the backend {name} is not registered",
            fix="Train with 'cpplm train', or import cpplm.jax.backend before.",
        )
    return _FACTORIES[name](settings)


def refuse_lora_with_jax(lora_rank: int, backend: str, device_type: str) -> None:
    """Refuse an adapter, of a rank above 0, where JAX would train it.

    Raises:
        UserError: so it is.
    """
    if lora_rank and trains_with_jax(backend, device_type):
        raise UserError(
            "--lora_rank is PyTorch's, and --backend jax does not know it",
            fix="Use --backend torch, or leave it out to train the whole model.",
        )


def trains_with_jax(backend: str, device_type: str) -> bool:
    """True where JAX trains: if it is asked for, else where a TPU is present.

    Args:
        backend: "auto", "torch" or "jax".
        device_type: empty for the best one present.
    """
    if backend != "auto":
        return backend == "jax"
    if device_type:
        return device_type == "tpu"
    return count_tpus() > 0
