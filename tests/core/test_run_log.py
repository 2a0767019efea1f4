import json
import math
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.core.run_log import RunLog, read_run_log


class RecordingTracker:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def log(self, step: int, values: dict[str, float]) -> None:
        self.logged.append((step, values))

    def close(self) -> None:
        self.closed += 1


def write_steps(path: Path, steps: range) -> None:
    with RunLog(path) as log:
        for step in steps:
            log.write("step", step=step, loss=1.0 / (step + 1))


def steps_of(path: Path) -> list[int]:
    return [record["step"] for record in read_run_log(path)]


def test_records_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "log.jsonl"
    with RunLog(path) as log:
        log.write("session", settings={"out": "ä\u2028\n"}, step=0)
        log.write("note", text="no step")
    records = read_run_log(path)
    assert [record["event"] for record in records] == ["session", "note"]
    assert records[0]["settings"] == {"out": "ä\u2028\n"}
    assert all(isinstance(record["time"], float) for record in records)
    assert len(path.read_bytes().splitlines()) == 2


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert read_run_log(tmp_path / "gone.jsonl") == []


def test_each_record_is_there_before_the_log_is_closed(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    for step in range(3):
        log.write("step", step=step)
        assert steps_of(tmp_path / "log.jsonl") == list(range(step + 1))
    log.close()


@pytest.mark.parametrize(
    "torn", [b"{", b'{"event": "step", "step": 3', b'{"event": "step", "text": "\xc3', b"\xff"]
)
def test_a_torn_last_line_is_dropped(torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write_steps(path, range(3))
    path.write_bytes(path.read_bytes() + torn)
    assert steps_of(path) == [0, 1, 2]
    write_steps(path, range(3, 5))  # appending goes on a new line
    assert steps_of(path) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "damage", [b"{broken", b"", b"3", b"[1]", b"null", b'{"step": 2}', b'{"text": "\xff"}']
)
def test_damage_in_the_middle_is_named_with_its_line(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write_steps(path, range(4))
    lines = path.read_bytes().splitlines()
    lines[2] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    before = path.read_bytes()
    for use in (read_run_log, RunLog):
        with pytest.raises(UserError, match=r"log\.jsonl:3 .*Remove that line\."):
            use(path)
    assert path.read_bytes() == before


def test_a_resumed_run_cuts_what_lies_after_its_step(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        log.write("session", step=0)
        log.write("note")
    write_steps(path, range(1, 8))
    with RunLog(path, truncate_after_step=4) as log:
        log.write("session", step=4)
        log.write("step", step=5)
    records = read_run_log(path)
    assert [(record["event"], record.get("step")) for record in records] == [
        ("session", 0), ("note", None), ("step", 1), ("step", 2), ("step", 3), ("step", 4), ("session", 4),
        ("step", 5),
    ]  # fmt: skip


def test_reopening_without_a_step_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write_steps(path, range(5))
    before = path.read_bytes()
    RunLog(path).close()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_log_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="file"):
        RunLog(tmp_path / "file" / "log.jsonl")


def test_trackers_get_the_numbers_of_records_with_a_step(tmp_path: Path) -> None:
    first, second = RecordingTracker(), RecordingTracker()
    with RunLog(tmp_path / "log.jsonl", trackers=(first, second)) as log:
        log.write("session", step=0, settings={"depth": 4}, name="x")
        log.write("step", step=1, loss=2.5, tokens=4096, text="no number", missing=None)
        log.write("note", figure=3.0)
        assert (first.closed, second.closed) == (0, 0)
    assert first.logged == [(0, {}), (1, {"step/loss": 2.5, "step/tokens": 4096.0})]
    assert second.logged == first.logged
    assert (first.closed, second.closed) == (1, 1)


def test_trackers_are_closed_when_the_run_fails(tmp_path: Path) -> None:
    tracker = RecordingTracker()
    with pytest.raises(ZeroDivisionError), RunLog(tmp_path / "log.jsonl", trackers=(tracker,)) as log:
        log.write("step", step=1, loss=math.inf)
        raise ZeroDivisionError
    assert tracker.closed == 1
    assert steps_of(tmp_path / "log.jsonl") == [1]


def test_a_line_is_plain_json_for_other_programs(tmp_path: Path) -> None:
    write_steps(tmp_path / "log.jsonl", range(1))
    (line,) = (tmp_path / "log.jsonl").read_text(encoding="ascii").splitlines()
    assert json.loads(line)["event"] == "step"
