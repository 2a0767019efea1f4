"""Answers to clients that may vanish: work is dropped as soon as nobody reads it any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")

DONE = "data: [DONE]\n\n"


class ClientGone(Exception):  # noqa: N818  (an outcome, not a fault)
    """Nobody waits for this any more."""


async def unless(happens: Awaitable[object], work: Awaitable[Result], error: Exception) -> Result:
    """What some work gives, cancelled when something happens; it has ended in any case.

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


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """What some work gives, unless the client goes away.

    Raises:
        ClientGone: it went.
    """
    return await unless(_gone(receive), work, ClientGone())


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def record(data: str) -> str:
    """One server-sent event."""
    return f"data: {data}\n\n"


class EventStream(Response):
    """Server-sent events, each sent as soon as it is there.

    The first of them is there already: until then a failure still has a status of its own.
    """

    media_type = "text/event-stream"

    def __init__(
        self, first: str, rest: AsyncGenerator[str, None], *, patience: float, on_gone: Callable[[], None]
    ) -> None:
        """Not sent yet.

        Args:
            first: of the events.
            rest: the others; closed at the end, read or not.
            patience: seconds that the client may take to read what was sent, before it is given up.
            on_gone: called when it went away or was given up.
        """
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first, self._rest, self._patience, self._on_gone = first, rest, patience, on_gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them all."""
        async with contextlib.aclosing(self._rest):
            try:
                await unless_gone(receive, self._send_all(send))
            except (ClientGone, TimeoutError):
                self._on_gone()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._send_one(send, self._first)
        async for event in self._rest:
            await self._send_one(send, event)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_one(self, send: Send, event: str) -> None:
        async with asyncio.timeout(self._patience):
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
