"""Which library trains: PyTorch on CPU, CUDA and MPS, JAX on TPUs."""

from __future__ import annotations

import importlib
import importlib.util

from cpplm.core.errors import UserError
from cpplm.core.hardware import count_tpus
from cpplm.train.backend import TrainBackend
from cpplm.train.settings import TrainSettings
from cpplm.train.torch_backend import TorchBackend


def open_backend(settings: TrainSettings) -> TrainBackend:
    """The backend that `--backend` names.

    Raises:
        UserError: it is not installed, or does not train on the device that is asked for.
    """
    if not trains_with_jax(settings):
        return TorchBackend(settings)
    if importlib.util.find_spec("jax") is None:
        raise UserError(
            "training on a TPU, or with --backend jax, needs JAX, which is not installed",
            fix="pip install 'cpplm[tpu]', or use --backend torch.",
        )
    backend: TrainBackend = importlib.import_module("cpplm.jax.backend").JaxBackend(settings)
    return backend


def trains_with_jax(settings: TrainSettings) -> bool:
    """Whether JAX trains: where it is asked for, and else where a TPU is present."""
    if settings.backend != "auto":
        return settings.backend == "jax"
    if settings.device_type:
        return settings.device_type == "tpu"
    return count_tpus() > 0
