"""Attempts at a run: only the last one writes to its bucket, and a heartbeat says how it is doing."""

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.core.heartbeat import HEARTBEAT
from cpplm.core.lease import FencedError, claim
from cpplm.core.preemption import METADATA_HOST
from cpplm.core.shutdown import ATTEMPT, RUN
from cpplm.core.storage import Storage
from cpplm.train import attempt as attempts
from cpplm.train.attempt import HeartbeatCallback
from cpplm.train.checkpoint.format import committed_steps, open_checkpoint
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback, StepMetrics, Trainer
from tests.commands import assert_one_line_error, cpplm, start_cpplm
from tests.metadata_server import metadata_server
from tests.moto_bucket import moto_bucket


@pytest.fixture(params=["folder", "s3"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """Place of the state of a run, of which attempt 1 was claimed."""
    if request.param == "folder":
        yield Storage(tmp_path / "shared", create=True)
    else:
        with moto_bucket(monkeypatch) as url:
            yield Storage(f"{url}/run")


# In a folder, too, `make test` has a failure, the fence and the end of a machine.
S3_ALONE = pytest.mark.parametrize(
    "run", ["s3", pytest.param("folder", marks=pytest.mark.slow)], indirect=True
)


def uploading(settings: TrainSettings, run: Storage, **more: Any) -> TrainSettings:
    changes = {"eval_every": -1, "save_every": 2, "keep_last": 8, "heartbeat_seconds": 0.05}
    return dataclasses.replace(settings, upload_dir=run.location, **{**changes, **more})


def begin_attempt(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPT, str(claim(run, "test", time.time()).attempt))


class CallAt(Callback):
    """Calls a function after a step, and waits until it shows."""

    def __init__(self, step: int, function: Any, wait: float = 0.0) -> None:
        self._step, self._function, self._wait = step, function, wait

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        if trainer.state.step == self._step:
            self._function()
            time.sleep(self._wait)


# ---- heartbeats -------------------------------------------------------------------------------------------


@S3_ALONE
def test_an_attempt_says_how_far_it_came(
    run: Storage, settings: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt(run, monkeypatch)
    seen: list[dict[str, Any]] = []
    look = CallAt(4, lambda: (time.sleep(0.4), seen.append(run.read_json(HEARTBEAT))))
    pretrain(uploading(settings, run), [look])
    last = run.read_json(HEARTBEAT)
    assert seen[0]["state"] == "training"
    assert seen[0]["step"] in (3, 4)  # ours is called first
    assert (last["attempt"], last["step"], last["state"], last["message"]) == (1, 8, "done", "")
    assert 0 < last["loss"] < 20
    assert last["tokens_per_second"] > 0
    assert abs(last["time"] - time.time()) < 60
    assert committed_steps(run) == [2, 4, 6, 8]


def test_who_uploads_to_a_bucket_has_a_heartbeat_and_others_have_none(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with moto_bucket(monkeypatch) as url:
        pretrain(uploading(settings, Storage(f"{url}/run"), num_iterations=2))
        beat = Storage(f"{url}/run").read_json(HEARTBEAT)
    assert (beat["attempt"], beat["state"]) == (0, "done")
    folder = Storage(tmp_path / "elsewhere", create=True)
    pretrain(uploading(settings, folder, out=tmp_path / "other", num_iterations=2))
    assert committed_steps(folder) == [2]
    assert not folder.exists(HEARTBEAT)


def test_a_failure_is_said(run: Storage, settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise UserError("the disk is full")

    begin_attempt(run, monkeypatch)
    with pytest.raises(UserError):
        pretrain(uploading(settings, run), [CallAt(3, fail)])
    beat = run.read_json(HEARTBEAT)
    assert (beat["state"], beat["message"], beat["step"]) == ("failed", "the disk is full", 3)


class SlowStorage(Storage):
    """Writes nothing before `free` is set; counts."""

    def __init__(self) -> None:
        self.free, self.written = threading.Event(), list[Any]()

    def write_json(self, name: str, value: Any) -> None:
        self.free.wait()
        self.written.append(value)


def test_a_bucket_that_hangs_delays_neither_steps_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_LAST_SECONDS", 0.2)
    storage = SlowStorage()
    heartbeat = HeartbeatCallback(storage, 1, 0.01)
    begin = time.monotonic()
    for step in range(1000):
        heartbeat.update("training", step=step)
    heartbeat.close("done")
    assert time.monotonic() - begin < 5
    assert storage.written == []
    storage.free.set()
    heartbeat._thread.join(5)
    assert [(value["state"], value["step"]) for value in storage.written] == [("setup", 0), ("done", 999)]


def test_heartbeats_are_at_most_one_in_so_many_seconds() -> None:
    storage = SlowStorage()
    storage.free.set()
    heartbeat = HeartbeatCallback(storage, 1, 0.2)
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        heartbeat.update("training", step=1)
    heartbeat.close("done")
    assert 3 <= len(storage.written) <= 5
    assert [value["state"] for value in storage.written][-2:] == ["training", "done"]


def test_a_heartbeat_that_cannot_be_written_is_said_once_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / HEARTBEAT).mkdir()
    heartbeat = HeartbeatCallback(Storage(tmp_path), 1, 0.01)
    time.sleep(0.2)
    (tmp_path / HEARTBEAT).rmdir()
    heartbeat.close("done")
    assert json.loads((tmp_path / HEARTBEAT).read_text())["state"] == "done"
    assert capsys.readouterr().err.count("no heartbeat, trying again") == 1


# ---- fencing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "heartbeat_seconds", "steps"),
    [
        ("s3", 0.05, 1000),
        ("folder", 3600.0, 8),
        pytest.param("folder", 0.05, 1000, marks=pytest.mark.slow),
        pytest.param("s3", 3600.0, 8, marks=pytest.mark.slow),
    ],
    indirect=["run"],
)
def test_an_attempt_that_was_taken_over_stops_and_commits_nothing_more(
    run: Storage,
    heartbeat_seconds: float,
    steps: int,
    settings: TrainSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heartbeat finds the fence, or else the upload of step 4; what the next attempt wrote stays."""
    begin_attempt(run, monkeypatch)

    def take_over() -> None:
        while 2 not in committed_steps(run):
            time.sleep(0.01)
        claim(run, "another", time.time())
        time.sleep(0.3)  # the heartbeat that was on its way arrives
        run.write_json(HEARTBEAT, {"attempt": 2})

    more = {"num_iterations": steps, "heartbeat_seconds": heartbeat_seconds}
    with pytest.raises(FencedError, match=r"attempt 1 .* is over"):
        pretrain(uploading(settings, run, **more), [CallAt(3, take_over, wait=0.3)])
    assert committed_steps(run) == [2]
    open_checkpoint(run, 2).verify()
    assert run.read_json(HEARTBEAT) == {"attempt": 2}
    assert [name for name in run.list_names() if name.startswith("step_000004")] == []


@S3_ALONE
def test_the_next_attempt_goes_on_from_what_is_committed(
    run: Storage, settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt(run, monkeypatch)
    pretrain(uploading(settings, run, num_iterations=2))
    begin_attempt(run, monkeypatch)
    summary = pretrain(uploading(settings, run, num_iterations=4, out=tmp_path / "next machine"))
    assert summary.step == 4
    assert committed_steps(run) == [2, 4]
    monkeypatch.setenv(ATTEMPT, "1")  # the machine of the first comes back
    before = {name: run.read(name) for name in run.list_names()}
    with pytest.raises(FencedError):
        pretrain(uploading(settings, run, num_iterations=6))
    assert {name: run.read(name) for name in run.list_names()} == before


def test_a_trained_run_says_so_again(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Storage(tmp_path / "shared", create=True)
    for machine in ("first", "second"):
        begin_attempt(run, monkeypatch)
        pretrain(uploading(settings, run, num_iterations=2, out=tmp_path / machine))
        beat = run.read_json(HEARTBEAT)
        assert (beat["state"], beat["step"]) == ("done", 2)


def test_a_run_whose_last_checkpoint_is_not_uploaded_is_not_done(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine would be deleted, and the checkpoint with it."""
    run = Storage(tmp_path / "shared", create=True)
    begin_attempt(run, monkeypatch)
    monkeypatch.setattr("cpplm.train.checkpoint.upload.EXIT_LIMIT", 0.5)

    def fail(*arguments: object) -> None:
        raise UserError("the bucket is down")

    monkeypatch.setattr("cpplm.train.checkpoint.upload.copy_checkpoint", fail)
    with pytest.raises(UserError, match="the checkpoint of step 8 is not uploaded"):
        pretrain(uploading(settings, run))
    beat = run.read_json(HEARTBEAT)
    assert (beat["state"], beat["message"].split(".")[0]) == (
        "failed", "the checkpoint of step 8 is not uploaded")  # fmt: skip
    monkeypatch.delenv(ATTEMPT)
    pretrain(uploading(settings, run))  # without an attempt the disk stays, and the next session uploads


def test_the_command_line_says_in_one_line_that_it_was_taken_over(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Storage(tmp_path / "shared", create=True)
    begin_attempt(run, monkeypatch)
    claim(run, "another", time.time())
    assert_one_line_error(
        cpplm("train", *flags(settings, run)), "attempt 1 of", "attempt 2 has taken it over"
    )


@pytest.mark.parametrize(("number", "said"), [("x", "CPPLM_ATTEMPT=x is no number"), ("3", "no such file")])
def test_an_attempt_that_nobody_claimed_is_refused(
    number: str, said: str, settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ATTEMPT, number)
    monkeypatch.setenv(RUN, str(tmp_path))
    with pytest.raises(UserError, match=said):
        pretrain(settings)


@pytest.mark.slow
def test_a_machine_that_wakes_up_after_it_was_given_up_ends(
    settings: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped for as long as another attempt takes to begin; it says so in its last line.

    Of each of its two threads that write, the request that was on its way may arrive.
    """
    with moto_bucket(monkeypatch) as url:
        run = Storage(f"{url}/run")
        begin_attempt(run, monkeypatch)
        process = start_cpplm("train", *flags(settings, run), "--save_every", 5, "--keep_last", 100)
        while not committed_steps(run):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # what was on its way has arrived
        claim(run, "another machine", time.time())
        before = {name: run.read(name) for name in run.list_names()}
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=300)
        after = {name: run.read(name) for name in run.list_names()}
        assert before.keys() <= after.keys()
        assert sum(after[name] != before.get(name) for name in after) <= 2
        for step in committed_steps(run):
            open_checkpoint(run, step).verify()
    assert process.returncode == 2, said
    assert said.splitlines()[-1].startswith(
        "cpplm: attempt 1 of s3://runs/run is over: attempt 2 has taken it"
    )


# ---- preemption -------------------------------------------------------------------------------------------


def flags(settings: TrainSettings, run: Storage) -> list[object]:
    return [
        settings.data_dir[0], "--tokenizer", settings.tokenizer, "--out", settings.out, "--upload_dir",
        run.location, "--depth", 2, "--aspect_ratio", 16, "--head_dim", 16, "--max_seq_len", 32,
        "--device_batch_size", 4, "--total_batch_size", 256, "--num_iterations", 100000, "--eval_every", -1,
        "--sample_every", -1, "--engram_table_size", 200, "--no_compile", "--heartbeat_seconds", 0.1,
    ]  # fmt: skip


@pytest.mark.parametrize("notice", [pytest.param("signal", marks=pytest.mark.slow), "metadata server"])
def test_what_takes_the_machine_away_ends_the_step_saves_and_exits_with_75(
    notice: str, settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Storage(tmp_path / "shared", create=True)
    begin_attempt(run, monkeypatch)
    with metadata_server() as server:
        monkeypatch.setenv(METADATA_HOST, server.host)
        process = start_cpplm("train", *flags(settings, run))
        while not (run.exists(HEARTBEAT) and run.read_json(HEARTBEAT)["step"] > 2):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        if notice == "signal":
            process.send_signal(signal.SIGTERM)
        else:
            server.set("instance/preempted", "TRUE")
        _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    beat = run.read_json(HEARTBEAT)
    assert beat["state"] == "preempted"
    assert committed_steps(run)[-1] == beat["step"] > 2
    assert f"interrupted after step {beat['step']}" in said
    assert ("is about to be taken away" in said) == (notice != "signal")


@pytest.mark.slow
def test_a_signal_before_the_first_step_exits_with_75_too(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Storage(tmp_path / "shared", create=True)
    begin_attempt(run, monkeypatch)
    process = start_cpplm("train", *flags(settings, run))
    while not run.exists(HEARTBEAT):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert committed_steps(run) == []
