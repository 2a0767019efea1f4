"""What torchrun's environment says, and what processes tell each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as torch_dist

from cpplm.core.errors import UserError
from cpplm.train.attempt import Attempt
from cpplm.train.checkpoint.resume import open_shared_storage
from cpplm.train.distributed import (
    SINGLE_PROCESS,
    TORCHRUN_VARIABLES,
    DistContext,
    init_distributed,
    read_environment,
)


def environment(index: object, local: object, size: object) -> dict[str, str]:
    return {"RANK": str(index), "LOCAL_RANK": str(local), "WORLD_SIZE": str(size), "PATH": "/bin"}


def test_without_torchrun_there_is_one() -> None:
    assert read_environment({"PATH": "/bin"}) == (0, 0, 1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "says RANK=0 but not LOCAL_RANK and WORLD_SIZE"),
        ({"WORLD_SIZE": "4", "RANK": "1"}, "but not LOCAL_RANK"),
        (environment("a", 0, 2), "RANK=a LOCAL_RANK=0 WORLD_SIZE=2, which are not all numbers"),
        (environment(0, "", 2), "not all numbers"),
        (environment(2, 0, 2), "which no process can be"),
        (environment(0, 1, 2), "which no process can be"),
        (environment(0, 0, 0), "which no process can be"),
    ],
)
def test_a_half_set_environment(variables: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_environment(variables)


def test_alone_everything_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with init_distributed("cpu") as dist:
        assert vars(dist) == vars(SINGLE_PROCESS)
        assert not torch_dist.is_initialized()
        assert dist.is_first
        dist.barrier()
        assert dist.gather_objects({"a": 1}) == [{"a": 1}]
        assert dist.sync_stop_and_clock(stopping=True, seconds=0.1) == (True, 0.1)
        tensor = torch.ones(2)
        assert dist.mean(tensor) is tensor


def talk(dist: DistContext, folder: Path) -> None:
    """Every process checks what it hears; `test_sharding` calls it in its two processes."""
    index = dist.rank
    assert dist.world_size == torch_dist.get_world_size() == 2
    assert dist.is_first == (index == 0)
    assert dist.device == torch.device("cpu")
    said = {"text": "ü" * (1 + 5000 * index), "number": 0.1 + index, "list": [index, None, True]}
    heard = dist.gather_objects(said)
    assert heard[index] == said
    assert [len(value["text"]) for value in heard] == [1, 5001]
    assert [value["number"] for value in heard] == [0.1, 1.1]
    assert dist.sync_stop_and_clock(stopping=False, seconds=10.25 + index) == (False, 10.25)
    assert dist.sync_stop_and_clock(stopping=index == 1, seconds=index / 3) == (True, 0.0)
    assert torch.equal(dist.mean(torch.tensor([1.0, 3.0]) * (index + 1)), torch.tensor([1.5, 4.5]))
    if index == 1:
        (folder / "written").touch()
    dist.barrier()
    assert (folder / "written").exists()
    with (
        pytest.raises(UserError, match="the disk is full"),
        dist.raise_on_all_ranks(),
    ):  # all end, as one has to
        if index == 1:
            raise UserError("the disk is full")
    with pytest.raises(OSError if index else UserError, match="torn"), dist.raise_on_all_ranks():
        if index == 1:
            raise OSError("torn")
    with dist.raise_on_all_ranks():
        pass
    with pytest.raises(UserError, match="of the first process is not seen"):  # an --out on a disk of its own
        open_shared_storage(folder / f"of process {index}", dist, Attempt(""))
    open_shared_storage(folder / "shared", dist, Attempt(""))
    assert dist.run_on_first(lambda: list(map(str, (folder / "shared").iterdir()))) == []
    dist.assert_same_on_all_ranks({"rate": 0.1, "data": {"path": "a", "sizes": (1, 2)}})
    with pytest.raises(UserError, match=r"process 1 differs from the first one: data\.path b, not a; rate"):
        dist.assert_same_on_all_ranks({"rate": 0.1 + index, "data": {"path": "ab"[index], "sizes": (1, 2)}})
