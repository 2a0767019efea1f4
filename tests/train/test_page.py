"""The page stands alone, shows the run, and escapes what a model wrote."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.train.page import MOST_SAMPLES, some, write_page
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from tests.train.browser import drawn
from tests.train.test_history import session, steps, validation, write_log
from tests.train.test_pretrain import settings  # noqa: F401  (a fixture)

EVIL = "</script><script>alert(1)</script><b id=evil>"


def charts_of(html: str) -> list[dict[str, Any]]:
    block = re.search(r'<script type="application/json" id="curves">(.*?)</script>', html, re.DOTALL)
    assert block is not None
    charts: list[dict[str, Any]] = json.loads(block[1])["charts"]
    return charts


def evaluated(run: Path) -> None:
    sample = {"prompt": "int main", "completion": EVIL, "reason": "length"}
    (run / "samples.json").write_text(json.dumps({"step": 8, "samples": [sample]}))
    detail = {"problem": EVIL, "difficulty": "easy", "outcome": "pass", "body": EVIL, "message": EVIL}
    cpp = {
        "problems": 1, "compile_rate": 1.0, "pass@1": 1.0, "sandbox": "namespaces", "table": EVIL,
        "details": [detail] * 300,
    }  # fmt: skip
    (run / "evaluation.json").write_text(json.dumps({"cpp": cpp}))


def test_page_of_a_real_run(settings: TrainSettings) -> None:  # noqa: F811
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
    chosen, _, others = html.partition("The other settings")
    assert '<code>matrix_lr</code></td><td>0.5</td><td class="soft">default 0.02' in chosen
    assert "<code>warmdown_ratio</code>" not in chosen
    assert "<code>warmdown_ratio</code></td><td>0.4" in others
    assert re.search(r"<td>finished</td>|>finished<", html)


def test_sessions_and_samples_over_time(tmp_path: Path) -> None:
    def samples(step: int, text: str) -> dict[str, Any]:
        one = {"prompt": "int ", "completion": text, "reason": "end"}
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


def test_some_of_many() -> None:
    many = [{"step": number} for number in range(1000)]
    shown = some(many, MOST_SAMPLES)
    assert len(shown) == MOST_SAMPLES
    assert (shown[0], shown[-1]) == (many[0], many[-1])
    assert some(many[:5], MOST_SAMPLES) == many[:5]


@pytest.mark.slow
def test_a_hundred_thousand_steps_are_a_small_page(tmp_path: Path) -> None:
    records = [session(0, 0), *steps(0, 1, 100_000, of=100_000, mfu=0.4)]
    for number, record in enumerate(records):
        record["loss"] = 3 + (number * 0.618) % 1
    one = {"prompt": "int main() {\n", "completion": "  return 0;\n" * 30, "reason": "length"}
    for step in range(250, 100_001, 250):
        records += [validation(step, step, 1.5)]
        records += [{"event": "samples", "time": step, "step": step, "samples": [one] * 3}]
    page = write_page(write_log(tmp_path, records))
    assert 200_000 < page.stat().st_size < 3_000_000
    assert "340 more in the log" in page.read_text()


@pytest.mark.slow
def test_a_browser_draws_every_chart_offline(settings: TrainSettings, tmp_path: Path) -> None:  # noqa: F811
    pretrain(settings)
    evaluated(settings.out)
    page = write_page(settings.out)
    charts = charts_of(page.read_text())
    dom = drawn(page, tmp_path / "profile")
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
