"""The page of all runs: its events while real logs grow, and who gets nothing."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.cli.runs import RunWatchSettings, watch
from cpplm.core.errors import UserError
from cpplm.serve import runs_app
from cpplm.serve.server import listen
from cpplm.serve.settings import NetworkSettings
from tests.serve.runs_served import Served, serving_runs
from tests.serve.served import error_of, wait_for
from tests.train.report.test_log_reader import session, steps, write_log
from tests.train.report.test_log_tail import append, lines

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    write_log(folder / "one", [session(0, 0), *steps(0, 1, 4)])
    write_log(folder / "two", [session(5, 0), *steps(5, 1, 10)])
    return folder


@pytest.fixture
def served(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(runs_app, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr("cpplm.train.report.watch._LOOK_SECONDS", 0.1)
    with serving_runs(runs) as served:
        yield served


def test_curves_grow_while_a_log_does_and_who_was_away_catches_up(served: Served, runs: Path) -> None:
    with served.events("one") as events:
        last, data = next(events)
        while "chosen" not in data or not data["chosen"]["charts"]:
            last, data = next(events)
        assert (data["chosen"]["ids"], data["chosen"]["charts"][0]["title"]) == (["one"], "Loss")
        assert data["chosen"]["charts"][0]["series"][0]["x"]["step"] == [1, 2, 3, 4]
        append(runs / "one", lines(steps(4, 5, 6))[:-9])
        last, data = next(events)
        assert data["chosen"]["charts"][0]["series"][0]["x"]["step"] == [1, 2, 3, 4, 5]
        assert [(row["id"], row["step"]) for row in data["runs"]] == [("one", "5")]
        assert "whole" not in data
    wait_for(lambda: served.application.num_streams == 0)
    append(runs / "one", lines(steps(4, 5, 6))[-9:])
    with served.events("one", last=last) as events:
        data = next(events)[1]
        assert [(row["id"], row["step"]) for row in data["runs"]] == [("one", "6")]
        assert data["chosen"]["charts"][0]["series"][0]["x"]["step"] == [1, 2, 3, 4, 5, 6]
    with served.events(last="0badcafe-99") as events:  # of a server that is gone
        data = next(events)[1]
        assert (data["whole"], sorted(data["ids"])) == (True, ["one", "two"])


def test_runs_come_and_go_and_are_compared_for_several_browsers(served: Served, runs: Path) -> None:
    with served.events("one", "two") as first, served.events() as second:
        views = (data["chosen"] for _, data in first if len(data.get("chosen", {"ids": ()})["ids"]) == 2)
        view = next(views)
        assert view["names"] == ["one", "two"]
        assert [line["name"] for line in view["charts"][0]["series"]] == ["one", "two"]
        assert view["differences"] == []
        write_log(runs / EVIL, [session(9, 0), *steps(9, 1, 3)])
        shutil.rmtree(runs / "two")
        ids: list[str] = []
        while sorted(ids) != sorted([EVIL, "one"]):
            ids = next(second)[1].get("ids", ids)
    assert served.rows().keys() == {EVIL, "one"}


def test_nothing_outside_the_folder_is_shown(served: Served, runs: Path) -> None:
    write_log(runs.parent / "secret", [session(0, 0)])
    (runs / "linked").symlink_to(runs.parent / "secret")
    write_log(runs / "own", [session(0, 0)])
    (runs / "own" / "evaluation.json").symlink_to(runs.parent / "secret" / "log.jsonl")
    assert served.rows().keys() == {"one", "two", "own"}
    assert served.http.get("/run", params={"id": "one"}).status_code == 200
    outside = ("..", "../secret", "one/../../secret", "/etc", "linked", "one/.", "%2e%2e/secret")
    for name in (*outside, "own"):
        error_of(served.http.get("/run", params={"id": name}), 404, "not_found")
    with served.events(*outside) as events:
        assert next(events)[1].get("chosen", {"charts": []})["charts"] == []


def test_the_page_of_a_run_is_the_one_that_opens_offline(served: Served) -> None:
    answer = served.http.get("/run", params={"id": "one"})
    assert "connect-src" not in answer.text
    assert "default-src 'none'" in answer.text
    assert answer.headers["content-security-policy"] == "sandbox allow-scripts"
    page = served.http.get("/")
    assert "require-trusted-types-for 'script'" in page.headers["content-security-policy"]
    for name in ("watch.js", "watch.css", "curves.js", "style.css", "icon.svg"):
        text = served.http.get(f"/page/{name}").text
        assert f"page/{name}" in page.text
        assert "innerHTML" not in text and "{{" not in text
    assert served.http.get("/page/watch.html.jinja").status_code == 404


def test_who_gets_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    error_of(served.http.get("/", headers={"Host": "evil.example"}), 403, "wrong_host")
    away = {"Sec-Fetch-Site": "cross-site"}
    error_of(served.http.get("/api/events", headers=away), 403, "wrong_site")
    error_of(served.http.get("/api/events", params=[("run", "x")] * 9), 400, "too_many_runs")
    monkeypatch.setattr(runs_app, "MAX_STREAMS", 2)
    with served.events(), served.events():
        answer = served.http.get("/api/events")
        error_of(answer, 503, "overloaded")
        assert answer.headers["retry-after"] == "5"
    wait_for(lambda: served.application.num_streams == 0)
    with served.events() as events:
        assert next(events)[1]["whole"]


def test_a_port_that_is_taken_is_one_clear_line(runs: Path) -> None:
    bound, url = listen(NetworkSettings(port=0))
    bound.listen()
    with pytest.raises(UserError, match=r"cannot listen on 127.0.0.1 port \d+"):
        watch(RunWatchSettings(str(runs), port=int(url.rpartition(":")[2])))
    bound.close()
    with pytest.raises(UserError, match="no such folder"):
        RunWatchSettings(str(runs / "nowhere")).check_paths()
