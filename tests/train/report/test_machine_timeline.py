"""Recoveries measured, and the picture of the machines in the run page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cpplm.train.report.html import write_page
from cpplm.train.report.machine_timeline import draw, recoveries
from tests.train.report.test_log_reader import session, steps, write_log


def event(time: float, kind: str, attempt: int, **values: Any) -> dict[str, Any]:
    return {"time": time, "event": kind, "attempt": attempt, "text": "", **values}


EVENTS = [
    event(0.0, "create", 1), event(1.0, "node", 1, state="ready", node="n-1"),
    event(2.0, "heartbeat", 1, state="setup", step=0), event(4.0, "heartbeat", 1, state="compiling", step=0),
    event(6.0, "heartbeat", 1, state="training", step=1), event(6.0, "first_step", 1, step=1),
    event(10.0, "node", 1, state="preempted", node="n-1"),
    event(10.5, "delete", 1, reason="preempted", node="n-1"),
    event(12.0, "gone", 1, node="n-1"), event(12.1, "create", 2),
    event(13.0, "node", 2, state="failed", node="n-2"), event(13.5, "gone", 2, node="n-2"),
    event(13.6, "create", 3), event(15.0, "node", 3, state="ready", node="n-3"),
    event(16.0, "heartbeat", 3, state="setup", step=0),
    event(18.0, "heartbeat", 3, state="compiling", step=4),
    event(21.0, "heartbeat", 3, state="training", step=5), event(21.0, "first_step", 3, step=5),
    event(30.0, "heartbeat", 3, state="<b>", step=9), event(31.0, "finish", 3, outcome="done"),
]  # fmt: skip


def test_a_recovery_is_from_the_loss_to_the_next_new_step() -> None:
    """A successor that is lost before that begins anew."""
    expected = {
        "seen": 13.0,
        "deleted": 0.5,
        "created": 1.5,
        "set up": 3.0,
        "first step": 3.0,
        "seconds": 8.0,
    }
    assert recoveries(EVENTS) == [expected]
    assert recoveries(EVENTS[:12]) == recoveries([]) == []


def test_each_attempt_has_a_row_of_what_it_did() -> None:
    picture = draw(EVENTS)
    assert re.findall(r">attempt (\d)<", picture) == ["1", "2", "3"]
    titles = re.findall(r"<title>(.*?)</title>", picture)
    assert titles == [
        "asked for: 2.0 s", "setup: 2.0 s", "compiling: 2.0 s", "training: 4.0 s",
        "asked for: 0.9 s",
        "asked for: 2.4 s", "setup: 2.0 s", "compiling: 3.0 s", "training: 10.0 s",
    ]  # fmt: skip
    assert draw([]) == ""


@pytest.mark.parametrize("watched", [False, True])
def test_the_page_of_a_run_that_was_watched_shows_them(watched: bool, tmp_path: Path) -> None:
    run = write_log(tmp_path / "run", [session(0, 0), *steps(0, 1, 4)])
    if watched:
        (run / "watcher").mkdir()
        lines = "".join(json.dumps(each) + "\n" for each in EVENTS)
        (run / "watcher" / "timeline.jsonl").write_text(lines)
    html = write_page(run).read_text()
    assert ("<h2>Machines" in html) == ("attempt 3</text>" in html) == watched
