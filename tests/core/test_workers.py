"""Worker processes and signals."""

import multiprocessing
import os
import signal
import time

import pytest

from cpplm.core.errors import UserError
from cpplm.core.workers import worker_pool


def own_pid() -> int:
    return os.getpid()


def test_a_worker_goes_on_for_its_parent_after_a_signal_to_all() -> None:
    with worker_pool(1) as pool:
        worker = pool.submit(own_pid).result()
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(worker, number)
        assert pool.submit(own_pid).result() == worker


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
