"""The newest checkpoint of both places is found, fetched whole or not at all; nothing reads as "none"."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.model.settings import ArchitectureSettings
from cpplm.train.checkpoint.format import Checkpoint, DamagedError, committed_steps, open_run
from cpplm.train.checkpoint.resume import choose_checkpoint, find_checkpoint
from cpplm.train.checkpoint.save import write_checkpoint
from cpplm.train.checkpoint.weights import load_tensors
from cpplm.train.pretrain import model_config, pretrain
from cpplm.train.settings import TrainSettings
from tests.conftest import SMALL_TABLES
from tests.object_store import object_store
from tests.train.checkpoints import files_below, tensors
from tests.train.records import records
from tests.train.test_pretrain import StopAt

SETTINGS = TrainSettings(data_dir=("corpus",), tokenizer=Path("t.json"), out=Path("run"), depth=2)
CONFIG = model_config(SETTINGS, 512)
PROVENANCE = {"corpus": "c" * 64}


def save(storage: Storage, *steps: int) -> None:
    """Of the run of `SETTINGS`."""
    values = {"config": to_dict(CONFIG), "settings": to_dict(SETTINGS), "state": PROVENANCE}
    files = {f"{name}.json": json.dumps(value).encode() for name, value in values.items()}
    for step in steps:
        write_checkpoint(storage, step, tensors(step), files)


def find(near: Storage, far: Storage | None, step: int | None = None) -> Checkpoint | None:
    settings = SETTINGS if step is None else dataclasses.replace(SETTINGS, resume_from_step=step)
    return find_checkpoint(settings, CONFIG, near, PROVENANCE, remote=far)


@pytest.fixture
def near(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "near", create=True)


@pytest.fixture
def far(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "far", create=True)


@pytest.mark.parametrize(
    ("here", "there", "step", "expected"),
    [
        ([], [], None, None),
        ([1, 2], [], None, ("near", 2)),
        ([], [1, 2], None, ("far", 2)),
        ([1, 2], [1, 2], None, ("near", 2)),
        ([3], [1, 2], None, ("near", 3)),
        ([1], [1, 2], None, ("far", 2)),
        ([1, 3], [1, 2], 2, ("far", 2)),
        ([1, 3], [1, 2], 1, ("near", 1)),
    ],
)
def test_the_newest_or_the_one_asked_for(
    near: Storage,
    far: Storage,
    here: list[int],
    there: list[int],
    step: int | None,
    expected: tuple[str, int] | None,
) -> None:
    save(near, *here)
    save(far, *there)
    chosen = choose_checkpoint(near, far, step)
    assert (chosen and (Path(chosen.storage.location).name, chosen.step)) == expected


def test_damage_is_named_whichever_place_it_is_in(near: Storage, far: Storage) -> None:
    save(near, 1)
    save(far, 2)
    far.write("step_000002/model.safetensors", b"not what was saved")
    with pytest.raises(DamagedError, match=r"far/step_000002/model\.safetensors"):
        find(near, far)
    assert committed_steps(near) == [1]
    assert not any("step_000002" in name for name in files_below(Path(near.location)))
    far.write("step_000002/manifest.json", b"{}")
    with pytest.raises(
        DamagedError, match=r"far/step_000002/manifest\.json.*go on from the checkpoint before"
    ):
        find(near, far)
    far.delete(far.list_names())  # as the message says
    assert find(near, far) is not None


def test_a_place_that_cannot_be_listed_is_an_error(near: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    save(near, 1)
    with object_store(monkeypatch) as store:
        far = Storage("s3://bucket/run")
        store.close()
        with pytest.raises(UserError, match="cannot list s3://bucket/run"):
            find(near, far)
        store.open()
        assert find(near, far) is not None


def test_an_earlier_step_makes_the_later_ones_go(
    near: Storage, far: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    save(near, 2, 3, 4)
    save(far, 1, 2, 3)
    found = find(near, far, step=1)
    assert found is not None
    assert found.step == 1
    assert committed_steps(near) == committed_steps(far) == [1]
    assert "deleting the later checkpoints in" in capsys.readouterr().err


def test_later_ones_stay_when_the_earlier_one_is_no_good(near: Storage) -> None:
    save(near, 1, 2)
    near.write("step_000001/model.safetensors", b"not what was saved")
    with pytest.raises(DamagedError, match="step_000001"):
        find(near, None, step=1)
    with pytest.raises(UserError, match=r"no checkpoint of step 7 .* There are: \[1, 2\]"):
        find(near, None, step=7)
    assert committed_steps(near) == [1, 2]


def test_another_run_is_refused_before_it_is_fetched(near: Storage, far: Storage) -> None:
    save(far, 1)
    for change, flag in (
        ({"seed": 5}, "--seed was 0, is 5"),
        ({"depth": 3}, "--depth was 2, is 3"),
        ({"head_dim": 64}, "--head_dim was 128, is 64"),
        ({"architecture": ArchitectureSettings(preset="seed")}, "--preset was cpplm, is seed"),
    ):
        other = dataclasses.replace(SETTINGS, **change)
        with pytest.raises(UserError, match=rf"far holds another run: {flag}\. "):
            find_checkpoint(other, model_config(other, 512), near, PROVENANCE, remote=far)
    with pytest.raises(UserError, match=r"vocab_size of the model was 512, is 600"):
        find_checkpoint(SETTINGS, model_config(SETTINGS, 600), near, PROVENANCE, remote=far)
    with pytest.raises(UserError, match="corpus was cccccccccccc, is dddddddddddd"):
        find_checkpoint(SETTINGS, CONFIG, near, {"corpus": "d" * 64}, remote=far)
    assert files_below(Path(near.location)) == []


def test_a_run_moves_to_another_machine_through_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Path, tokenizer_path: Path
) -> None:
    """And ends with the very weights of the run that stayed."""
    stays = TrainSettings(
        data_dir=(str(corpus),), tokenizer=tokenizer_path, out=tmp_path / "stays", depth=1, aspect_ratio=16,
        head_dim=16, max_seq_len=32, device_batch_size=4, total_batch_size=128, num_iterations=4,
        eval_every=-1, architecture=SMALL_TABLES, save_every=1, no_compile=True,
    )  # fmt: skip
    pretrain(stays)
    moves = dataclasses.replace(stays, out=tmp_path / "moves", upload_dir="s3://bucket/run")
    with object_store(monkeypatch):
        with pytest.raises(KeyboardInterrupt):
            pretrain(moves, [StopAt(2)])
        assert committed_steps(Storage("s3://bucket/run")) == [1, 2]
        moved = dataclasses.replace(moves, out=tmp_path / "moved")
        pretrain(moved)
        assert committed_steps(Storage("s3://bucket/run")) == [3, 4]
    assert [r["step"] for r in records(moved.out, "step")] == [3, 4]
    assert [r["step"] for r in records(moved.out, "checkpoint")] == [3, 4]
    there = load_tensors(open_run(moved.out), "model.safetensors")
    assert all(
        torch.equal(there[name], value)
        for name, value in load_tensors(open_run(stays.out), "model.safetensors").items()
    )
