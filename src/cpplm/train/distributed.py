"""The processes that train one model together, as torchrun's environment describes them.

One process without torchrun is a world of one: no process group is made, and every exchange gives back what
it was given. Between several processes no pickle travels: values are JSON.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_device
from cpplm.core.settings import flatten
from cpplm.optim.collectives import Ranks

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
# Of one exchange: the others wait while the first rank waits for its checkpoint or compiles alone.
TIMEOUT = timedelta(minutes=30)


class TrainingInterrupted(KeyboardInterrupt):
    """The run was asked to stop, has saved and ends: on all processes."""


@dataclass
class DistContext:
    """This process among all. `device` is its own; `process_group` is None for a world of one, or left."""

    index: int
    size: int
    device: torch.device
    process_group: dist.ProcessGroup | None
    replicas: int = 1
    """So many times `device_batch_size` rows this process computes at once."""

    @property
    def batch_shares(self) -> int:
        """So many times `device_batch_size` rows all processes compute at once."""
        return self.size * self.replicas

    @property
    def devices(self) -> int:
        """Devices of all processes."""
        return self.size

    @property
    def process(self) -> int:
        """This process's place in what `gather_objects` gives."""
        return self.index

    @property
    def processes(self) -> int:
        """How many `gather_objects` asks."""
        return self.size

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once: log and page; and commits checkpoints."""
        return self.process == 0

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

    def gather_objects(self, value: Any) -> list[Any]:
        """What each process has, in order of rank, on every process. All must call it.

        Args:
            value: anything that JSON can say; tuples become lists.
        """
        if self.process_group is None:
            return [value]
        data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=self.device)
        return [json.loads(bytes(part.tolist())) for part in Ranks(self.process_group).gather_any(data)]

    def agree(self, *, stopping: bool, seconds: float) -> tuple[bool, float]:
        """Whether any process was asked to stop, and the clock of the first: the same on all, in one message.

        A signal reaches the processes at different moments and no two clocks are alike, yet all must take the
        same number of steps and the same schedules.
        """
        if self.process_group is None:
            return stopping, seconds
        said = torch.tensor([[float(stopping), seconds]], dtype=torch.float64, device=self.device)
        said = Ranks(self.process_group).gather(said, self.size)()
        return bool(said[:, 0].any()), float(said[0, 1])

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over the processes, in place. All must call it."""
        return Ranks(self.process_group).mean(tensor)()


ALONE = DistContext(0, 1, torch.device("cpu"), None)


@contextmanager
def open_world(device_type: str = "") -> Iterator[DistContext]:
    """The world that this process belongs to; left, its process group is gone.

    The group's messages travel by NCCL between CUDA devices and by gloo between CPUs.

    Args:
        device_type: "cuda", "mps" or "cpu"; empty for the best one present. Under torchrun each process of a
            machine gets the CUDA device of its local rank.

    Raises:
        UserError: an environment that is half set or contradicts itself, or too few devices.
    """
    index, local_index, size = read_environment(os.environ)
    device = choose_device(device_type)
    if size == 1:
        yield DistContext(0, 1, device, None)
        return
    device = _own_device(device, local_index)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", rank=index, world_size=size, timeout=TIMEOUT
    )
    context = DistContext(index, size, device, dist.group.WORLD)
    try:
        yield context
    finally:
        dist.destroy_process_group()
        # The group's threads end with the last reference to it. Left to the end of Python, where they cannot
        # give back tensors any more, they abort the process now and then (pytorch issue 190489).
        context.process_group = None
        gc.collect()


def read_environment(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Index of this process among all, index on its machine, number of all; (0, 0, 1) without torchrun.

    Raises:
        UserError: some of the variables are missing, no numbers, or contradict each other.
    """
    given = {name: environment[name] for name in VARIABLES if name in environment}
    if not given:
        return 0, 0, 1
    said = " ".join(f"{name}={value}" for name, value in given.items())
    fix = "Start with torchrun, or unset these variables to train in one process."
    missing = [name for name in VARIABLES if name not in given]
    if missing:
        raise UserError(f"the environment says {said} but not {' and '.join(missing)}", fix=fix)
    if not all(value.isascii() and value.isdigit() for value in given.values()):
        raise UserError(f"the environment says {said}, which are not all numbers", fix=fix)
    index, local_index, size = (int(given[name]) for name in VARIABLES)
    if not local_index <= index < size:
        raise UserError(f"the environment says {said}, which no process can be", fix=fix)
    return index, local_index, size


def _own_device(device: torch.device, local_index: int) -> torch.device:
    if device.type == "mps":
        raise UserError(
            "several processes cannot share the one MPS device", fix="Train in one process, without torchrun."
        )
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if local_index >= count:
            raise UserError(
                f"process {local_index} of this machine has no GPU of its own: there are {count}",
                fix=f"Start at most {count} processes per machine (torchrun --nproc_per_node {count}).",
            )
        device = torch.device("cuda", local_index)
        torch.cuda.set_device(device)
    return device
