"""Asynchronous jobs beside a caller that is not: a bounded number at a time, results as they come.

They run on a thread of their own, so that a caller that works on a result keeps none of the others waiting
past its time limit. When the caller has enough, or is interrupted, all that is under way is cancelled.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

JobT = TypeVar("JobT")
SharedT = TypeVar("SharedT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class _JobError:
    error: BaseException


def run_jobs(
    jobs: Sequence[JobT],
    work: Callable[[SharedT, JobT], Awaitable[ResultT]],
    shared: Callable[[], AbstractAsyncContextManager[SharedT]],
    *,
    at_once: int,
) -> Iterator[tuple[int, ResultT]]:
    """Number and result of each job, in the order in which they end.

    Args:
        jobs: what to do.
        work: does one job; an exception of it ends everything and is raised here.
        shared: opens what all jobs use, and closes it at the end.
        at_once: jobs under way at the same time.
    """
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()

    async def worker(numbers: Iterator[int], opened: SharedT) -> None:
        for number in numbers:
            results.put((number, await work(opened, jobs[number])))

    async def everything() -> None:
        async with shared() as opened, asyncio.TaskGroup() as group:
            numbers = iter(range(len(jobs)))
            for _ in range(min(at_once, len(jobs))):
                group.create_task(worker(numbers, opened))

    def run() -> None:
        try:
            loop.run_until_complete(task)
            results.put(None)
        except BaseExceptionGroup as group:
            results.put(_JobError(group.exceptions[0]))
        except BaseException as error:  # the caller's thread raises it
            results.put(_JobError(error))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())

    task = loop.create_task(everything())
    thread = threading.Thread(target=run, name="requests", daemon=True)
    thread.start()
    try:
        while (item := results.get()) is not None:
            if isinstance(item, _JobError):
                raise item.error
            yield item
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
