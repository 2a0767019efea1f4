"""Prepare the next batches in a thread while the current step runs.

One thread is enough: the encoder and numpy release Python's lock, and so does the training step.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Wraps an iterator; items come in the same order, errors are raised where the item would have been."""

    def __init__(self, source: Iterator[T], *, depth: int = 4) -> None:
        """Start reading ahead, at most `depth` items."""
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(source,), name="prefetch", daemon=True)
        self._thread.start()

    def _fill(self, source: Iterator[T]) -> None:
        try:
            for item in source:
                if not self._put((item, None)):
                    return
            self._put((None, StopIteration()))
        except BaseException as error:
            self._put((None, error))

    def _put(self, entry: tuple[T | None, BaseException | None]) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        """The next item, waiting for it if needed."""
        item, error = self._queue.get()
        if error is not None:
            self._put((None, error))  # asked again, it answers the same
            raise error
        return item  # type: ignore[return-value]

    def close(self) -> None:
        """Stop reading ahead."""
        self._stop.set()
        self._thread.join(timeout=5)
