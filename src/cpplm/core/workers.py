"""Worker processes that end with what started them, and work divided among workers."""

from __future__ import annotations

import contextlib
import gc
import heapq
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar

T = TypeVar("T")
# Windows cannot wait for more processes than this at once.
_MAX_WORKERS = 61


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_resident_memory() -> tuple[int, int]:
    """Most resident memory so far: of this process, and of the largest of its children that have ended."""
    unit = 1 if sys.platform == "darwin" else 1024
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return usages[0].ru_maxrss * unit, usages[1].ru_maxrss * unit


def _start_worker(parent: Connection) -> None:
    """A signal to stop may reach a whole group of processes, but only the parent acts on it.

    Args:
        parent: of a pipe whose other end the parent has; a worker never outlives that.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    # Indexes and counts are millions of objects that stay; looking through them for cycles as often as usual
    # costs 7 %.
    gc.set_threshold(100_000, 50, 100)


def _follow(parent: Connection) -> None:
    """End this worker when the other end is closed, by the parent or by its end."""
    with contextlib.suppress(EOFError, OSError):
        parent.recv_bytes()
    os._exit(1)


def on_stdin_closed(action: Callable[[], object]) -> None:
    """Call something when the other end of standard input is closed, by the parent or by its end.

    What arrives there is read and dropped, in a thread.
    """

    def follow() -> None:
        while os.read(0, 4096):  # not sys.stdin: its lock, held here, would disturb an ordinary end
            pass
        action()

    threading.Thread(target=follow, daemon=True).start()


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that are gone when the block is left, whatever the reason, and whatever they do then.

    Raises:
        UserError: the operating system killed a worker.
    """
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        min(workers, _MAX_WORKERS), mp_context=context, initializer=_start_worker, initargs=(theirs,)
    )
    try:
        yield pool
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, most likely for lack of memory",
            fix="Run the same command with fewer --workers; what is finished is kept.",
        ) from error
    finally:
        ours.close()  # workers do not hear the pool's own SIGTERM
        # A worker that ends amid a result leaves half a message. The pool's thread waits for the other half
        # as long as anyone could write it, and this process could.
        pool._result_queue._writer.close()  # type: ignore[attr-defined]
        pool.shutdown(wait=True, cancel_futures=True)
        theirs.close()


def map_in_threads(
    function: Callable[..., T], *jobs: Sequence[Any], workers: int, what: str, unit: str, **options: Any
) -> list[T]:
    """The results of a function for all jobs, in their order, computed in threads under a progress bar.

    Args:
        function: takes one value of each sequence.
        jobs: sequences of equal length.
        workers: threads.
        what: is said beside the progress bar.
        unit: of the progress bar, a job.
        options: more of `progress_bar`.
    """
    with ThreadPoolExecutor(workers) as pool, progress_bar(len(jobs[0]), what, unit, **options) as bar:

        def work(*job: Any) -> T:
            result = function(*job)
            bar.update()
            return result

        return list(pool.map(work, *jobs))


def partition_by_size(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Names by size: largest first, each to whoever has least so far (Graham 1969, LPT rule).

    Args:
        sizes: per name, in any unit. Every worker has to pass the same ones; their order is of no account.
        count: workers.

    Returns:
        For each worker its names, largest first; none when there are too few.
    """
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [(0, worker) for worker in range(count)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, worker = heapq.heappop(loads)
        heapq.heappush(loads, (load + sizes[name], worker))
        shares[worker].append(name)
    return shares


def batched_by_size(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Successive items; a batch ends with the item that brings it to `limit` or above."""
    batch: list[T] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= limit:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
