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


def test_complaints_follow_the_text(page: Page) -> None:
    """Their places go with their lines, and what was said of an older text is not said of this one."""
    write(page, WRONG)
    page.keyboard.press("Control+Enter")
    summary, status = page.locator("#summary"), page.locator("#status")
    expect(status).to_have_text("Not compiled: 1 error, 1 warning.")
    error = page.locator("#problems button.error")
    expect(error).to_contain_text("line 3:12 ")
    page.keyboard.press("Control+Home")
    page.keyboard.press("Enter")
    expect(error).to_contain_text("line 4:12 ")
    expect(summary).to_have_text("Not compiled: 1 error, 1 warning. The text has changed since.")
    expect(status).to_have_text("")
    page.keyboard.press("Backspace")  # the text that was compiled
    expect(error).to_contain_text("line 3:12 ")
    expect(summary).to_have_text("Not compiled: 1 error, 1 warning.")
    error.click()
    page.keyboard.type("f() + ")  # its line changes, and stays its line
    expect(page.locator("#gutter .number").nth(2)).to_have_class("number error")
    page.keyboard.press("Control+Home")
    page.keyboard.press("Enter")
    expect(error).to_contain_text("line 4:12 ")
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    expect(error).to_contain_text("was line 3 ")
    page.keyboard.press("F8")
    assert cursor(page) == 0


def test_a_mended_program_has_no_marks(page: Page) -> None:
    write(page, WRONG)
    page.get_by_role("button", name="Compile").click()
    expect(page.locator("#gutter .error")).to_have_count(1)
    write(page, "int f() {\n    return 1;\n}\n")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#status")).to_have_text("Compiled without complaints.")
    expect(page.locator("#gutter .error, #gutter .warning")).to_have_count(0)
    expect(page.locator("#problems li")).to_have_count(0)


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


def test_the_colors_lie_under_the_text(page: Page) -> None:
    """Whatever was done to it, the layer shows the text of the field, line by line, in its colors."""
    write(page, '/* a\n b */ int x = 1; // "c"\n#include <vector>\nauto s = R"(\n" )" + \'y\';\n')
    shown = "[...document.querySelectorAll('#layer .row')].map((row) => row.textContent).join('\\n')"
    kinds = "[...document.querySelectorAll('#layer span')].map((span) => [span.className, span.textContent])"
    assert page.evaluate(shown) == text_of(page)
    assert page.evaluate(kinds) == [
        ["comment", "/* a"], ["comment", " b */"], ["keyword", "int"], ["number", "1"], ["comment", '// "c"'],
        ["directive", "#include"], ["string", "<vector>"], ["keyword", "auto"], ["string", 'R"('],
        ["string", '" )"'], ["string", "'y'"],
    ]  # fmt: skip
    page.keyboard.press("Control+Home")
    page.keyboard.press("Delete")  # the comment is none any more
    assert page.evaluate(shown) == text_of(page)
    assert ["comment", " b */"] not in page.evaluate(kinds)
    for key in ("Control+End", "Enter", "Enter", "ArrowUp", "Backspace", "Control+A", "Delete", "Control+Z"):
        page.keyboard.press(key)
        assert page.evaluate(shown) == text_of(page)


def test_any_text_is_colored_without_loss_and_in_little_time(page: Page) -> None:
    pieces = [
        '"',
        "'",
        "\\",
        "/*",
        "*/",
        "//",
        'R"x(',
        ')x"',
        "#",
        " ",
        "include <",
        ">",
        "0x1'0",
        "int",
        "é𝄞",
        "\t",
    ]
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


def test_keys_reach_everything(page: Page) -> None:
    page.locator("#theme").focus()
    reached = []
    for _ in range(16):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        page.keyboard.press("Escape")  # else Tab indents
        page.keyboard.press("Tab")
    for name in ("open-settings", "new-chat", "log", "message", "complete", "compile", "run", "source"):
        assert name in reached
    assert reached.index("source") < len(reached) - 3
    page.keyboard.press("Alt+1")
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.press("Alt+2")
    expect(page.locator("#source")).to_be_focused()
    outline = "(id) => getComputedStyle(document.getElementById(id)).outlineStyle"
    assert page.evaluate(outline, "scroller") != "none"
    page.locator("#compile").press("Shift+Tab")
    assert page.evaluate(outline, "complete") != "none"
