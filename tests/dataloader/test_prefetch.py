"""Order kept, errors passed on, no thread left behind."""

import threading

import pytest

from cpplm.dataloader.prefetch import Prefetcher


def test_same_items_in_order() -> None:
    assert list(Prefetcher(iter(range(100)), depth=3)) == list(range(100))


def test_error_comes_where_the_item_would_have_been() -> None:
    def source():
        yield 1
        raise OSError("disk gone")

    items = Prefetcher(source())
    assert next(items) == 1
    for _ in range(2):
        with pytest.raises(OSError, match="disk gone"):
            next(items)


def test_close_ends_the_thread() -> None:
    items = Prefetcher(iter(int, 1), depth=2)
    assert next(items) == 0
    items.close()
    assert not any(thread.name == "prefetch" and thread.is_alive() for thread in threading.enumerate())
