"""Order kept, errors passed on, no thread left behind."""

import threading
from contextlib import closing

import pytest

from cpplm.dataloader.prefetch import Prefetcher


def test_same_items_in_order() -> None:
    with closing(Prefetcher(iter(range(100)), depth=3)) as items:
        assert list(items) == list(range(100))


def test_error_comes_where_the_item_would_have_been() -> None:
    def source():
        yield 1
        raise OSError("disk gone")

    with closing(Prefetcher(source())) as items:
        assert next(items) == 1
        for _ in range(2):
            with pytest.raises(OSError, match="disk gone"):
                next(items)


def test_close_ends_the_thread() -> None:
    items = Prefetcher(iter(int, 1), depth=2)
    assert next(items) == 0
    items.close()
    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())
