"""The page of all runs in a real browser, while logs grow."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from cpplm.serve import runs_app
from cpplm.serve.settings import NetworkSettings
from tests.browser import headless_browser
from tests.serve.runs_served import serving_runs
from tests.train.report.test_log_reader import session, steps, validation, write_log
from tests.train.report.test_log_tail import append, lines

EVIL = "<img src=x onerror=alert(1)>"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with headless_browser() as browser:
        yield browser


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs_app, "_POLL_SECONDS", 0.1)
    monkeypatch.setattr("cpplm.train.report.watch._LOOK_SECONDS", 0.2)
    write_log(tmp_path / "old", [session(0, 0), validation(1, 0, 3.0), *steps(0, 1, 10)])
    write_log(tmp_path / "live", [session(50, 0), validation(50, 0, 3.0), *steps(50, 1, 4)])
    return tmp_path


def opened(browser: Browser, url: str, complaints: list[str], **options: object) -> Page:
    page = browser.new_context(**options).new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto(url)
    return page


def loss_ends_at(page: Page, step: int) -> None:
    """The curve of the loss goes as far as this step: the last cell of the list and the axis say so."""
    figure = page.locator("figure", has_text="nats per token")
    svg = figure.locator("svg")
    svg.focus()
    for _ in range(45):
        page.keyboard.press("ArrowRight")
    expect(figure.locator(".legend")).to_contain_text(f"at {step}")


def test_curves_move_and_runs_are_filtered_and_compared(browser: Browser, runs: Path) -> None:
    complaints: list[str] = []
    with serving_runs(runs) as served:
        page = opened(browser, served.url, complaints, viewport={"width": 1280, "height": 900})
        line = {name: page.locator("#runs tr", has_text=name) for name in ("live", "old", EVIL)}
        expect(page.locator("#count")).to_have_text("2 runs, 1 training")
        expect(page.locator("#chosen-title")).to_have_text("live")
        expect(line["live"].get_by_role("checkbox")).to_be_checked()
        loss_ends_at(page, 4)
        append(runs / "live", lines(steps(54, 5, 8)))
        expect(line["live"]).to_contain_text("8")
        loss_ends_at(page, 8)

        write_log(runs / EVIL, [session(60, 0, settings={"depth": EVIL}), *steps(60, 1, 2)])
        expect(line[EVIL]).to_contain_text("training")
        assert page.locator("#runs img").count() == 0
        line[EVIL].get_by_role("checkbox").focus()
        page.keyboard.press("Space")
        expect(page.locator("#chosen-title")).to_have_text("2 runs side by side")
        expect(page.locator(".legend").first).to_contain_text("live")
        expect(page.locator("#differences")).to_contain_text(EVIL)
        expect(line[EVIL].get_by_role("checkbox")).to_be_focused()

        page.keyboard.press("/")
        page.keyboard.type("OL")
        expect(line["live"]).to_be_hidden()
        expect(line["old"]).to_be_visible()
        page.locator("select[name=state]").select_option("training")
        expect(line["old"]).to_be_hidden()
        expect(page.locator("#count")).to_have_text("0 of 3 runs, 2 training")
        page.reload()  # what is chosen and filtered stands in the address
        expect(page.locator("#chosen-title")).to_have_text("2 runs side by side")
        expect(page.locator("#count")).to_have_text("0 of 3 runs, 2 training")
        page.locator("input[type=search]").fill("")
        page.get_by_role("button", name="Pause").click()
        append(runs / "live", lines(steps(58, 9, 9)))
        page.wait_for_timeout(500)
        expect(line["live"]).to_contain_text("8")
        page.get_by_role("button", name="Go on").click()
        expect(line["live"]).to_contain_text("9")
    assert complaints == []
    page.context.close()


def test_a_page_that_was_away_catches_up_on_a_phone(browser: Browser, runs: Path) -> None:
    complaints: list[str] = []
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "reduced_motion": "reduce"}
    with serving_runs(runs) as served:
        page = opened(browser, served.url, complaints, **phone)
        expect(page.locator("#chosen-title")).to_have_text("live")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        style = "getComputedStyle(document.querySelector('.training'), '::before').animationName"
        assert page.evaluate(style) == "none"
        port = int(served.url.rpartition(":")[2])
    expect(page.locator("#status")).to_contain_text("no connection")
    append(runs / "live", lines(steps(54, 5, 9)))
    with serving_runs(runs, NetworkSettings(port=port)):
        expect(page.locator("#status")).to_have_text("live")
        expect(page.locator("#runs tr", has_text="live")).to_contain_text("9")
        loss_ends_at(page, 9)
    assert [text for text in complaints if "ERR_" not in text] == []  # there was nobody for a while
    page.context.close()
