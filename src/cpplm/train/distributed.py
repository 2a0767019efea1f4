"""The processes that train one model together, as torchrun's environment describes them.

For one process without torchrun no process group is made, and every exchange gives back what it was given.
Between several processes no pickle travels: values are JSON.
"""

from __future__ import annotations

import gc
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_device
from cpplm.core.settings import flatten
from cpplm.optim.collectives import Collectives

TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
# Of one exchange: the others wait while the first rank waits for its checkpoint or compiles alone.
TIMEOUT = timedelta(minutes=30)


class TrainingInterrupted(KeyboardInterrupt):
    """The run was asked to stop, has saved and ends: on all processes."""


class DistContext(ABC):
    """This process among all that train one model, and what they tell each other.

    With PyTorch it is a `TorchDistContext`, with JAX a `cpplm.jax.distributed.JaxDistContext`.

    Attributes:
        device: where this process's own tensors are.
        process_index: which of the `process_count` processes this is.
        process_count: all processes.
        rank: which share of the rows of a batch this process reads: of `world_size` shares. Processes of one
            rank read the same rows; there are such with JAX only, where hosts may divide the positions.
        world_size: shares into which the processes divide the rows that they read.
        data_parallel_size: so many times `device_batch_size` rows all processes compute at once.
    """

    device: torch.device
    process_index: int
    process_count: int
    rank: int
    world_size: int
    data_parallel_size: int

    @property
    def local_data_parallel_size(self) -> int:
        """So many times `device_batch_size` rows this process reads at once."""
        return self.data_parallel_size // self.world_size

    @property
    def is_first(self) -> bool:
        """True in the process that writes what is written once: log and page; it commits checkpoints."""
        return self.process_index == 0

    @abstractmethod
    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all processes, in order of `process_index`, on every process. All must call it.

        Args:
            value: anything that JSON can say; tuples become lists.
        """

    @abstractmethod
    def sync_stop_and_clock(self, *, stopping: bool, seconds: float) -> tuple[bool, float]:
        """True if any process was asked to stop, and the clock of the first: the same on all, in one message.

        A signal reaches the processes at different moments and no two clocks are alike, yet all must take the
        same number of steps and the same schedules.
        """

    @abstractmethod
    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over the processes, in place. All must call it."""

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.gather_objects(None)

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """Raises what one process raises within the block on all: none waits for one that has ended.

        All must enter it, and exchange nothing inside.

        Raises:
            UserError: another process raised one, or any other error, whose type is then named.
        """
        try:
            yield
        except Exception as error:
            self.gather_objects(str(error) if isinstance(error, UserError) else repr(error))
            raise
        for process, message in enumerate(self.gather_objects(None)):
            if message is not None:
                raise UserError(f"process {process}: {message}")

    def run_on_first(self, function: Callable[[], Any]) -> Any:
        """Call `function` on the first process alone, and give its value to all, or raise its error on all.

        Args:
            function: exchanges nothing, and gives what JSON can say; tuples become lists.
        """
        value = None
        with self.raise_on_all_ranks():
            if self.is_first:
                value = function()
        return self.gather_objects(value)[0]

    def assert_same_on_all_ranks(self, values: Mapping[str, Any], *, but: Collection[str] = ()) -> None:
        """All processes must have the same, or they would wait for one another or train different models.

        Args:
            values: anything that JSON can say, by name; names within dictionaries follow theirs and a dot.
            but: names of what may differ.

        Raises:
            UserError: the same on all processes, with what differs.
        """
        first, *others = map(flatten, self.gather_objects(dict(values)))
        for process, theirs in enumerate(others, start=1):
            differing = [
                f"{name} {theirs.get(name)}, not {first.get(name)}"
                for name in sorted(first.keys() | theirs.keys())
                if name not in but and theirs.get(name) != first.get(name)
            ]
            if differing:
                raise UserError(
                    f"process {process} differs from the first one: {'; '.join(differing)}",
                    fix="Start the same command with the same files on each machine.",
                )


