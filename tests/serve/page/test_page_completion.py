"""Completion at the cursor, in a browser."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.serve.page.actions import (
    AFTER,
    BEFORE,
    abandoned,
    cursor,
    filled,
    ghost,
    pretend,
    settle,
    streamed,
    text_of,
    write,
)
from tests.serve.served import Served, wait_for

pytestmark = pytest.mark.slow  # a browser; test_page_whole.py has one test of each kind


def test_code_is_completed_at_the_cursor(page: Page, server: Served) -> None:
    settle(page, temperature="0", maxTokens="12")
    write(page, BEFORE, AFTER)
    expected = filled(server, prompt=BEFORE, suffix=AFTER, max_tokens=12)
    assert expected.strip()
    page.keyboard.press("Control+Space")
    expect(page.locator("#complete")).to_have_text("Complete")
    assert ghost(page).text_content() == expected
    assert text_of(page) == BEFORE + AFTER
    page.keyboard.press("Tab")
    assert text_of(page) == BEFORE + expected + AFTER
    assert cursor(page) == len(BEFORE + expected)
    expect(ghost(page)).to_have_count(0)
    page.keyboard.press("Control+Z")
    assert text_of(page) == BEFORE + AFTER


def test_a_suggestion_is_dismissed_by_escape_and_by_other_text(page: Page) -> None:
    pretend(page, "/v1/completions", streamed("value", " + 1"))
    write(page, BEFORE, AFTER)
    for key, written in (("Escape", ""), ("ArrowLeft", ""), ("x", "x"), ("Backspace", "")):
        page.keyboard.press("Control+Space")
        expect(ghost(page)).to_have_text("value + 1")
        expect(page.locator("#status")).to_have_text("Suggestion: value + 1")
        page.keyboard.press(key)
        expect(ghost(page)).to_have_count(0)
        expect(page.locator("#status")).to_be_empty()
        if key == "ArrowLeft":
            page.keyboard.press("ArrowRight")
        assert text_of(page) == BEFORE + written + AFTER


def test_a_suggestion_of_several_lines_keeps_numbers_beside_their_lines(page: Page) -> None:
    pretend(page, "/v1/completions", streamed("1;\n}\n\nint other() {\n", "    return 2"))
    write(page, BEFORE, AFTER)
    page.keyboard.press("Control+Space")
    expect(ghost(page)).to_contain_text("return 2")
    tops = """(selector) => [...document.querySelectorAll(selector)]
        .map((element) => Math.round(element.getBoundingClientRect().top))"""
    rows = page.evaluate(tops, "#layer .row")
    assert rows == page.evaluate(tops, "#gutter .number")
    assert rows[2] - rows[1] > 3 * (rows[1] - rows[0])
    page.keyboard.press("Tab")
    assert text_of(page).count("\n") == 7


def test_completion_when_typing_pauses(page: Page) -> None:
    asked = pretend(page, "/v1/completions", streamed("value"))
    write(page, BEFORE[:-1], AFTER)
    settle(page, onPause=True)
    page.locator("#source").focus()
    page.keyboard.type(BEFORE[-1])
    expect(ghost(page)).to_have_text("value")
    assert [(body["prompt"], body["suffix"]) for body in asked] == [(BEFORE, AFTER)]


def test_a_long_text_is_asked_about_in_part(
    visit: Callable[[Served], Page], served: Served, expected_statuses: list[int]
) -> None:
    """The server refuses what does not fit; the page then sends less."""
    page = visit(served)
    expected_statuses.append(400)
    settle(page, temperature="0", maxTokens="8")
    write(page, "int many_numbers(int value);\n" * 400 + BEFORE)
    page.keyboard.press("Control+Space")
    expect(ghost(page)).not_to_be_empty()
    expect(page.locator("#alert")).to_be_empty()


def test_cancelling_ends_the_work_of_the_server(
    page: Page, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.slow_down(monkeypatch)
    gone = abandoned(server)
    settle(page, temperature="0", maxTokens="4096")  # greedy, it never ends by itself
    write(page, BEFORE, AFTER)
    page.keyboard.press("Control+Space")
    expect(ghost(page)).not_to_be_empty()
    assert server.engine.scheduler.num_running == 1
    page.keyboard.press("Escape")
    expect(ghost(page)).to_have_count(0)
    wait_for(lambda: abandoned(server) == gone + 1)
    server.settle()
