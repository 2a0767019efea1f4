"""Committed or not there at all; damage is named."""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage, sha256
from cpplm.train.checkpoint.format import DamagedError, open_checkpoint, open_run
from cpplm.train.checkpoint.save import write_checkpoint
from cpplm.train.checkpoint.weights import load_tensors
from tests.train.checkpoints import FILES, save, tensors


@pytest.mark.parametrize(
    ("files", "stage"),
    [
        ({}, "base"),
        ({"settings.json": {}}, "base"),
        ({"settings.json": {"stage": "sft"}}, "sft"),
        ({"imported.json": {}}, "base"),
        ({"imported.json": {"stage": "rl"}}, "rl"),
        ({"settings.json": {"stage": "later"}}, None),
        ({"imported.json": {"stage": ["sft"]}}, None),
    ],
)
def test_the_stage_of_training(storage: Storage, files: dict[str, object], stage: str | None) -> None:
    more = {name: json.dumps(content).encode() for name, content in files.items()}
    checkpoint = write_checkpoint(storage, 1, tensors(1), FILES | more)
    if stage is None:
        with pytest.raises(UserError, match=r"unknown stage .*newer cpplm"):
            _ = checkpoint.stage
    else:
        assert checkpoint.stage == stage


def test_nothing_there(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint in"):
        open_checkpoint(storage)
    save(storage, 5)
    with pytest.raises(UserError, match=r"There are: \[5\]"):
        open_checkpoint(storage, 6)
    with pytest.raises(UserError, match=r"has no settings\.json"):
        open_checkpoint(storage).read("settings.json")
    with pytest.raises(UserError, match="no such folder"):
        open_run(tmp_path / "nowhere")
    assert open_run(tmp_path).step == open_run(tmp_path / "checkpoints").step == 5


# ---- damage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FILES, *tensors(1)])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_is_named(storage: Storage, name: str, data: st.DataObject) -> None:
    save(storage, 1)
    good = storage.read(f"step_000001/{name}")
    position = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[position] ^= data.draw(st.integers(1, 255))
    storage.write(f"step_000001/{name}", bytes(bad))
    with pytest.raises(DamagedError, match=f"/step_000001/{name} is damaged"):
        open_checkpoint(storage).verify()


def test_every_changed_byte_of_the_manifest_is_named(storage: Storage) -> None:
    save(storage, 1)
    good = storage.read("step_000001/manifest.json")
    for position in range(len(good)):
        for flip in (1, 32):
            bad = bytearray(good)
            bad[position] ^= flip
            storage.write("step_000001/manifest.json", bytes(bad))
            with pytest.raises(UserError, match=r"/step_000001/manifest\.json (is damaged|has format [3-9])"):
                open_checkpoint(storage).verify()
    storage.write("step_000001/manifest.json", good)
    open_checkpoint(storage).verify()


@pytest.mark.parametrize("name", [*FILES, "manifest.json", "model.safetensors"])
def test_a_cut_or_lost_file_is_named(storage: Storage, name: str) -> None:
    save(storage, 1)
    path = f"step_000001/{name}"
    for end in (0, 1, len(storage.read(path)) - 1):
        storage.write(path, storage.read(path)[:end])
        with pytest.raises(DamagedError, match=f"/step_000001/{name} is damaged"):
            open_checkpoint(storage).verify()
        save(storage, 1)
    checkpoint = open_checkpoint(storage)
    storage.delete([path])
    if name != "manifest.json":
        with pytest.raises(DamagedError, match=f"/step_000001/{name} is damaged"):
            checkpoint.verify()


def test_a_folder_under_another_name_is_damaged(storage: Storage) -> None:
    save(storage, 1)
    shutil.copytree(Path(storage.location, "step_000001"), Path(storage.location, "step_000009"))
    with pytest.raises(DamagedError, match=r"step_000009/manifest\.json"):
        open_checkpoint(storage)


@pytest.mark.parametrize(
    "manifest",
    ["[]", "{}", "null", '{"version": 2}', '{"version": 2, "step": 1, "files": [], "sha256": ""}'],
)
def test_a_manifest_of_another_kind_is_damaged(storage: Storage, manifest: str) -> None:
    storage.write("step_000001/manifest.json", manifest.encode())
    with pytest.raises(DamagedError, match=r"manifest\.json is damaged"):
        open_checkpoint(storage)


@pytest.mark.parametrize("name", ["../../outside", "a/b", ".", ".."])
def test_a_manifest_cannot_lead_elsewhere(storage: Storage, name: str) -> None:
    write_checkpoint(storage, 1, {}, {"state.json": b"{}"})
    manifest = storage.read_json("step_000001/manifest.json")
    content = {"version": 2, "step": 1, "files": {name: manifest["files"]["state.json"]}}
    whole = {**content, "sha256": sha256((json.dumps(content, indent=1, sort_keys=True) + "\n").encode())}
    storage.write_json("step_000001/manifest.json", whole)
    with pytest.raises(DamagedError, match=r"manifest\.json is damaged"):
        open_checkpoint(storage)


# ---- other formats ----------------------------------------------------------------------------------------


def test_the_first_format_is_still_read(storage: Storage) -> None:
    files = {"model.safetensors": safetensors.torch.save({"w": torch.arange(3.0)}), "state.json": b"{}\n"}
    entries = {name: {"bytes": len(data), "sha256": sha256(data)} for name, data in files.items()}
    for name, data in files.items():
        storage.write(f"step_000003/{name}", data)
    storage.write_json("step_000003/manifest.json", {"version": 1, "step": 3, "files": entries})
    checkpoint = open_checkpoint(storage)
    checkpoint.verify()
    assert torch.equal(load_tensors(checkpoint, "model.safetensors")["w"], torch.arange(3.0))
    storage.write("step_000003/state.json", b"{ \n")
    with pytest.raises(DamagedError, match=r"state\.json"):
        checkpoint.verify()


def test_a_later_format_is_refused(storage: Storage) -> None:
    storage.write_json("step_000001/manifest.json", {"version": 3, "surprise": 1, "files": {}})
    with pytest.raises(UserError, match=r"has format 3\. Read it with a newer cpplm"):
        open_checkpoint(storage)
