"""Worker processes and signals; work divided among them."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.core.workers import batched_by_size, map_in_threads, partition_by_size, worker_pool


def own_pid() -> int:
    return os.getpid()


def test_a_worker_goes_on_for_its_parent_after_a_signal_to_all() -> None:
    with worker_pool(1) as pool:
        worker = pool.submit(own_pid).result()
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(worker, number)
        assert pool.submit(own_pid).result() == worker


def send_half_a_result(sent: Path) -> bytes:
    send = Connection._send  # type: ignore[attr-defined]

    def send_half(connection: Connection, data: bytes) -> None:
        send(connection, data[: len(data) // 2])
        sent.touch()
        time.sleep(600)

    Connection._send = send_half  # type: ignore[attr-defined]
    return b"x" * 100


def test_a_worker_that_ends_amid_its_result_is_not_waited_for(tmp_path: Path) -> None:
    with worker_pool(1) as pool:
        pool.submit(send_half_a_result, tmp_path / "sent")
        while not (tmp_path / "sent").exists():
            time.sleep(0.01)
    assert not multiprocessing.active_children()


def test_workers_are_gone_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="ours"), worker_pool(2) as pool:
        pool.submit(time.sleep, 600)
        pool.submit(own_pid).result()
        raise RuntimeError("ours")
    assert not multiprocessing.active_children()


def test_a_killed_worker_is_an_error() -> None:
    with pytest.raises(UserError, match="a worker process was killed"), worker_pool(1) as pool:
        worker = pool.submit(own_pid).result()
        os.kill(worker, signal.SIGKILL)
        pool.submit(own_pid).result()


def test_results_of_threads_come_in_the_order_of_the_jobs() -> None:
    def late(seconds: float, name: str) -> str:
        time.sleep(seconds)
        return name

    options = {"workers": 3, "what": "wait", "unit": "job", "disable": True}
    assert map_in_threads(late, [0.1, 0.0, 0.05, 0.0], "abcd", **options) == ["a", "b", "c", "d"]
    assert map_in_threads(late, [], [], **options) == []
    with pytest.raises(ZeroDivisionError):
        map_in_threads(divmod, [1, 1], [1, 0], **options)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 100), max_size=20), st.integers(1, 6))
def test_every_name_once_and_nobody_has_much_more_than_the_others(sizes: dict[str, int], count: int) -> None:
    shares = partition_by_size(sizes, count)
    assert len(shares) == count
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    assert shares == partition_by_size(dict(reversed(sizes.items())), count)
    loads = [sum(sizes[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


def test_the_largest_first() -> None:
    assert partition_by_size({"a": 1, "b": 5, "c": 3, "d": 3}, 2) == [["b", "a"], ["c", "d"]]


@given(st.lists(st.integers(0, 9)), st.integers(1, 30))
def test_batches_end_where_they_reach_the_limit(sizes: list[int], limit: int) -> None:
    batches = list(batched_by_size(sizes, lambda size: size, limit))
    assert [size for batch in batches for size in batch] == sizes
    assert all(sum(batch[:-1]) < limit for batch in batches)
    assert all(sum(batch) >= limit for batch in batches[:-1])
