"""Small checkpoints, and what the tests ask about them."""

from pathlib import Path

import torch
from torch import Tensor

from cpplm.core.storage import Storage
from cpplm.train.checkpoint.format import Checkpoint, committed_steps, open_checkpoint
from cpplm.train.checkpoint.save import write_checkpoint
from cpplm.train.checkpoint.weights import load_tensors

FILES = {"config.json": b"{}\n", "state.json": b'{"step": 1}\n'}


def tensors(step: int, *, size: int = 6) -> dict[str, dict[str, Tensor]]:
    """Those of a step differ from those of every other one."""
    weight = torch.arange(float(size)) + 1000 * step
    return {"model.safetensors": {"w": weight}, "optimizer.safetensors": {"w/step": torch.tensor(step)}}


def save(storage: Storage, *steps: int) -> None:
    for step in steps:
        write_checkpoint(storage, step, tensors(step), FILES)


def assert_whole(checkpoint: Checkpoint) -> None:
    """Every file is as saved, and it is of this step."""
    checkpoint.verify()
    assert load_tensors(checkpoint, "model.safetensors")["w"][0] == 1000 * checkpoint.step
    assert load_tensors(checkpoint, "optimizer.safetensors")["w/step"] == checkpoint.step


def assert_all_whole(storage: Storage) -> None:
    for step in committed_steps(storage):
        assert_whole(open_checkpoint(storage, step))


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
