"""Uploads: in order, for as long as it takes, to an object store that goes down and comes back."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpplm.core.storage import Storage
from cpplm.train.checkpoint import upload
from cpplm.train.checkpoint.async_writer import CheckpointWriter
from cpplm.train.checkpoint.format import committed_steps
from cpplm.train.checkpoint.save import RetentionPolicy
from cpplm.train.checkpoint.upload import Uploader, missing_steps
from tests.object_store import ObjectStore, object_store
from tests.train.checkpoints import FILES, assert_all_whole, save, tensors

URL = "s3://bucket/run"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("EXIT_LIMIT", 10), ("FIRST_PAUSE", 0.05), ("LONGEST_PAUSE", 0.2)):
        monkeypatch.setattr(upload, name, seconds)


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "local", create=True)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store(monkeypatch) as store:
        yield store


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def completed_steps(store: ObjectStore) -> list[int]:
    """In the order in which their manifests arrived."""
    manifests = [name for name in store.completed if name.endswith("/manifest.json")]
    return [int(name.split("_")[1].split("/")[0]) for name in manifests]


def hand_over(writer: CheckpointWriter, step: int) -> None:
    writer.save(step, tensors(step), FILES)


def test_every_checkpoint_is_uploaded_in_order_by_the_same_rules(local: Storage, store: ObjectStore) -> None:
    retention = RetentionPolicy(2, every=3)
    uploader = Uploader(local, Storage(URL), retention)
    with CheckpointWriter(local, retention, uploader=uploader) as writer:
        for step in range(1, 8):
            hand_over(writer, step)
            writer.join()
            until(lambda: not uploader.pending())
    events = writer.events()
    assert completed_steps(store) == list(range(1, 8))
    for manifest in (index for index, name in enumerate(store.completed) if name.endswith("manifest.json")):
        ours = store.completed[manifest].rpartition("/")[0]
        assert all(name.rpartition("/")[0] != ours for name in store.completed[manifest + 1 :])
    assert committed_steps(Storage(URL)) == committed_steps(local) == [3, 6, 7]
    assert_all_whole(Storage(URL))
    uploads = [values for name, values in events if name == "upload"]
    assert [values["step"] for values in uploads] == list(range(1, 8))
    assert all(values["attempts"] == 1 for values in uploads)
    assert uploads[-1]["path"] == f"{URL}/step_000007"


def test_a_target_that_is_down_delays_uploads_only(
    local: Storage, store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    retention = RetentionPolicy(1, every=4)
    uploader = Uploader(local, Storage(URL), retention)
    with CheckpointWriter(local, retention, uploader=uploader) as writer:
        hand_over(writer, 1)
        until(lambda: completed_steps(store) == [1] and not uploader.pending())
        store.close()
        for step in range(2, 9):
            begin = time.perf_counter()
            hand_over(writer, step)
            writer.wait()
            assert time.perf_counter() - begin < 30  # training goes on, though the target stays down
        until(lambda: "upload_failed" in [name for name, _ in writer.events()])
        # 2 is being uploaded, 4 and 8 stay for ever, 6 and 7 are the newest that wait
        assert uploader.pending() == [2, 4, 6, 7, 8]
        assert committed_steps(local) == [2, 4, 6, 7, 8]
        store.open()
    assert completed_steps(store) == [1, 2, 4, 6, 7, 8]
    assert committed_steps(Storage(URL)) == committed_steps(local) == [4, 8]
    assert_all_whole(Storage(URL))
    said = capsys.readouterr().err
    assert said.count("step 2: upload failed, trying again") == 1
    assert "step 2: uploaded to s3://bucket/run/step_000002 after" in said
    assert "step 3: not uploaded to s3://bucket/run, newer checkpoints wait" in said
    assert "step 5: not uploaded" in said


def test_at_the_end_what_is_not_uploaded_is_said_and_kept_for_the_next_session(
    local: Storage, store: ObjectStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    retention = RetentionPolicy(1)
    remote = Storage(URL)
    store.close()
    monkeypatch.setattr(upload, "EXIT_LIMIT", 0.5)
    uploader = Uploader(local, remote, retention)
    with CheckpointWriter(local, retention, uploader=uploader) as writer:
        for step in (1, 2, 3):
            hand_over(writer, step)
    uploader._thread.join()  # its last attempt
    said = capsys.readouterr().err
    assert "uploading the checkpoints of step 1, 2, 3 to s3://bucket/run, for at most 0 s" in said
    assert "not uploaded: the checkpoints of step 1, 2, 3; kept in" in said
    assert committed_steps(local) == [1, 2, 3]
    store.open()
    assert missing_steps(local, remote, retention) == [1, 2, 3]
    monkeypatch.setattr(upload, "EXIT_LIMIT", 10)
    uploader = Uploader(local, remote, retention, missing=[1, 2, 3])
    with CheckpointWriter(local, retention, uploader=uploader):
        pass
    assert completed_steps(store) == [1, 2, 3]
    assert committed_steps(remote) == committed_steps(local) == [3]
    assert missing_steps(local, remote, retention) == []


def test_missing_steps(local: Storage, tmp_path: Path) -> None:
    remote = Storage(tmp_path / "remote", create=True)
    assert missing_steps(local, remote, RetentionPolicy(1)) == []
    save(local, 5, 10, 12, 20, 21)
    save(remote, 12)
    assert missing_steps(local, remote, RetentionPolicy(1)) == [20, 21]
    assert missing_steps(local, remote, RetentionPolicy(1, every=10)) == [10, 20, 21]


def test_a_damaged_checkpoint_is_passed_over(
    local: Storage, store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    save(local, 1, 2)
    local.write("step_000001/state.json", b'{"step": 7}\n')
    uploader = Uploader(local, Storage(URL), RetentionPolicy(5), missing=[1, 2])
    assert uploader.close() == []
    assert committed_steps(Storage(URL)) == [2]
    assert not any("step_000001" in name for name in store.objects)
    told = [uploader.events.get() for _ in range(uploader.events.qsize())]
    assert [(name, values["step"]) for name, values in told] == [("upload_skipped", 1), ("upload", 2)]
    assert "step 1: not uploaded" in capsys.readouterr().err


AT_EXIT = """
import sys
from cpplm.core.storage import Storage
from cpplm.train.checkpoint.save import RetentionPolicy
from cpplm.train.checkpoint import upload
from cpplm.train.checkpoint.async_writer import CheckpointWriter
local = Storage(sys.argv[1])
remote, upload.EXIT_LIMIT = Storage("s3://bucket/run"), float(sys.argv[2])
uploader = upload.Uploader(local, remote, RetentionPolicy(1), missing=[1])
with CheckpointWriter(local, RetentionPolicy(1), uploader=uploader):
    print("waiting", flush=True)
print("end", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, True])
def test_the_process_ends_though_the_target_does_not_answer(
    local: Storage, store: ObjectStore, interrupted: bool
) -> None:
    save(local, 1)
    store.stalled = True
    process = subprocess.Popen(
        [sys.executable, "-c", AT_EXIT, local.location, "100" if interrupted else "0.5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    if interrupted:
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == (-signal.SIGINT if interrupted else 0), err
    assert out == ("" if interrupted else "end\n")
    assert "for at most" in err
    assert "Fatal" not in err
    assert "panicked" not in err