class TorchDistContext(DistContext):
    """A process of torchrun's, or the only one; each has one device, and rows of its own."""

    def __init__(
        self, rank: int, world_size: int, device: torch.device, process_group: dist.ProcessGroup | None
    ) -> None:
        """`process_group` is None for a single process, or when it is left."""
        self.device, self.process_group = device, process_group
        self.rank = self.process_index = rank
        self.world_size = self.process_count = self.data_parallel_size = world_size

    @override
    def gather_objects(self, value: Any) -> list[Any]:
        if self.process_group is None:
            return [value]
        data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=self.device)
        return [
            json.loads(bytes(part.tolist()))
            for part in Collectives(self.process_group).all_gather_ragged(data)
        ]

    @override
    def sync_stop_and_clock(self, *, stopping: bool, seconds: float) -> tuple[bool, float]:
        if self.process_group is None:
            return stopping, seconds
        values = torch.tensor([[float(stopping), seconds]], dtype=torch.float64, device=self.device)
        values = Collectives(self.process_group).all_gather(values, self.world_size)()
        return bool(values[:, 0].any()), float(values[0, 1])

    @override
    def mean(self, tensor: Tensor) -> Tensor:
        return Collectives(self.process_group).all_reduce_mean(tensor)()


SINGLE_PROCESS = TorchDistContext(0, 1, torch.device("cpu"), None)


@contextmanager
def init_distributed(device_type: str = "") -> Iterator[TorchDistContext]:
    """Join the processes that torchrun started; left, the process group is gone.

    The group's messages travel by NCCL between CUDA devices and by gloo between CPUs.

    Args:
        device_type: "cuda", "mps" or "cpu"; empty for the best one present. Under torchrun each process of a
            machine gets the CUDA device of its local rank.

    Raises:
        UserError: an environment that is half set or contradicts itself, or too few devices.
    """
    rank, local_rank, world_size = read_environment(os.environ)
    device = choose_device(device_type)
    if world_size == 1:
        yield TorchDistContext(0, 1, device, None)
        return
    device = _local_device(device, local_rank)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=world_size, timeout=TIMEOUT
    )
    context = TorchDistContext(rank, world_size, device, dist.group.WORLD)
    try:
        yield context
    finally:
        dist.destroy_process_group()
        # The group's threads end with the last reference to it. Left to the end of Python, where they cannot
        # give back tensors any more, they abort the process now and then (pytorch issue 190489).
        context.process_group = None
        gc.collect()


def read_environment(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Rank of this process among all, rank on its machine, number of all; (0, 0, 1) without torchrun.

    Raises:
        UserError: some of the variables are missing, no numbers, or contradict each other.
    """
    given = {name: environment[name] for name in TORCHRUN_VARIABLES if name in environment}
    if not given:
        return 0, 0, 1
    variables = " ".join(f"{name}={value}" for name, value in given.items())
    fix = "Start with torchrun, or unset these variables to train in one process."
    missing = [name for name in TORCHRUN_VARIABLES if name not in given]
    if missing:
        raise UserError(f"the environment says {variables} but not {' and '.join(missing)}", fix=fix)
    if not all(value.isascii() and value.isdigit() for value in given.values()):
        raise UserError(f"the environment says {variables}, which are not all numbers", fix=fix)
    rank, local_rank, world_size = (int(given[name]) for name in TORCHRUN_VARIABLES)
    if not local_rank <= rank < world_size:
        raise UserError(f"the environment says {variables}, which no process can be", fix=fix)
    return rank, local_rank, world_size


def _local_device(device: torch.device, local_rank: int) -> torch.device:
    if device.type == "mps":
        raise UserError(
            "several processes cannot share the one MPS device", fix="Train in one process, without torchrun."
        )
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise UserError(
                f"process {local_rank} of this machine has no GPU of its own: there are {count}",
                fix=f"Start at most {count} processes per machine (torchrun --nproc_per_node {count}).",
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    return device
