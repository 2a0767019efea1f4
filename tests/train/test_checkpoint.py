"""Committed or not there at all; damage is named; old ones go."""

from pathlib import Path

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.train.checkpoint import committed_steps, open_checkpoint, open_run, save_checkpoint, to_bytes

FILES = {"model.safetensors": to_bytes({"w": torch.arange(6.0).view(2, 3)}), "state.json": b'{"step": 1}'}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "checkpoints", create=True)


def test_round_trip(storage: Storage) -> None:
    save_checkpoint(storage, 7, FILES, keep_last=2)
    checkpoint = open_checkpoint(storage)
    assert checkpoint.step == 7
    assert torch.equal(checkpoint.tensors("model.safetensors")["w"], torch.arange(6.0).view(2, 3))
    assert checkpoint.json("state.json") == {"step": 1}


def test_keeps_the_newest(storage: Storage) -> None:
    for step in (10, 200, 30, 1_000_000):
        save_checkpoint(storage, step, FILES, keep_last=2)
    assert committed_steps(storage) == [200, 1_000_000]
    assert {name.split("/")[0] for name in storage.names()} == {"step_000200", "step_1000000"}


def test_without_a_manifest_it_does_not_exist(storage: Storage) -> None:
    save_checkpoint(storage, 1, FILES, keep_last=3)
    storage.write("step_000002/model.safetensors", b"half of one")
    assert open_checkpoint(storage).step == 1
    save_checkpoint(storage, 3, FILES, keep_last=3)
    assert not any(name.startswith("step_000002") for name in storage.names())  # leftovers are removed


def test_leftovers_of_killed_processes_go(storage: Storage, tmp_path: Path) -> None:
    half = tmp_path / "checkpoints" / "step_000001" / "model.safetensors#1"
    half.parent.mkdir()
    half.write_bytes(b"half of one")
    for step in range(2, 6):
        save_checkpoint(storage, step, FILES, keep_last=2)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_000004", "step_000005"]


@pytest.mark.parametrize("name", list(FILES))
def test_one_changed_byte_is_named(storage: Storage, tmp_path: Path, name: str) -> None:
    save_checkpoint(storage, 1, FILES, keep_last=1)
    path = tmp_path / "checkpoints" / "step_000001" / name
    data = bytearray(path.read_bytes())
    data[-2] ^= 4
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"{name} is damaged"):
        open_checkpoint(storage).read(name)


def test_killed_between_any_two_writes(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever write is the last before a kill, the newest committed checkpoint is whole."""
    save_checkpoint(storage, 1, FILES, keep_last=1)
    real_write = Storage.write
    for survive in range(len(FILES) + 1):
        written = 0

        def write(self: Storage, name: str, data: bytes, survive: int = survive) -> None:
            nonlocal written
            if written == survive:
                raise KeyboardInterrupt
            written += 1
            real_write(self, name, data)

        monkeypatch.setattr(Storage, "write", write)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(storage, 2, FILES, keep_last=1)
        monkeypatch.setattr(Storage, "write", real_write)
        checkpoint = open_checkpoint(storage)
        assert checkpoint.step == 1
        for name in FILES:
            checkpoint.read(name)


def test_nothing_there(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint in"):
        open_checkpoint(storage)
    save_checkpoint(storage, 5, FILES, keep_last=1)
    with pytest.raises(UserError, match=r"There are: \[5\]"):
        open_checkpoint(storage, 6)
    with pytest.raises(UserError, match="no such folder"):
        open_run(tmp_path / "nowhere")
    assert open_run(tmp_path).step == open_run(tmp_path / "checkpoints").step == 5
