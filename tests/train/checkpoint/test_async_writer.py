"""Saving in the background: what was handed over, whatever training does meanwhile; failures end nothing."""

import threading
from pathlib import Path

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.train.checkpoint import async_writer as writer_module
from cpplm.train.checkpoint import save
from cpplm.train.checkpoint.async_writer import CheckpointWriter
from cpplm.train.checkpoint.format import committed_steps, open_checkpoint
from cpplm.train.checkpoint.save import RankShard, RetentionPolicy, count_files
from cpplm.train.checkpoint.weights import load_tensors
from tests.train.checkpoints import FILES, assert_all_whole, assert_whole, tensors


class SlowStorage:
    """Lets the writes of a storage wait at a gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.arrived = threading.Event()
        real = Storage.open_write

        def writing(storage: Storage, name: str) -> object:
            self.arrived.set()
            assert self.gate.wait(20)
            return real(storage, name)

        monkeypatch.setattr(Storage, "open_write", writing)


def hand_over(writer: CheckpointWriter, step: int) -> None:
    writer.save(step, tensors(step), FILES)


def test_what_changes_after_save_is_not_saved(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowStorage(monkeypatch)
    weight = torch.arange(6.0)
    with CheckpointWriter(storage, RetentionPolicy(2)) as writer:
        for step in (1, 2):
            slow.gate.clear()
            writer.save(step, {"model.safetensors": {"w": weight}}, FILES)
            weight += 100  # while nothing is written yet
            assert committed_steps(storage) == list(range(1, step))
            slow.gate.set()
            writer.wait()
    for step in (1, 2):
        saved = load_tensors(open_checkpoint(storage, step), "model.safetensors")["w"]
        assert torch.equal(saved, torch.arange(6.0) + 100 * (step - 1))


def test_training_goes_on_while_it_writes_and_the_second_save_waits(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, real = SlowStorage(monkeypatch), writer_module.log_info

    def log_info(text: str) -> None:
        real(text)
        threading.Timer(0.2, slow.gate.set).start()

    with CheckpointWriter(storage, RetentionPolicy(5)) as writer:
        hand_over(writer, 1)
        assert slow.arrived.wait(20)  # and we are here
        monkeypatch.setattr(writer_module, "log_info", log_info)
        hand_over(writer, 2)
        assert slow.gate.is_set()
        assert committed_steps(storage)[:1] == [1]
    assert "step 2: waiting until the checkpoint of step 1 is written" in capsys.readouterr().err
    assert committed_steps(storage) == [1, 2]
    assert_all_whole(storage)


def test_events_and_rules(storage: Storage) -> None:
    with CheckpointWriter(storage, RetentionPolicy(1, every=2)) as writer:
        for step in (1, 2, 3, 4, 5):
            hand_over(writer, step)
        writer.wait()
        events = writer.events()
        assert writer.events() == []
    assert [(name, values["step"]) for name, values in events] == [("checkpoint", n) for n in range(1, 6)]
    assert events[4][1]["bytes"] == open_checkpoint(storage).size
    assert events[4][1]["path"] == open_checkpoint(storage).path()
    assert events[4][1]["write_seconds"] > 0
    assert committed_steps(storage) == [2, 4, 5]


# ---- failures ---------------------------------------------------------------------------------------------


def test_a_failed_save_is_said_and_the_next_one_is_tried(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    with CheckpointWriter(storage, RetentionPolicy(3)) as writer:
        hand_over(writer, 1)
        writer.wait()
        Path(storage.location, "step_000002").write_text("in the way")
        hand_over(writer, 2)
        writer.join()
        with pytest.raises(UserError, match="step_000002"):
            writer.wait()
        assert committed_steps(storage) == [1]
        hand_over(writer, 3)
    assert "step 2: the checkpoint was not saved: cannot " in capsys.readouterr().err
    assert [name for name, _ in writer.events()] == ["checkpoint", "checkpoint_failed", "checkpoint"]
    assert committed_steps(storage) == [1, 3]
    assert_all_whole(storage)


def test_an_error_of_the_run_is_not_hidden_and_waits_for_the_save(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowStorage(monkeypatch)
    with pytest.raises(ZeroDivisionError), CheckpointWriter(storage, RetentionPolicy(1)) as writer:
        hand_over(writer, 1)
        threading.Timer(0.2, slow.gate.set).start()
        raise ZeroDivisionError
    assert_whole(open_checkpoint(storage))


def save_together(writers: list[CheckpointWriter], step: int) -> None:
    """Each its own tensors, as the ranks of a run do."""
    for writer in writers:
        writer.wait_for_previous(step)
    writers[0].clear_partial(step)
    shares = [{"model.safetensors": {f"w{n}": torch.full((4,), step)}} for n in range(len(writers))]
    counts = [count_files(shard) for shard in shares]
    for process, (writer, shard) in enumerate(zip(writers, shares, strict=True)):
        writer.save(step, shard, {} if process else FILES, RankShard(process, counts, f"step {step}"))
    for writer in writers:
        writer.join()


def test_what_several_could_not_save_is_gone_with_the_next_save(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Storage.open_write

    def full(storage: Storage, name: str) -> object:
        if name.endswith("3/model-00002-of-00003.safetensors"):
            raise UserError(f"cannot write {name}")
        return real(storage, name)

    writers = [CheckpointWriter(storage, RetentionPolicy(2)) for _ in range(3)]
    save_together(writers, 1)
    save_together(writers, 2)
    monkeypatch.setattr(Storage, "open_write", full)
    save_together(writers, 3)
    for writer in writers[:2]:
        with pytest.raises(UserError, match="model-00002-of-00003"):
            writer.wait()
    writers[2].wait()  # its share is written
    left = [name.split("/")[1] for name in storage.list_names("step_000003")]
    assert [name for name in left if not name.startswith("written-")] == ["model-00003-of-00003.safetensors"]
    assert committed_steps(storage) == [1, 2]
    monkeypatch.undo()
    save_together(writers, 3)
    assert committed_steps(storage) == [2, 3]
    assert {name.split("/")[0] for name in storage.list_names()} == {"step_000002", "step_000003"}
    found = open_checkpoint(storage)
    assert len(storage.list_names("step_000003")) == len(found.files) + 1
    assert {name: value.tolist() for name, value in load_tensors(found, "model.safetensors").items()} == {
        f"w{n}": [3] * 4 for n in range(3)
    }
    events = [name for name, _ in writers[0].events()]
    assert events == ["checkpoint", "checkpoint", "checkpoint_failed", "checkpoint"]


def test_after_an_error_others_are_not_waited_for_long(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have been killed."""
    monkeypatch.setattr(save, "LAST_PATIENCE", 0.2)
    shard = {"model.safetensors": {"w": torch.zeros(4)}}
    with pytest.raises(ZeroDivisionError), CheckpointWriter(storage, RetentionPolicy(1)) as writer:
        writer.save(1, shard, FILES, RankShard(0, [count_files(shard)] * 2, "token"))
        raise ZeroDivisionError
    assert "process 1 has not written its share" in writer.events()[0][1]["error"]
    assert storage.list_names() == []
