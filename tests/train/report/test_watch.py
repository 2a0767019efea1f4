"""Runs watched: their states, what is new since, and logs of strangers."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.locking import exclusive_lock
from cpplm.train.report import watch
from cpplm.train.report.watch import RunWatcher
from tests.train.report.test_log_reader import session, steps, validation, write_log
from tests.train.report.test_log_tail import append, lines


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(watch, "_SHARE", 1e9)


def rows(watcher: RunWatcher) -> dict[str, dict[str, Any]]:
    while watcher.poll()[1]:
        pass
    return {row["id"]: row for row in watcher.news(0)[1]["runs"]}


def silent(path: Path, seconds: float = 1000.0) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = [session(0, 0), *steps(0, 1, 4)]
    for reason in ("finished", "stopped", "failed"):
        end = {"event": "end", "time": 9, "step": 4, "reason": reason}
        write_log(tmp_path / reason, [*begun, end])
    for name in ("grows", "beats", "held", "crashed", "slow"):
        write_log(tmp_path / name, begun)
    for name in ("beats", "held", "crashed", "slow"):
        silent(tmp_path / name / "log.jsonl")
    slow = [session(0, 0), *steps(0, 1, 4, step_seconds=600.0)]
    silent(write_log(tmp_path / "slow", slow) / "log.jsonl")
    (tmp_path / "beats" / "heartbeat.json").write_text("{}")
    watcher = RunWatcher(tmp_path)
    with exclusive_lock(tmp_path / "held"):
        found = {name: row["state"] for name, row in rows(watcher).items()}
    assert found == {
        "finished": "finished", "stopped": "stopped", "failed": "failed", "grows": "training",
        "beats": "training", "held": "training", "crashed": "failed", "slow": "training",
    }  # fmt: skip
    clock = watcher.news(0)[0]
    silent(tmp_path / "grows" / "log.jsonl")  # nothing is written, and yet something is new
    monkeypatch.setattr(watch, "_SILENT_SECONDS", -1.0)
    watcher.poll()
    news = watcher.news(clock, ["grows"])[1]
    assert [(row["id"], row["state"]) for row in news["runs"]] == [("grows", "failed"), ("held", "failed")]
    assert news["chosen"]["ids"] == ["grows"]
    assert "ids" not in news


def test_a_run_that_is_resumed_or_removed(tmp_path: Path) -> None:
    write_log(tmp_path / "mine", [session(0, 0), *steps(0, 1, 6)])
    watcher = RunWatcher(tmp_path)
    assert rows(watcher)["mine"]["step"] == "6"
    clock = watcher.news(0)[0]
    assert watcher.news(clock, ["mine"]) == (clock, {})
    resumed = [session(0, 0), *steps(0, 1, 4), session(99, 4, log_reached=6), *steps(99, 5, 5)]
    (tmp_path / "new").write_bytes(lines(resumed))
    (tmp_path / "new").replace(tmp_path / "mine" / "log.jsonl")
    watcher.poll()
    clock, news = watcher.news(clock, ["mine"])
    assert [(row["step"], row["state"]) for row in news["runs"]] == [("5", "training")]
    assert [mark["step"] for mark in news["chosen"]["marks"]] == [4]
    shutil.rmtree(tmp_path / "mine")
    watcher.poll()
    clock, news = watcher.news(clock, ["mine"])
    assert (news["ids"], news["chosen"]["ids"]) == ([], [])
    shutil.rmtree(tmp_path)
    watcher.poll()
    assert watcher.news(clock) == (clock, {})


HOSTILE = {
    "words": [session(0, 0), {**steps(0, 1, 1)[0], "loss": "much"}],
    "no_time": [{"event": "session", "step": 0}],
    "text_time": [{**session(0, 0), "time": "noon"}],
    "no_settings": [{**session(0, 0), "settings": [1]}],
    "huge": [session(0, 0), {**steps(0, 1, 1)[0], "tokens": 10**400}],
    "empty": [],
}


def test_a_log_of_a_stranger_spoils_no_other(tmp_path: Path) -> None:
    write_log(tmp_path / "good", [session(0, 0), *steps(0, 1, 4), validation(4, 4, 1.5)])
    for name, records in HOSTILE.items():
        write_log(tmp_path / name, records)
    (tmp_path / "deep").mkdir()
    append(tmp_path / "deep", lines(session(0, 0)) + b'{"event": "end", "reason": ' + b"[" * 50_000 + b"\n")
    long = {"event": "end", "time": 1, "step": 1, "reason": "x" * 100_000}
    write_log(tmp_path / "infinite", [session(0, 0), *steps(0, 1, 4, loss=float("nan"))])
    write_log(tmp_path / "long", [session(0, 0), long])
    watcher = RunWatcher(tmp_path)
    found = rows(watcher)
    assert found["good"]["bits_per_byte"] == "1.5000"
    assert {name: found[name]["state"] for name in HOSTILE} == dict.fromkeys(HOSTILE, "unreadable")
    assert found["deep"]["state"] in ("training", "unreadable")
    assert len(found["long"]["end"]) == 500
    assert found["infinite"]["loss"] == "nan"
    for chosen in (list(found), ["infinite"], ["good", "infinite"]):
        view = watcher.news(0, chosen)[1]["chosen"]
        assert "error" not in view
        assert "NaN" not in json.dumps(view["charts"])


def test_long_logs_are_read_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpplm.core.appended_lines.READ_BYTES", 1000)
    write_log(tmp_path / "long", [session(0, 0), *steps(0, 1, 100, of=100)])
    watcher = RunWatcher(tmp_path)
    changed, more = watcher.poll()
    assert (changed, more) == (True, True)
    assert watcher.news(0, ["long"])[1]["runs"][0]["state"] == "reading"
    assert rows(watcher)["long"]["step"] == "100"


def test_each_run_has_its_turn_the_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_SLICE_SECONDS", 0.0)
    for name, age in (("a", 300), ("b", 100), ("c", 200)):
        silent(write_log(tmp_path / name, [session(0, 0), *steps(0, 1, 10)]) / "log.jsonl", age)
    watcher = RunWatcher(tmp_path)
    for order in ("b", "bc", "bca"):
        watcher.poll()
        read = {row["id"] for row in watcher.news(0)[1]["runs"] if row["state"] != "reading"}
        assert read == set(order)
    append(tmp_path / "b", lines(steps(10, 11, 12)))  # one that grows all the time
    append(tmp_path / "a", lines(steps(10, 11, 11)))
    for _ in range(3):
        append(tmp_path / "b", lines(steps(10, 13, 13)))
        watcher.poll()
    assert {row["id"]: row["step"] for row in watcher.news(0)[1]["runs"]}["a"] == "11"
