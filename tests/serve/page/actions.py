"""What the tests of the page do over and over."""

import json
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from tests.serve.served import Served

BEFORE = "int shift(int value) {\n    return "
AFTER = ";\n}\n"


def write(page: Page, before: str, after: str = "") -> None:
    """Replace what is in the editor; the cursor stands between the two."""
    page.locator("#source").focus()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(before + after)
    for _ in after:
        page.keyboard.press("ArrowLeft")


def text_of(page: Page) -> str:
    return page.locator("#source").input_value()


def cursor(page: Page) -> int:
    return page.evaluate("document.getElementById('source').selectionEnd")


def ghost(page: Page) -> Locator:
    return page.locator("#layer .ghost")


def settle(page: Page, **values: str | bool) -> None:
    """Change settings in their dialog, by keyboard."""
    page.get_by_role("button", name="Settings").press("Enter")
    for name, value in values.items():
        field = page.locator(f"#settings [name={name}]")
        if isinstance(value, bool):
            field.set_checked(value)
        else:
            field.fill(value)
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()


def filled(server: Served, **body: Any) -> str:
    return server.complete(temperature=0, **body)["choices"][0]["text"]


def abandoned(server: Served) -> float:
    """Requests that the server gave up because nobody listened any more."""
    return server.metric("cpplm_requests_cancelled_total")


def streamed(*texts: str, chat: bool = False) -> str:
    """Server-sent events as a server might send them."""
    choices = [{"delta": {"content": text}} if chat else {"text": text} for text in texts]
    events = [json.dumps({"choices": [{"index": 0, **choice}]}) for choice in choices]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])


def pretend(page: Page, path: str, body: str) -> list[dict[str, Any]]:
    """Answer requests for `path` with these events; gives the bodies of the requests as they come."""
    asked: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route(f"**{path}", answer)
    return asked
