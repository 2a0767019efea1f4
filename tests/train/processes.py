"""Runs a function in several processes at once, each told what torchrun would tell it."""

from __future__ import annotations

import faulthandler
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing

from cpplm.train.distributed import init_distributed

_PATIENCE = 240.0  # seconds after which a process shows where it is, and ends: others may wait for it


def in_processes(size: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call `function(world, *arguments)` in `size` processes on the CPU; an exception of one is raised here.

    The function must be at the top of a module: new interpreters import it.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    torch.multiprocessing.spawn(_process, (size, port, function, arguments), nprocs=size)


def _process(
    index: int, size: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with init_distributed("cpu") as dist:
        function(dist, *arguments)
