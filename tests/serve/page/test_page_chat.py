"""The chat, in a browser."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from cpplm.generate.engine import Engine
from tests.serve.page.actions import abandoned, ghost, pretend, settle, streamed, text_of, write
from tests.serve.served import Served, serving, wait_for

pytestmark = pytest.mark.slow  # a browser; test_page_whole.py has one test of each kind

HOSTILE = (
    "</pre><img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&lt;b&gt;"
)


def test_a_chat(page: Page, server: Served) -> None:
    expect(page.locator("#base")).to_be_hidden()
    settle(page, chatTemperature="0", chatMaxTokens="12")
    question = {"role": "user", "content": "What is 1 < 2?"}
    page.locator("#message").fill(question["content"])
    page.keyboard.press("Enter")
    body = {"messages": [question], "temperature": 0, "max_tokens": 12}
    expected = server.post("/v1/chat/completions", body).json()
    expect(page.locator("[name=send]")).to_have_text("Send")
    shown = page.locator(".message .body").all_text_contents()
    said = expected["choices"][0]["message"]["content"]
    assert shown[0] == question["content"]
    assert "".join(shown[1].split()) == "".join(said.split())
    expect(page.locator("#message")).to_have_value("")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)


def test_an_answer_is_stopped_and_stays(page: Page, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server.slow_down(monkeypatch)
    gone = abandoned(server)
    settle(page, chatTemperature="0", chatMaxTokens="15000")  # greedy, it never ends by itself
    page.locator("#message").fill("Go on")
    page.keyboard.press("Enter")
    answer = page.locator(".message.model .body")
    expect(answer).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(page.locator("[name=send]")).to_have_text("Send")
    wait_for(lambda: abandoned(server) == gone + 1)
    server.settle()
    assert answer.text_content()


def test_code_of_an_answer_goes_to_the_editor(page: Page) -> None:
    answer = "Here:\n\n```cpp\nint answer() { return 42; }\n```\nThat is all.\n~~~\nint open;"
    pretend(page, "/v1/chat/completions", streamed(*answer, chat=True))
    write(page, "")
    page.locator("#message").fill("Please")
    page.keyboard.press("Enter")
    expect(page.locator("[name=send]")).to_have_text("Send")
    assert page.locator(".message.model p").all_text_contents() == ["Here:", "That is all."]
    assert page.locator(".message.model pre").all_text_contents() == [
        "int answer() { return 42; }",
        "int open;",
    ]
    expect(page.locator(".message.model pre .keyword").first).to_have_text("int")
    page.get_by_role("button", name="Copy").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == "int answer() { return 42; }"
    page.get_by_role("button", name="To editor").first.click()
    assert text_of(page) == "int answer() { return 42; }"


def test_calls_of_the_servers_tools_are_shown(page: Page) -> None:
    delta = {"server_tool_calls": [{"call": 'search("x")', "result": HOSTILE}]}
    called = f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"
    pretend(page, "/v1/chat/completions", called + streamed("a.h:1", chat=True))
    page.locator("#message").fill("Where?")
    page.keyboard.press("Enter")
    expect(page.locator(".message.model p")).to_have_text("a.h:1")
    expect(page.locator(".message.model summary")).to_have_text('search("x")')
    page.locator(".message.model summary").click()
    expect(page.locator(".message.model .call pre")).to_have_text(HOSTILE)


def test_what_a_model_writes_is_text(page: Page) -> None:
    pretend(page, "/v1/chat/completions", streamed(HOSTILE, f"\n```\n{HOSTILE}\n", chat=True))
    pretend(page, "/v1/completions", streamed(HOSTILE))
    page.locator("#message").fill(HOSTILE)
    page.keyboard.press("Enter")
    expect(page.locator(".message.model pre")).to_have_text(HOSTILE)
    assert page.locator(".message p").all_text_contents() == [HOSTILE, HOSTILE]
    write(page, "")
    page.keyboard.press("Control+Space")
    expect(ghost(page)).to_have_text(HOSTILE)
    page.keyboard.press("Tab")
    assert text_of(page) == HOSTILE
    assert page.locator("#layer").text_content() == HOSTILE
    assert page.locator("img, main script").count() == 0


def test_a_base_model_says_so_and_writes_code(visit: Callable[[Served], Page], engine: Engine) -> None:
    with serving(engine, stage="base") as base:
        page = visit(base)
        expect(page.locator("#base")).to_contain_text("This is a base model")
        expect(page.locator("#stage")).to_have_text("base model")
        pretend(page, "/v1/chat/completions", streamed("int x;\n\n", "  int y; // `z`", chat=True))
        page.locator("#message").fill("What is `x`?")
        page.keyboard.press("Enter")
        expect(page.locator("[name=send]")).to_have_text("Send")
        assert page.locator(".message.model pre").all_text_contents() == ["int x;\n\n  int y; // `z`"]
        assert page.locator(".message p").all_text_contents() == ["What is x?"]


def test_a_chat_that_fails(page: Page, expected_statuses: list[int]) -> None:
    expected_statuses.append(429)
    error = {"error": {"message": "too many requests", "type": "x", "param": None, "code": "full"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, json=error))
    page.locator("#message").fill("Hello")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("too many requests")
    expect(page.locator("#message")).to_have_value("Hello")
    expect(page.locator(".message")).to_have_count(0)


def test_a_chat_outgrows_the_context(
    visit: Callable[[Served], Page], served: Served, expected_statuses: list[int]
) -> None:
    """Old turns are dropped, as many as it takes; a question that alone is too long is named."""
    expected_statuses.append(400)  # the babble of a random model is longer when it is read than guessed
    page = visit(served)
    context = served.http.get("/v1/models").json()["data"][0]["max_model_len"]
    asked: list[dict[str, Any]] = []
    page.on("request", lambda request: asked.append(request.post_data_json) if request.post_data else None)
    settle(page, chatTemperature="0", chatMaxTokens=str(2 * context))
    questions = [f"Question {number}?" for number in range(4)]
    for number, question in enumerate(questions):
        page.locator("#message").fill(question)
        page.keyboard.press("Enter")
        expect(page.locator(".message.model .body")).to_have_count(number + 1)
        expect(page.locator("[name=send]")).to_have_text("Send")
        expect(page.locator("#alert")).to_be_empty()
        expect(page.locator(".message.model .body").last).not_to_be_empty()
    expect(page.locator("#status")).to_contain_text("its beginning was left out")
    sent = [message["content"] for message in asked[-1]["messages"]]
    assert (questions[0] in sent, sent[-1], asked[-1]["max_tokens"]) == (False, questions[-1], context // 2)
    page.locator("#message").fill("long " * 2 * context)
    page.keyboard.press("Enter")
    expect(page.locator("#alert")).to_contain_text("This question alone is too long: the prompt has")
    expect(page.locator(".message")).to_have_count(2 * len(questions))
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#alert")).to_be_empty()
