"""Prepare the next batches in a thread while the current step runs.

One thread is enough: the encoder and numpy release Python's lock, and so does the training step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Wraps an iterator; items come in the same order, errors are raised where the item would have been."""

    def __init__(self, source: Iterator[T], *, depth: int = 4) -> None:
        """Start reading ahead, at most `depth` items."""
        self._source = source
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._futures = deque(self._thread.submit(next, source) for _ in range(depth))

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        """The next item, waiting for it if needed; after an error, the same error again."""
        item = self._futures[0].result()
        self._futures.popleft()
        self._futures.append(self._thread.submit(next, self._source))
        return item

    def close(self) -> None:
        """Stop reading ahead, once the item that is being made is there."""
        self._thread.shutdown(cancel_futures=True)
