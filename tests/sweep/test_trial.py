"""The process of a trial: its status, why it failed, and its log while it grows."""

from pathlib import Path

import pytest

from cpplm.core.appended_lines import AppendedLines
from cpplm.core.lease import FencedError
from cpplm.core.run_log import RunLog
from cpplm.sweep.trial import failure_reason, new_records, run_trial


def test_a_trial_that_fails_says_why(tmp_path: Path) -> None:
    arguments = ["train", "nowhere", "--tokenizer", "cpp-32k", "--out", str(tmp_path)]
    status = run_trial(arguments, tmp_path, lambda records: False)
    assert status == 2
    assert failure_reason(status, tmp_path) == "no such folder or file: nowhere. Check the path."


def test_a_trial_of_another_worker_is_killed(tmp_path: Path) -> None:
    def watch(records: object) -> bool:
        raise FencedError("another attempt")

    with pytest.raises(FencedError):
        run_trial(["doctor"], tmp_path, watch)
    assert (tmp_path / "output.txt").read_text() == ""  # before it could say anything


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("50 %\r60 %\rTraceback:\n  x\ntorch.OutOfMemoryError: no room\n", "torch.OutOfMemoryError: no room"),
        ("cpplm: the loss is \x1b[2Jnan\nbye\n", "the loss is [2Jnan"),
        ("", "exit status 1"),
    ],
)
def test_reasons(output: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text(output)
    assert failure_reason(1, tmp_path) == reason


def test_the_tail_of_a_log_that_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail = AppendedLines(path)
    assert new_records(tail) == []
    with RunLog(path) as log:
        for step in (1, 2, 3):
            log.write("step", step=step)
            assert [record["step"] for record in new_records(tail)] == [step]
    with path.open("a") as file:
        file.write('{"event": "st')  # killed
    assert new_records(tail) == []
    with RunLog(path, truncate_after_step=2) as log:
        log.write("step", step=3)
        assert [record["step"] for record in new_records(tail)] == [1, 2, 3]
        log.write("step", step=4)
        assert [record["step"] for record in new_records(tail)] == [4]
