import json
from pathlib import Path

import pytest
import torch

from cpplm.cli.checkpoints import CheckpointListSettings, VerifySettings, list_checkpoints, verify
from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from tests.commands import assert_one_line_error, cpplm, reported
from tests.train import nanochat_reference as nanochat
from tests.train.checkpoints import save


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(tmp_path / "checkpoints", create=True)
    save(storage, 10, 200)
    return storage


def test_list(storage: Storage, tmp_path: Path) -> None:
    report = list_checkpoints(CheckpointListSettings(str(tmp_path)))
    size = sum(
        len(storage.read(name)) for name in storage.list_names("step_000200") if "manifest" not in name
    )
    assert report.figures["location"] == storage.location
    entry = {"step": 200, "bytes": size, "files": 4, "stage": "base", "parent": None}
    assert report.figures["checkpoints"][1] == entry
    assert [row.split()[:2] for row in report.text.splitlines()[1:]] == [["step", "10"], ["step", "200"]]


def test_list_shows_a_damaged_manifest_beside_the_others(storage: Storage) -> None:
    storage.write("step_000010/manifest.json", b"{}")
    figures = list_checkpoints(CheckpointListSettings(storage.location)).figures["checkpoints"]
    assert "step_000010/manifest.json is damaged" in figures[0]["error"]
    assert figures[1]["files"] == 4


def test_list_of_nothing(tmp_path: Path) -> None:
    report = list_checkpoints(CheckpointListSettings(str(tmp_path)))
    assert report.figures["checkpoints"] == []
    assert "no checkpoint yet" in report.text


def test_verify_names_every_damaged_file(storage: Storage) -> None:
    figures = verify(VerifySettings(storage.location)).figures
    assert figures["steps"] == [10, 200]
    for step in (10, 200):
        storage.write(f"step_{step:06d}/model.safetensors", b"x")
    with pytest.raises(UserError, match=r"step_000010/model\.safetensors.*step_000200/model\.safetensors"):
        verify(VerifySettings(storage.location))
    with pytest.raises(UserError, match="step_000200") as caught:
        verify(VerifySettings(storage.location, step=200))
    assert "step_000010" not in str(caught.value)
    storage.delete(storage.list_names())
    with pytest.raises(UserError, match="no checkpoint in"):
        verify(VerifySettings(storage.location))


@pytest.mark.slow
def test_an_imported_model_generates(tmp_path: Path, tokenizer_path: Path) -> None:
    record = {"sequence_len": 256, "vocab_size": 512, "n_layer": 2, "n_head": 2, "n_kv_head": 2, "n_embd": 64}
    record = {**record, "window_pattern": "SSSL"}
    torch.save(nanochat.random_state(record, newer=True, rows=512), tmp_path / "model_000020.pt")
    (tmp_path / "meta_000020.json").write_text(json.dumps({"model_config": record}))
    command = ("checkpoints", "import", tmp_path, "--tokenizer", tokenizer_path, "--out", tmp_path / "ours")
    assert reported(*command)[1]["step"] == 20
    assert reported("checkpoints", "verify", tmp_path / "ours")[1]["steps"] == [20]
    generate = ("generate", "--run", tmp_path / "ours", "--prompt", "int x", "--max_new_tokens", "4")
    assert reported(*generate)[1]["step"] == 20
    assert_one_line_error(
        cpplm("checkpoints", "import", tmp_path / "ours", *command[3:]), "holds no checkpoint of nanochat"
    )
