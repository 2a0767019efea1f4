"""The hosts that train one model together with JAX, and their chips."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import torch
from jax.experimental import multihost_utils
from torch import Tensor
from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.core.hardware import count_tpus
from cpplm.jax.mesh import HostBatchSharder
from cpplm.train.distributed import DistContext, TrainingInterrupted
from cpplm.train.settings import TrainSettings

_BY_HAND = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_SHUTDOWN_SECONDS = 60  # seconds that a host which has ended with an error waits for the others to end


class JaxDistContext(DistContext):
    """This host among all. Hosts that hold different positions of the same rows have one `rank`."""

    def __init__(self, sharder: HostBatchSharder) -> None:
        """`sharder` says which rows this host reads."""
        self.device = torch.device("cpu")
        self.process_index, self.process_count = jax.process_index(), jax.process_count()
        self.rank, self.world_size = sharder.reader_index, sharder.num_readers
        self.data_parallel_size = sharder.batch_shards

    @override
    def gather_objects(self, value: Any) -> list[Any]:
        if self.process_count == 1:
            return [value]
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = np.asarray(multihost_utils.process_allgather(np.int32(len(data)))).reshape(-1)
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: len(data)] = data
        parts = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(sizes), -1)
        return [json.loads(part[:size].tobytes()) for part, size in zip(parts, sizes, strict=True)]

    @override
    def sync_stop_and_clock(self, *, stopping: bool, seconds: float) -> tuple[bool, float]:
        answers = self.gather_objects([stopping, seconds])
        return any(stop for stop, _ in answers), answers[0][1]

    @override
    def mean(self, tensor: Tensor) -> Tensor:
        values = self.gather_objects(tensor.tolist())
        return tensor.copy_(torch.tensor(values, dtype=tensor.dtype).mean(0))


@contextmanager
def initialize(settings: TrainSettings) -> Iterator[list[jax.Device]]:
    """The chips of all hosts, which have found each other.

    Raises:
        UserError: the device that is asked for, or that is in the machine, is not what JAX has found.
    """
    if settings.device_type not in ("", "tpu", "cpu"):
        raise UserError(
            f"--backend jax trains on TPUs, not on {settings.device_type}", fix="Use --backend torch."
        )
    if settings.device_type == "cpu":
        jax.config.update("jax_platforms", "cpu")
    _refuse_lonely_host(settings)
    if settings.jax.multi_host:
        _initialize_hosts()
    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise UserError(
            f"JAX finds no device: {error}", fix="'cpplm doctor' says what is installed; see docs/tpu.md."
        ) from error
    _refuse_silent_cpu(devices, settings.device_type)
    # After an error the others are not waited for here: the message comes first, then JAX waits at exit, and
    # ends those that wait for this host in the middle of a step.
    try:
        yield devices
    except TrainingInterrupted:
        _shut_down(settings)
        raise
    _shut_down(settings)


def _shut_down(settings: TrainSettings) -> None:
    if settings.jax.multi_host:
        multihost_utils.sync_global_devices("end")  # the first host may be uploading for minutes
        jax.distributed.shutdown()


def _refuse_silent_cpu(devices: list[jax.Device], device_type: str) -> None:
    """JAX takes the CPU, with a warning at most, where it cannot take the TPU: a run of weeks, unnoticed."""
    if devices[0].platform == "tpu" or device_type == "cpu":
        return
    chips = count_tpus()
    here = f"although this machine has {chips} TPU chips" if chips else "and this machine has no TPU"
    raise UserError(
        f"JAX would train on {devices[0].platform}, {here}",
        fix="pip install 'cpplm[tpu]', and end what else uses the chips."
        if chips
        else "Use --backend torch; or --device_type cpu, to try JAX on the CPU.",
    )


def _refuse_lonely_host(settings: TrainSettings) -> None:
    """A host of several that trains alone would wait for its neighbours' chips for ever."""
    hosts = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    if len(hosts) > 1 and not settings.jax.multi_host and settings.device_type != "cpu":
        raise UserError(
            f"this TPU slice has {len(hosts)} hosts",
            fix="Add --multi_host, and start the same command on each of them.",
        )


def _initialize_hosts() -> None:
    """By the environment where it names them, else as JAX does: TPU pods, Slurm, Kubernetes."""
    given = {name: os.environ[name] for name in _BY_HAND if name in os.environ}
    if given and len(given) < len(_BY_HAND):
        raise UserError(
            f"the environment has {', '.join(given)} but not all of {', '.join(_BY_HAND)}",
            fix="Set all three, or none on a TPU pod.",
        )
    # JAX would take SIGTERM for itself, and nobody would hear the wish to stop until the first step.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        if given:
            address, count, index = given.values()
            jax.distributed.initialize(
                address, int(count), int(index), shutdown_timeout_seconds=_SHUTDOWN_SECONDS
            )
        else:
            jax.distributed.initialize(shutdown_timeout_seconds=_SHUTDOWN_SECONDS)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"--multi_host: the hosts did not find each other: {error}",
            fix=f"Start the same command on each host, or set {', '.join(_BY_HAND)}.",
        ) from error
