"""Calls of tools beside the loop: a few at a time, each to its end, and none keeps the process alive."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


class ToolThreads:
    """A thread per call. `ThreadPoolExecutor` would wait for the last of them when the process ends."""

    def __init__(self, at_once: int) -> None:
        """Nothing under way; `at_once`: calls at the same time, others wait."""
        self._places = asyncio.Semaphore(at_once)

    async def run(self, work: Callable[[], str]) -> str:
        """What some work gives. Whoever does not wait for it leaves its place taken until it is over."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()

        def finish(result: str | Exception) -> None:
            self._places.release()
            if future.done():
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

        def in_thread() -> None:
            try:
                result: str | Exception = work()
            except Exception as error:  # for whoever waits
                result = error
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(finish, result)

        threading.Thread(target=in_thread, name="cpplm-tool", daemon=True).start()
        return await future
