"""The page as a whole, in a browser: looks, sizes, settings."""

import json

import pytest
from playwright.sync_api import Page, expect

from tests.serve.page.actions import ghost, pretend, settle, streamed, write
from tests.serve.served import NAME, Served


def test_the_program_at_the_start_runs(page: Page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#summary")).to_have_text("Compiled without complaints.")
    expect(page.locator("#output")).to_contain_text("Ended with exit code 0")
    expect(page.locator("#output pre")).to_have_text("6\n")


def test_a_narrow_window_shows_one_part(page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    expect(page.locator("#message")).to_be_hidden()
    write(page, f"{'int a_long_line; ' * 20}\n" * 60)
    page.get_by_role("button", name="Chat", exact=True).click()
    expect(page.locator("#message")).to_be_focused()
    expect(page.locator("#source")).to_be_hidden()
    page.keyboard.press("Alt+2")
    expect(page.locator("#source")).to_be_focused()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    for name in ("Complete", "Compile", "Run"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_in_viewport()


def test_the_cursor_stays_in_view(page: Page) -> None:
    write(page, "// line\n" * 200 + " " * 300 + "wrong")
    box = "document.getElementById('scroller').{}"
    page.keyboard.press("Control+Home")
    page.wait_for_function(f"{box.format('scrollTop')} === 0")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#problems button.error").first).to_be_visible()
    page.keyboard.press("F8")
    page.wait_for_function(f"{box.format('scrollTop')} > 1000 && {box.format('scrollLeft')} > 500")
    assert page.evaluate("document.getElementById('source').scrollTop") == 0


def test_the_key_is_sent_and_kept_no_longer_than_the_tab(page: Page, server: Served) -> None:
    sent: list[str | None] = []
    page.on("request", lambda request: sent.append(request.headers.get("authorization")))
    settle(page, key="a-secret-key")
    write(page, "int f();")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#status")).to_have_text("Compiled without complaints.")
    assert sent == ["Bearer a-secret-key"] * 2  # models again, then compile
    assert "a-secret-key" not in json.dumps(page.evaluate("({...localStorage})"))
    assert "a-secret-key" in json.dumps(page.evaluate("({...sessionStorage})"))
    page.reload()
    expect(page.locator("#model")).to_have_text(NAME)
    assert "Bearer a-secret-key" in sent[2:]


@pytest.mark.slow
def test_settings_survive_a_reload_and_wrong_ones_are_not_taken(page: Page) -> None:
    asked = pretend(page, "/v1/completions", streamed("x"))
    settle(page, temperature="0.5", maxTokens="7")
    settle(page, temperature="-1")
    page.reload()
    write(page, "int")
    page.keyboard.press("Control+Space")
    expect(ghost(page)).to_have_text("x")
    assert (asked[0]["temperature"], asked[0]["max_tokens"], asked[0]["stream"]) == (0.5, 7, True)
