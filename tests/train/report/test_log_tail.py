"""A log read while it grows: as the whole log would be read, or thinned without losing what matters."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cpplm.core import appended_lines
from cpplm.train.report.compare import compare, comparison_charts
from cpplm.train.report.curves import run_charts
from cpplm.train.report.log_reader import RunHistory, headline_figures
from cpplm.train.report.log_tail import MAX_BINS, LogTail
from tests.train.report.test_log_reader import session, steps, validation, write_log


def lines(*records: Any) -> bytes:
    flat = [one for each in records for one in (each if isinstance(each, list) else [each])]
    return "".join(json.dumps(record) + "\n" for record in flat).encode()


def append(folder: Path, text: bytes) -> None:
    with (folder / "log.jsonl").open("ab") as file:
        file.write(text)


def steps_of(tail: LogTail) -> list[int]:
    return [record["step"] for record in tail.history(tail.path.parent, lambda _: True).steps]


def test_a_log_of_few_steps_is_read_as_a_whole_one(tmp_path: Path) -> None:
    records = [
        session(0, 0), validation(0.5, 0, 3.0), *steps(0, 1, 9), validation(9, 9, 1.5),
        session(1000, 7, log_reached=9), *steps(1000, 8, 10),
        {"event": "end", "time": 1010, "step": 10, "reason": "failed"},
    ]  # fmt: skip
    whole = RunHistory(write_log(tmp_path, records))
    tail = LogTail(tmp_path / "log.jsonl")
    assert tail.poll()
    read = tail.history(tmp_path, lambda _: False)
    assert [each.ended for each in read.sessions] == [each.ended for each in whole.sessions]
    assert headline_figures(read) == headline_figures(whole)
    assert run_charts(read) == run_charts(whole)
    assert comparison_charts([read], ["x"]) == comparison_charts([whole], ["x"])
    assert compare([read, read]).rows() == compare([whole, whole]).rows()


def test_only_what_was_appended_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []
    take = LogTail._take
    monkeypatch.setattr(LogTail, "_take", lambda tail, text: (taken.append(text), take(tail, text)))
    tail = LogTail(write_log(tmp_path, [session(0, 0), *steps(0, 1, 4)]) / "log.jsonl")
    assert tail.poll()
    taken.clear()
    assert not tail.poll()
    new = lines(steps(0, 5, 6))
    append(tmp_path, new[:-20])
    assert tail.poll()
    assert steps_of(tail) == [1, 2, 3, 4, 5]  # the sixth is half-written
    append(tmp_path, new[-20:])
    assert tail.poll()
    assert steps_of(tail) == [1, 2, 3, 4, 5, 6]
    assert b"".join(taken) == new


def test_a_log_that_is_replaced_cut_or_rewritten_is_read_anew(tmp_path: Path) -> None:
    tail = LogTail(write_log(tmp_path, [session(0, 0), *steps(0, 1, 6)]) / "log.jsonl")
    tail.poll()
    resumed = lines(session(0, 0), steps(0, 1, 4), session(99, 4), steps(99, 5, 9))
    (tmp_path / "new").write_bytes(resumed)
    (tmp_path / "new").replace(tmp_path / "log.jsonl")
    assert tail.poll()
    assert steps_of(tail) == list(range(1, 10))
    os.truncate(tmp_path / "log.jsonl", len(lines(session(0, 0), steps(0, 1, 2))))
    assert tail.poll()
    assert steps_of(tail) == [1, 2]
    (tmp_path / "log.jsonl").write_bytes(lines(session(7, 0), steps(7, 1, 8)))  # the same file, longer
    assert tail.poll()
    assert steps_of(tail) == list(range(1, 9))


def test_a_long_log_is_thinned_and_keeps_spikes_means_and_ends(tmp_path: Path) -> None:
    number = 10 * MAX_BINS + 77
    all_steps = steps(0, 1, number, of=number)
    for place, record in enumerate(all_steps):
        record["loss"] = round(3 + (place * 0.618) % 1, 5)
    all_steps[1234]["loss"], all_steps[1500]["gradient_norm"] = 77.0, 55.0
    best = [validation(step, step, 2.0 - (step == 700)) for step in range(1, number, 3)]
    records = sorted([*all_steps, *best], key=lambda record: record["step"])
    whole = RunHistory(write_log(tmp_path, [session(0, 0), *records]))
    tail = LogTail(tmp_path / "log.jsonl")
    tail.poll()
    read = tail.history(tmp_path, lambda _: False)
    assert len(read.steps) < 7 * MAX_BINS < number
    assert len(read.averaged_steps) <= MAX_BINS
    charts = {chart["title"]: chart["series"] for chart in run_charts(read)}
    assert max(charts["Loss"][0]["y"]) == 77
    assert max(charts["Gradient norm"][0]["y"]) == 55
    assert max(len(line["y"]) for series in charts.values() for line in series) <= read.max_points
    figures, exact = headline_figures(read), headline_figures(whole)
    assert figures["loss"] == pytest.approx(exact["loss"], rel=0.02)
    for name in ("step", "best_bits_per_byte", "best_step", "wall_seconds", "tokens", "state"):
        assert figures[name] == exact[name]
    mean = sum(record["loss"] for record in all_steps) / number
    weights = [min(read.steps_per_record, number - i) for i in range(0, number, read.steps_per_record)]
    means = [record["loss"] * weight for record, weight in zip(read.averaged_steps, weights, strict=True)]
    assert sum(means) / number == pytest.approx(mean)


def test_what_is_no_record_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appended_lines, "MAX_LINE", 20_000)
    rollouts = [
        {"event": "rollouts", "time": 2, "step": 2, "solved": solved, "examples": ["x" * size]}
        for solved, size in ((0.25, 9000), (0.5, 18_000), (0.75, 30_000))
    ]
    torn = b'{"event": "step", "time": 1, \n{"event": "session"'
    good = lines(session(0, 0), rollouts, steps(0, 1, 3))
    append(tmp_path, b"\x00\xff\n[]\n" + lines("x" * 30_000) + good + torn)
    tail = LogTail(tmp_path / "log.jsonl")
    assert tail.poll()
    history = tail.history(tmp_path, lambda _: False)
    assert [record["step"] for record in history.steps] == [1, 2, 3]
    assert [record["solved"] for record in history.events("rollouts")] == [0.25]


def test_links_and_pipes_are_no_logs(tmp_path: Path) -> None:
    write_log(tmp_path / "secret", [session(0, 0)])
    (tmp_path / "linked").symlink_to(tmp_path / "secret" / "log.jsonl")
    os.mkfifo(tmp_path / "pipe")
    for name in ("linked", "pipe", "nothing"):
        with pytest.raises(OSError, match=name):
            LogTail(tmp_path / name).poll()


def test_a_long_log_is_read_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appended_lines, "READ_BYTES", 1000)
    tail = LogTail(write_log(tmp_path, [session(0, 0), *steps(0, 1, 20)]) / "log.jsonl")
    turns = 0
    while tail.poll():
        turns += 1
    assert turns > 3
    assert not tail.is_behind
    assert steps_of(tail) == list(range(1, 21))


def test_of_a_log_that_is_gone_nothing_more_is_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appended_lines, "READ_BYTES", 1000)
    path = write_log(tmp_path, [session(0, 0), *steps(0, 1, 20)]) / "log.jsonl"
    tail = LogTail(path)
    tail.poll()
    assert tail.is_behind
    path.unlink()
    with pytest.raises(FileNotFoundError):
        tail.poll()
    assert not tail.is_behind
