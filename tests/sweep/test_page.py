"""The page of a sweep: in a browser, with what a log or a recipe may bring."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cpplm.sweep import page, trial
from cpplm.sweep import worker as worker_module
from tests.browser import headless_browser
from tests.sweep.conftest import Trials, make_worker


@pytest.fixture
def written(
    trials: Trials, write_recipe: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The page of five finished trials and one that failed."""
    monkeypatch.setattr(worker_module, "failure_reason", lambda *arguments: "<b>no memory</b>")
    trials.statuses = {"2": 1}
    worker = make_worker(write_recipe("pruner = 'none'"), tmp_path / "out")
    worker.run()
    trial.write_run_page(tmp_path / "out" / "trials" / "0")
    return page.write_sweep_page(worker._study, worker._recipe, worker._folder)


def test_the_page_says_what_happened(written: Path) -> None:
    text = written.read_text()
    assert text.count("<polyline") == 5
    assert "&lt;b&gt;no memory" in text
    assert "<b>no memory" not in text
    assert re.findall(r'href="(.*?)"', text) == ["trials/0/page.html"]
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', text)
    best = re.search(r"best, trial (\d)</span><b>([\d.]+)</b>", text)
    assert best
    line = re.search(rf"stroke:var\(--s1\)\"><title>trial {best[1]}: .*bits_per_byte ([\d.]+)</title>", text)
    assert line
    assert line[1] == best[2].rstrip("0")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(written: Path, width: int) -> None:
    with headless_browser() as browser:
        tab = browser.new_page(viewport={"width": width, "height": 900})
        problems: list[str] = []
        tab.on("console", lambda message: problems.append(message.text))
        tab.goto(written.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.locator("polyline").count() == 5
        tab.get_by_role("link", name="trial 0").click()
        assert tab.locator("h1").inner_text().startswith("0")
        assert problems == []
