"""The page stands alone, shows the run, and escapes what a model wrote."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.evaluate.fim.report import FimReport, FimSample
from cpplm.train.pretrain import pretrain
from cpplm.train.report.html import write_page
from cpplm.train.settings import TrainSettings
from tests.browser import headless_browser
from tests.train.report.test_log_reader import session, steps, validation, write_log

EVIL = "</script><script>alert(1)</script><b id=evil>"
LIKELIHOOD = {
    "problems": 8, "bits_per_byte": 1.5, "interval": None,
    "bug_ranking": {"share": 0.625, "interval": [0.306, 0.863]},
    "bug_ranking_per_byte": {"share": 0.5, "interval": [0.2, 0.8]},
}  # fmt: skip


def charts_of(html: str) -> list[dict[str, Any]]:
    block = re.search(r'<script type="application/json" id="curves">(.*?)</script>', html, re.DOTALL)
    assert block is not None
    charts: list[dict[str, Any]] = json.loads(block[1])["charts"]
    return charts


def evaluated(run: Path) -> None:
    sample = {"prompt": "int main", "completion": EVIL, "finish_reason": "length"}
    (run / "samples.json").write_text(json.dumps({"step": 8, "samples": [sample]}))
    detail = {"problem": EVIL, "difficulty": "easy", "outcome": "pass", "body": EVIL, "message": EVIL}
    cpp = {
        "problems": 1, "compile_rate": 1.0, "pass@1": 1.0, "sandbox": "namespaces", "table": EVIL,
        "details": [detail] * 300,
    }  # fmt: skip
    counted = {**detail, "prompt": EVIL, "outcome": "wrong answer", "assertions": 7, "assertions_passed": 3}
    many, few = ({"bits_per_byte": bits, "bytes": size} for bits, size in ((2.0, 3000), (0.5, 1000)))
    results = {
        "cpp": cpp,
        "cpp_humaneval": {**cpp, "problems": 164, "pass@1": 0.25, "details": [counted]},
        "bpb": {
            "bits_per_byte": 1.25, "bytes": 4000, "step": 8, "interval": [1.0, 1.5],
            "by_project": {EVIL: many, "other": few}, "by_kind": {"file": few},
            "by_context_length": [{"from": 1, "to": 1, **many}, {"from": 2, "to": 3, **few}],
            "shorter_contexts": [{"context": 64, **few}, {"context": 32, **many}],
        },
        "fim": {**fim_report().figures(), "details": fim_report().details(), "table": EVIL},
        "likelihood": LIKELIHOOD,
    }  # fmt: skip
    (run / "evaluation.json").write_text(json.dumps(results))


def fim_report() -> FimReport:
    """Answers to holes: one right, one that does not compile, one in a file."""
    sample = FimSample(
        hole="a/body", kind="body", source="problems", group="a", prefix=EVIL, suffix=EVIL,
        expected="return;", completion=EVIL, exact_match=False, edit_similarity=0.5, syntax_valid=False,
        compiles=False, passes=False, outcome="compile error", message=EVIL,
    )  # fmt: skip
    right = dataclasses.replace(
        sample, hole="b/body", group="b", completion="return;", exact_match=True, edit_similarity=1.0,
        syntax_valid=True, compiles=True, passes=True, outcome="pass", message="",
    )  # fmt: skip
    file = dataclasses.replace(
        sample, hole=EVIL, kind="statement", source="files", compiles=None, passes=None, outcome="",
        message="",
    )  # fmt: skip
    return FimReport((sample, right, file), "0123456789abcdef", {})


def test_page_of_a_real_run(settings: TrainSettings) -> None:
    pretrain(settings)
    evaluated(settings.out)
    html = write_page(settings.out).read_text()
    assert EVIL not in html
    assert "alert(1)&lt;/script&gt;" in html
    assert html.count("<script") == 2  # the figures and what draws them
    assert not re.findall(r'(?:src|href)="([^"#][^"]*)"', html)  # nothing is loaded from anywhere
    assert not re.search(r"url\((?!#)|@import", html)
    titles = [chart["title"] for chart in charts_of(html)]
    assert titles[:2] == ["Validation", "Loss"]
    assert "validation bits per byte" in html
    assert "100 more in evaluation.json" in html
    evaluation = html.partition("<h2>Evaluation")[2].partition("<h2>Sessions")[0]
    assert [title.split(" <")[0] for title in re.findall(r"<h3>(.*?)</h3>", evaluation)] == [
        "Solutions by likelihood", "C++ problems", "HumanEval in C++", "Fill-in-the-middle",
    ]  # fmt: skip
    assert '1.2500 bits per byte of 4,000 bytes <span class="soft">(1.0000 to 1.5000)' in evaluation
    assert 'in 62.5% <span class="soft">(30.6% to 86.3%)' in evaluation
    assert re.findall("<summary>Bits per byte by (.*?) <", evaluation) == [  # one kind is no table
        "project", "tokens in view", "length of the context, on the same bytes",
    ]  # fmt: skip
    assert re.findall(r'style="width:([\d.]+)%"', evaluation) == ["100.0", "25.0"] * 2 + ["25.0", "100.0"]
    assert "3 of 7 assertions" in evaluation
    cells = re.findall(r'<td class="number">(.*?)</td>', evaluation.partition("Fill-in")[2])
    half = '50.0 <span class="soft">±50.0</span>'
    assert cells[:6] == ["2", half, '75.0 <span class="soft">±25.0</span>', half, half, half]
    assert "not valid" in evaluation
    chosen, _, others = html.partition("The other settings")
    assert '<code>rates.matrix_lr</code></td><td>0.5</td><td class="soft">default 0.02' in chosen
    assert "warmdown_ratio</code>" not in chosen
    assert "<code>schedule.warmdown_ratio</code></td><td>0.4" in others
    assert re.search(r"<td>finished</td>|>finished<", html)


def test_the_page_says_when_validation_text_is_close_to_what_was_trained_on(tmp_path: Path) -> None:
    overlap = {
        "sha256": "x",
        "projects": 2,
        "projects_in_train": 1,
        "repeated_share": 0.284,
        "min_line_bytes": 40,
    }
    apart = {**overlap, "projects_in_train": 0}
    for record, shown in ((overlap, True), (apart, False), ({"sha256": "x"}, False), ({}, False)):
        html = write_page(write_log(tmp_path, [session(0, 0, validation_text=record)])).read_text()
        assert ("trained on (1 of 2); 28% of the bytes" in html) == shown
        assert ("Validation text is" in html) == shown


@pytest.mark.parametrize("read_only", [False, True])
def test_where_a_page_goes(read_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, here = write_log(tmp_path / "mine", [session(0, 0)]), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    if read_only:  # as a file system that is mounted so answers, root too
        monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK and path == run))
    assert write_page(run).resolve() == (here / "mine.html" if read_only else run / "page.html")
    assert write_page(run, tmp_path / "new" / "my.html") == tmp_path / "new" / "my.html"
    assert len(list(tmp_path.rglob("*.html"))) == 2


def test_sessions_and_samples_over_time(tmp_path: Path) -> None:
    def samples(step: int, text: str) -> dict[str, Any]:
        one = {"prompt": "int ", "completion": text, "finish_reason": "end"}
        return {"event": "samples", "time": step, "step": step, "samples": [one]}

    records = [
        session(0, 0), *steps(0, 1, 4), samples(2, "early"), {**samples(4, ""), "samples": []},
        session(1000, 4, log_reached=7), *steps(1000, 5, 10), samples(9, "late"),
        {"event": "checkpoint", "time": 1010, "step": 10, "path": "somewhere/step_000010"},
    ]  # fmt: skip
    folder = write_log(tmp_path / "run", records)
    html = write_page(folder).read_text()
    assert "killed at step 7" in html
    assert html.index("late</pre>") < html.index("early</pre>")
    assert "deleted since" in html
    (folder / "checkpoints" / "step_000010").mkdir(parents=True)
    assert "deleted since" not in write_page(folder).read_text()


@pytest.mark.slow
def test_a_hundred_thousand_steps_are_a_small_page(tmp_path: Path) -> None:
    records = [session(0, 0), *steps(0, 1, 100_000, of=100_000, mfu=0.4)]
    for number, record in enumerate(records):
        record["loss"] = 3 + (number * 0.618) % 1
    one = {"prompt": "int main() {\n", "completion": "  return 0;\n" * 30, "finish_reason": "length"}
    for step in range(250, 100_001, 250):
        records += [validation(step, step, 1.5)]
        records += [{"event": "samples", "time": step, "step": step, "samples": [one] * 3}]
    page = write_page(write_log(tmp_path, records))
    assert 200_000 < page.stat().st_size < 3_000_000
    assert "340 more in the log" in page.read_text()


@pytest.mark.slow
def test_a_browser_draws_every_chart_offline(settings: TrainSettings) -> None:
    pretrain(settings)
    evaluated(settings.out)
    path, complaints = write_page(settings.out), []
    charts = charts_of(path.read_text())
    with headless_browser() as browser:
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        dom = page.content()
    assert complaints == []
    assert dom.count("<svg") == len(charts) >= 6
    assert dom.count("<path") == sum(len(chart["series"]) for chart in charts)
    assert not re.search(r'd="[^"]*(NaN|undefined|Infinity)', dom)
    assert '<b id="evil">' not in dom


def test_page_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        write_page(tmp_path)
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(UserError, match="no training session"):
        write_page(tmp_path)
    html = write_page(write_log(tmp_path, [session(0, 0)])).read_text()  # begun, nothing done yet
    assert "<h2>Curves</h2>" not in html


def test_pages_of_older_evaluations(tmp_path: Path) -> None:
    folder = write_log(tmp_path, [session(0, 0), *steps(0, 1, 4)])
    assert "<h2>Evaluation" not in write_page(folder).read_text()
    for results in (
        {"bpb": {"bits_per_byte": 1.25, "bytes": 4000}},
        {"fim": {**fim_report().figures(), "details": []}},
        {"likelihood": LIKELIHOOD},
    ):
        (folder / "evaluation.json").write_text(json.dumps(results))
        html = write_page(folder).read_text()
        assert "<h2>Evaluation" in html
        assert html.count("<h3>") == ("bpb" not in results)
