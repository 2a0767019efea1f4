"""The application of `cpplm runs watch`: one page of all runs below a folder, and events that keep it fresh.

| path | |
|---|---|
| / , /page/NAME | the page: `train/report/templates/watch.*`, with the style and the curves of a run's page |
| /api/runs | the rows of all runs |
| /api/events?run=ID&run=ID | server-sent events: rows that change, curves of the runs that are named |
| /run?id=ID | the page of a run, as `cpplm runs page` writes it |

The id of an event is that of this process and its clock: who comes again with it (`Last-Event-ID`) is told
what is new since, however long that was. Nobody's text leads to a path: a run is named as it was found.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from cpplm import __version__
from cpplm.serve.errors import ApiError, add_error_handlers
from cpplm.serve.metrics import Metrics
from cpplm.serve.middleware import RequestGate
from cpplm.serve.settings import NetworkSettings
from cpplm.serve.sse import EventStream, sse_event
from cpplm.serve.static_files import PAGE_HEADERS, add_files
from cpplm.train.report.html import collect_page_data, render_page
from cpplm.train.report.log_reader import RunHistory
from cpplm.train.report.watch import RunWatcher

MAX_STREAMS = 32
MAX_CHOSEN = 8  # as many as there are colors
_FILES = ("watch.js", "watch.css", "curves.js", "style.css")
_POLL_SECONDS = 1.0  # between two looks at the logs, at least
_SHARE = 0.1  # of the time that looks, and the curves of one page, may take
_PING_SECONDS = 15.0  # after which a stream says something, to learn whether anybody is there
_RETRY_MILLISECONDS = 2000  # that a browser waits before it comes again
# The page of a run has a policy of its own; a sandbox keeps its origin apart from ours, too.
_RUN_PAGE_HEADERS = {**PAGE_HEADERS, "Content-Security-Policy": "sandbox allow-scripts"}


class RunsApplication:
    """The ASGI application, and what its server needs of it (`server.Servable`)."""

    def __init__(self, watcher: RunWatcher, network: NetworkSettings) -> None:
        """Nothing is read before the server starts."""
        self._watcher = watcher
        self._name = secrets.token_hex(4)
        self.num_streams = 0
        self._wanted, self._stopping = asyncio.Event(), asyncio.Event()
        self._changed = asyncio.Event()
        self._polling, self._rendering = asyncio.Lock(), asyncio.Lock()
        app = FastAPI(title="cpplm runs", version=__version__, docs_url=None, redoc_url=None,
                      lifespan=self._lifespan)  # fmt: skip
        routes = APIRouter()
        add_files(routes, _files(watcher))
        routes.get("/api/runs", summary="A row of every run")(self._rows)
        routes.get("/api/events", summary="What changes, as server-sent events")(self._events)
        routes.get("/run", summary="The page of a run")(self._page)
        app.include_router(routes)
        add_error_handlers(app)
        self.gate = RequestGate(app, network, Metrics())
        self.asgi: ASGIApp = self.gate

    def abort_all(self) -> None:
        """End the streams: they would never end by themselves."""
        self._stopping.set()
        self._changed.set()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        """Read the logs, while somebody looks at them."""
        while True:
            await self._wanted.wait()
            begin = time.monotonic()
            more = await self._poll()
            if not self.num_streams:
                self._wanted.clear()
            spent = time.monotonic() - begin
            await asyncio.sleep(0.05 if more else max(_POLL_SECONDS, spent / _SHARE))

    async def _poll(self) -> bool:
        """Look at the logs; True if there is more to be read at once."""
        async with self._polling:
            changed, more = await asyncio.to_thread(self._watcher.poll)
        if changed:
            self._changed.set()
            self._changed = asyncio.Event()
        return more

    async def _rows(self) -> Response:
        while await self._poll() and not self._stopping.is_set():
            pass
        _, news = await asyncio.to_thread(self._watcher.news, 0)
        return Response(_dumps(news.get("runs", [])), media_type="application/json")

    async def _events(
        self, run: Annotated[tuple[str, ...], Query()] = (),
        last_event_id: Annotated[str, Header()] = "", sec_fetch_site: Annotated[str, Header()] = "",
    ) -> Response:  # fmt: skip
        if sec_fetch_site not in ("", "none", "same-origin"):  # a page of anybody's could take all places
            raise ApiError(403, "for the page of this server alone", code="wrong_site")
        if len(run) > MAX_CHOSEN:
            raise ApiError(400, f"at most {MAX_CHOSEN} runs can be compared", code="too_many_runs")
        if self.num_streams >= MAX_STREAMS or self._stopping.is_set():
            raise ApiError(
                503, f"{MAX_STREAMS} pages are open already, or the server stops", code="overloaded",
                headers={"Retry-After": "5"},
            )  # fmt: skip
        process, _, clock = last_event_id.partition("-")
        since = int(clock) if process == self._name and clock.isascii() and clock.isdigit() else 0
        stream = self._stream(since, run)
        first = await anext(stream)  # it has its place now, and gives it back at its end
        return EventStream(first, stream, on_disconnect=lambda: None)

    async def _stream(self, since: int, chosen: Sequence[str]) -> AsyncGenerator[str, None]:
        self.num_streams += 1
        self._wanted.set()
        try:
            yield f"retry: {_RETRY_MILLISECONDS}\n\n"
            while not self._stopping.is_set():
                changed, begin = self._changed, time.monotonic()
                clock, news = await asyncio.to_thread(self._watcher.news, since, chosen)
                spent = time.monotonic() - begin
                if news:
                    if not since:
                        news["whole"] = True
                    yield f"id: {self._name}-{clock}\n" + sse_event(_dumps(news))
                since = clock
                with contextlib.suppress(TimeoutError):  # curves of long logs take their time
                    async with asyncio.timeout(spent / _SHARE):
                        await self._stopping.wait()
                try:
                    async with asyncio.timeout(_PING_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield "event: ping\n" + sse_event("nothing new")
        finally:
            self.num_streams -= 1

    async def _page(self, id: str) -> Response:
        await self._poll()  # the page of the list may not have been opened yet
        folder = await asyncio.to_thread(self._watcher.folder, id)
        if folder is None:
            raise ApiError(404, "there is no such run, or there are links in its folder", code="not_found")
        async with self._rendering:
            try:
                html = await asyncio.to_thread(
                    lambda: render_page("page.html.jinja", collect_page_data(RunHistory(folder)))
                )
                return HTMLResponse(html, headers=_RUN_PAGE_HEADERS)
            except Exception as error:  # a run folder may hold anything
                raise ApiError(404, f"cannot read that run: {error!r}", code="not_readable") from error


def _files(watcher: RunWatcher) -> dict[str, bytes]:
    report, serve = resources.files("cpplm.train.report") / "templates", resources.files("cpplm.serve")
    return {
        "index.html": render_page("watch.html.jinja", {"folder": str(watcher.root)}).encode(),
        "icon.svg": (serve / "page" / "icon.svg").read_bytes(),
        **{name: (report / f"{name}.jinja").read_bytes() for name in _FILES},
    }


def _dumps(value: Any) -> str:
    """As JSON, which has no word for infinity; a log has."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
