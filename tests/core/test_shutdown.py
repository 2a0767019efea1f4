"""Signals to stop are answered whatever the main thread does; what has something to save is let to."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from cpplm.core import shutdown
from cpplm.core.shutdown import StopWatcher

# The main thread swallows what it can, as libraries do, and a compiler that it has started is still at work.
DEAF = """
import signal, subprocess, sys, time
from cpplm.core.shutdown import watch_signals

def ignore(number, frame):
    pass

with watch_signals("before anything was saved"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ignore)
    print(child.pid, flush=True)
    time.sleep(600)
"""
# What a library makes of a KeyboardInterrupt in the middle of an import.
WRAPPED = """
import signal, time
from cpplm.core.shutdown import watch_signals

signal.signal(signal.SIGTERM, signal.default_int_handler)
with watch_signals("before anything was saved"):
    try:
        print(flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        raise ImportError("cannot import")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("program", [DEAF, WRAPPED], ids=["deaf", "wrapped"])
def test_a_process_that_does_not_listen_ends_with_one_line(program: str, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, said = process.communicate(
            timeout=60
        )  # returns when its child, which has the same stderr, is gone
    assert process.returncode == 130
    assert said == "cpplm: interrupted before anything was saved\n"


class Ended(StopWatcher):
    """Notes that the process would have ended, and with which word."""

    def __init__(self) -> None:
        super().__init__("nothing saved")
        self.ends: list[str] = []
        self.heard = threading.Semaphore(0)

    def end(self, outcome: str = "") -> None:
        self.ends.append(outcome or self.outcome)
        self.heard.release()


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Ended, socket.socket]]:
    """A watcher that ends at once, and where the numbers of its signals are written."""
    monkeypatch.setattr(shutdown, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(shutdown, "TWICE_SECONDS", 0.0)
    watcher = Ended()
    theirs, ours = socket.socketpair()
    thread = threading.Thread(target=watcher.watch, args=(theirs,))
    thread.start()
    yield watcher, ours
    ours.close()
    thread.join()
    theirs.close()


def test_what_has_something_to_save_is_let_to(signals: tuple[Ended, socket.socket]) -> None:
    watcher, ours = signals
    announced = threading.Semaphore(0)
    watcher.defer(announced.release, "some saved")
    ours.send(bytes([signal.SIGTERM]))
    assert announced.acquire(timeout=60)
    ours.send(bytes([signal.SIGTERM, signal.SIGCHLD]))  # a second SIGTERM changes nothing
    assert announced.acquire(timeout=60)
    assert watcher.signaled
    assert not watcher.is_ending
    assert watcher.ends == []
    ours.send(bytes([signal.SIGINT]))  # a second Ctrl-C does
    assert watcher.heard.acquire(timeout=60)
    assert watcher.ends == ["some saved"]


def test_what_has_saved_ends(signals: tuple[Ended, socket.socket]) -> None:
    watcher, ours = signals
    announced = threading.Semaphore(0)
    watcher.defer(announced.release, "some saved")
    watcher.enforce()  # no signal has come
    watcher.defer(announced.release, "some saved")
    ours.send(bytes([signal.SIGINT]))
    assert announced.acquire(timeout=60)
    assert watcher.ends == []
    watcher.enforce()
    assert watcher.heard.acquire(timeout=60)
    assert watcher.ends == ["some saved"]


def test_a_block_that_nobody_interrupts_leaves_nothing_behind() -> None:
    """Least of all a thread: at Python's end it aborted one run of two."""
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    threads = threading.active_count()
    with shutdown.watch_signals("nothing saved") as watcher:
        assert shutdown.current_watcher() is watcher
    assert shutdown.current_watcher() is shutdown.NULL_WATCHER
    assert signal.set_wakeup_fd(before) == before
    assert threading.active_count() == threads
