"""Worker processes that end with what started them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import FrameType

from cpplm.core.errors import UserError

# Windows cannot wait for more processes than this at once.
_MOST_WORKERS = 61
# Seconds for which a worker goes on after a SIGTERM: its parent may have got one too, and need it to finish.
_GRACE = 10.0


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker() -> None:
    """A signal to stop may reach a whole group of processes, but only the parent acts on it at once.

    A worker never outlives it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_later)
    threading.Thread(target=_follow_parent, daemon=True).start()
    # Indexes and counts are millions of objects that stay; looking through them for cycles as often as usual
    # costs 7 %.
    gc.set_threshold(100_000, 50, 100)


def _end_later(number: int, frame: FrameType | None) -> None:
    timer = threading.Timer(_GRACE, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _follow_parent() -> None:
    """End this worker when its parent is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that are gone when the block is left, whatever the reason.

    Raises:
        UserError: the operating system killed a worker.
    """
    pool = ProcessPoolExecutor(
        min(workers, _MOST_WORKERS),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    others = set(multiprocessing.active_children())
    try:
        yield pool
    except BaseException as error:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()  # what they were doing is not wanted any more
        if isinstance(error, BrokenProcessPool):
            raise UserError(
                "a worker process was killed, most likely for lack of memory",
                fix="Run the same command with fewer --workers; what is finished is kept.",
            ) from error
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
