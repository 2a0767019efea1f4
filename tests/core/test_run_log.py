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


def test_reopening_keeps_everything_but_a_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert read_run_log(path) == []
    write_steps(path, range(3))
    path.write_bytes(path.read_bytes() + b'{"event": "step", "text": "\xc3')
    assert steps_of(path) == [0, 1, 2]
    write_steps(path, range(3, 5))  # appending goes on a new line
    assert steps_of(path) == [0, 1, 2, 3, 4]
    assert all(isinstance(record["time"], float) for record in read_run_log(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize("damage", [b"{broken", b"3", b'{"step": 2}'])
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
