"""The editor and the compile button, in a browser."""

import pytest
from playwright.sync_api import Page, expect

from tests.serve.page.actions import cursor, text_of, write

pytestmark = pytest.mark.slow  # a browser; test_page_whole.py has one test of each kind

WRONG = "int f() {\n    int unused;\n    return missing;\n}\n"


def test_errors_are_shown_at_their_lines(page: Page) -> None:
    write(page, WRONG)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#summary")).to_have_text("Not compiled: 1 error, 1 warning.")
    expect(page.locator("#gutter .number").nth(2)).to_have_class("number error")
    expect(page.locator("#gutter .number").nth(1)).to_have_class("number warning")
    expect(page.locator("#gutter .error, #gutter .warning")).to_have_count(2)
    assert "missing" in str(page.locator("#gutter .error").get_attribute("title"))
    problem = page.locator("#problems button.error")
    expect(problem).to_contain_text("line 3:12")
    problem.click()
    assert cursor(page) == WRONG.index("missing")
    assert page.evaluate("document.activeElement.id") == "source"
    # The mark goes with its line, and so does the entry of the list.
    page.keyboard.press("Control+Home")
    page.keyboard.insert_text("// one more line\n\n")
    expect(page.locator("#gutter .number").nth(4)).to_have_class("number error")
    visited = []
    for key in ("F8", "Shift+F8"):
        page.keyboard.press(key)
        visited.append(cursor(page))
    assert sorted(visited) == [text_of(page).index("unused"), text_of(page).index("missing")]


def test_a_program_runs(page: Page) -> None:
    page.locator("summary", has_text="Input of the program").click()
    page.locator("#stdin").fill("<i>42</i>")
    source = "int main() { int c; while ((c = std::getchar()) != EOF) std::putchar(c); return 7; }"
    write(page, f"#include <cstdio>\n{source}\n")
    page.keyboard.press("Control+Shift+Enter")
    expect(page.locator("#output p")).to_contain_text("Ended with exit code 7 after")
    expect(page.locator("#output pre")).to_have_text("<i>42</i>")
    page.route("**/api/compile", lambda route: None)  # it takes for ever
    page.keyboard.press("Control+Shift+Enter")
    expect(page.locator("#output")).to_be_empty()


def test_a_server_without_a_sandbox(
    page: Page, monkeypatch: pytest.MonkeyPatch, expected_statuses: list[int]
) -> None:
    expected_statuses.append(503)
    monkeypatch.setattr("cpplm.sandbox.sandbox.BACKENDS", ())
    write(page, WRONG)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("no sandbox works on the server")
    expect(page.locator("#compile")).to_have_attribute("aria-disabled", "false")


def test_typing_indents(page: Page) -> None:
    write(page, "")
    page.keyboard.type("int f() {\nreturn 1;\n}\nint g;")
    assert text_of(page) == "int f() {\n    return 1;\n}\nint g;"
    page.keyboard.press("Control+A")
    page.keyboard.press("Tab")
    assert text_of(page) == "    int f() {\n        return 1;\n    }\n    int g;"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert text_of(page) == "int f() {\nreturn 1;\n}\nint g;"
    page.keyboard.press("Control+End")
    page.keyboard.press("Tab")
    assert text_of(page).endswith("int g;  ")


def test_any_text_is_colored_without_loss_and_in_little_time(page: Page) -> None:
    marks = ['"', "'", "\\", "/*", "*/", "//", 'R"x(', ')x"', "#", "include <", ">"]
    pieces = [*marks, " ", "0x1'0", "int", "é𝄞", "\t"]
    result = page.evaluate(
        """async (pieces) => {
          const { highlightLine } = await import("/page/cpp.js");
          let seed = 7, lost = 0;
          const random = (most) => (seed = (seed * 48271) % 2147483647) % most;
          for (let turn = 0; turn < 3000; turn++) {
            let state = "";
            for (let line = 0; line < 4; line++) {
              const text = Array.from({ length: random(12) }, () => pieces[random(pieces.length)]).join("");
              const result = highlightLine(text, state);
              if (result.pieces.map((piece) => piece[1]).join("") !== text) lost++;
              state = result.state;
            }
          }
          const begin = performance.now();
          const more = ["# include", "# include <", " #", "a ", "1e+", "u8", "\\\\", "/", "R\\""];
          for (const piece of [...pieces, ...more]) highlightLine(piece.repeat(100000), "");
          return [lost, performance.now() - begin];
        }""",
        pieces,
    )
    lost, milliseconds = result
    assert lost == 0
    assert milliseconds < 10_000  # 2.5 million pieces; their square would take days


def test_text_survives_a_reload(page: Page) -> None:
    write(page, "int kept;")
    page.reload()
    assert text_of(page) == "int kept;"
    assert page.locator("#layer").text_content() == "int kept;"
