"""What the trackers wrote, read back by their own readers."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.core.run_log import RunLog
from cpplm.train.tracking import NonFatalTracker, TensorBoardTracker, WandbTracker, make_trackers


def train_and_resume(folder: Path, **asked: object) -> None:
    """Steps 1 to 6 and a measurement of step 2; killed, and continued from step 4 with other figures."""
    for resume, steps, loss in ((None, range(1, 7), 1.0), (4, range(5, 9), 2.0)):
        trackers = make_trackers(folder, "name", settings={"depth": 4}, **asked)  # type: ignore[arg-type]
        with RunLog(folder / "log.jsonl", trackers=trackers, truncate_after_step=resume) as log:
            log.write("session", step=resume or 0)
            for step in steps:
                log.write("step", step=step, loss=loss * step)
                if step == 5:
                    log.write("late", step=2, rate=0.5)
        time.sleep(1)  # wandb names the folder of a session by the second


EXPECTED = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 10.0, 6: 12.0, 7: 14.0, 8: 16.0}


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    train_and_resume(tmp_path, wandb_project="", tensorboard=True)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("step/loss")] == list(EXPECTED.items())
    assert {e.step for e in events.Scalars("late/rate")} == {2}


def wandb_records(path: Path) -> Iterator[bytes]:
    """Records of a .wandb file: LevelDB's log format after a header of 7 bytes, blocks of 32 KiB."""
    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            yield parts
            parts = b""


def wandb_history(folder: Path) -> list[dict[str, object]]:
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="wandb is not installed")
    rows = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in wandb_records(path):
            record = records.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    return rows


@pytest.mark.slow
def test_wandb_keeps_what_comes_late_and_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train_and_resume(tmp_path, wandb_project="project", tensorboard=False)
    rows = wandb_history(tmp_path)
    losses = {row["step"]: row["step/loss"] for row in rows if "step/loss" in row}  # the later one counts
    assert losses == EXPECTED
    assert [row["step"] for row in rows if "late/rate" in row] == [2, 2]
    names = {path.name.split("-")[-1] for path in tmp_path.glob("wandb/offline-run-*")}
    assert names == {(tmp_path / "wandb_run_id").read_text()}  # two sessions, one run


def test_wandb_without_a_key_is_one_clear_line(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    code = (
        "import sys\nfrom pathlib import Path\nfrom cpplm.core.errors import UserError\n"
        "from cpplm.train.tracking import WandbTracker\n"
        "try:\n    WandbTracker('project', 'name', Path(sys.argv[1]), {})\n"
        "except UserError as error:\n    print(error)\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        env={**kept, "HOME": str(tmp_path), "WANDB_BASE_URL": "http://localhost:1"},
    )
    assert result.stdout.startswith("Weights & Biases cannot be used: No API key configured")
    assert "wandb login" in result.stdout


FULL_DISK = """
import resource, sys
from pathlib import Path
from cpplm.train.tracking import make_trackers
(tracker,) = make_trackers(Path(sys.argv[1]), "name", wandb_project="", tensorboard=True, settings={})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for step in range(20_000):
    tracker.log(step, {"step/loss": 1.0})
tracker.close()
print("done")
"""


@pytest.mark.slow
def test_a_full_disk_ends_the_tracking_not_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "done\n", result.stderr
    assert result.stderr.count("warning: TensorBoardTracker failed") == 1


def test_only_what_was_asked_for(tmp_path: Path) -> None:
    assert make_trackers(tmp_path, "name", wandb_project="", tensorboard=False, settings={}) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, make in (
        ("wandb", lambda: WandbTracker("project", "name", tmp_path, {})),
        ("torch.utils.tensorboard", lambda: NonFatalTracker(TensorBoardTracker(tmp_path))),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UserError, match=r"cpplm\[tracking\]"):
            make()
