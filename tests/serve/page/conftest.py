"""The page in headless Chromium, against a real server."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from cpplm.generate.engine import Engine
from tests.browser import headless_browser
from tests.serve.served import NAME, Served, serving


@pytest.fixture(scope="package")
def server(long_engine: Engine) -> Iterator[Served]:
    with serving(long_engine) as server:
        yield server


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with headless_browser() as browser:
        yield browser


@pytest.fixture
def expected_statuses() -> list[int]:
    """Of answers that the test provokes; the browser writes each to its console."""
    return []


@pytest.fixture
def visit(browser: Browser, expected_statuses: list[int]) -> Iterator[Callable[[Served], Page]]:
    """Opens the page of a server. In the end nobody has complained, and no other host was asked."""
    complaints: list[str] = []
    requests: list[str] = []
    contexts: list[BrowserContext] = []
    urls: list[str] = []

    def open_page(server: Served) -> Page:
        context = browser.new_context(base_url=server.url, viewport={"width": 1200, "height": 800})
        contexts.append(context)
        urls.append(f"{server.url}/")
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto("/")
        expect(page.locator("#model")).to_have_text(NAME)
        return page

    yield open_page
    assert [page.title() for context in contexts for page in context.pages] == ["cpplm"]
    for context in contexts:
        context.close()
    noise = "Failed to load resource: the server responded with a status of"
    noises = tuple(f"{noise} {status} " for status in expected_statuses)
    assert [text for text in complaints if not text.startswith(noises)] == []
    assert [url for url in requests if not url.startswith(tuple(urls))] == []


@pytest.fixture
def page(visit: Callable[[Served], Page], server: Served) -> Page:
    return visit(server)
