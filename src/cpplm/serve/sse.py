"""Responses to clients that may vanish: work is cancelled as soon as nobody reads it any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")

DONE = "data: [DONE]\n\n"
READ_TIMEOUT = 30.0  # seconds that a client may take to read what was sent, before it is given up


class ClientDisconnected(Exception):  # noqa: N818  (an outcome, not a fault)
    """Nobody waits for this any more."""


async def cancel_when(happens: Awaitable[object], work: Awaitable[Result], error: Exception) -> Result:
    """Await some work, which is cancelled when `happens` is done first; both have ended in any case.

    Raises:
        Exception: `error`, when that happened, or what the work raises.
    """
    task, other = asyncio.ensure_future(work), asyncio.ensure_future(happens)
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise error
        return task.result()
    finally:
        for each in (task, other):
            each.cancel()
        await asyncio.gather(task, other, return_exceptions=True)


async def cancel_on_disconnect(receive: Receive, work: Awaitable[Result]) -> Result:
    """Await some work, which is cancelled when the client goes away.

    Raises:
        ClientDisconnected: it went.
    """
    return await cancel_when(_gone(receive), work, ClientDisconnected())


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def sse_event(data: str) -> str:
    """Text of one server-sent event."""
    return f"data: {data}\n\n"


class EventStream(Response):
    """Server-sent events, each sent as soon as it is there.

    The first of them is there already: until then a failure still has a status of its own.
    """

    media_type = "text/event-stream"

    def __init__(
        self, first: str, rest: AsyncGenerator[str, None], *, on_disconnect: Callable[[], None]
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            first: of the events.
            rest: the others; closed at the end, read or not.
            on_disconnect: called when it went away or was given up.
        """
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first, self._rest, self._on_disconnect = first, rest, on_disconnect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them all."""
        async with contextlib.aclosing(self._rest):
            try:
                await cancel_on_disconnect(receive, self._send_all(send))
            except (ClientDisconnected, TimeoutError):
                self._on_disconnect()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._send_one(send, self._first)
        async for event in self._rest:
            await self._send_one(send, event)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_one(self, send: Send, event: str) -> None:
        async with asyncio.timeout(READ_TIMEOUT):
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
