"""SIGINT and SIGTERM answered within two seconds, whatever the main thread does.

Python runs signal handlers between two instructions of the main thread: a long call into C, such as the
backward pass of a large model, delays them, and a library may catch the KeyboardInterrupt. Here a thread
hears of the signal at once (`signal.set_wakeup_fd`), and ends the process if the main thread does not.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil

from cpplm.core.errors import UserError

RUN = "CPPLM_RUN"  # folder or bucket of a managed run
ATTEMPT = "CPPLM_ATTEMPT"  # set by whoever starts a run again after each preemption
PREEMPTED_STATUS = 75  # EX_TEMPFAIL of sysexits.h: the same command again goes on
GRACE_SECONDS = 0.5
TWICE_SECONDS = 1.0  # whoever stops a group of processes reaches each of them twice, within less than this


def interrupted_status() -> int:
    """The exit status of a process that was asked to stop; an attempt at a managed run has its own."""
    return PREEMPTED_STATUS if ATTEMPT in os.environ else 130


class StopWatcher:
    """Ends this process soon after a signal to stop, unless `defer` says that there is something to save."""

    def __init__(self, outcome: str) -> None:
        """`outcome` is what the last line says of what was kept, see `defer`."""
        self.outcome = outcome
        self._announce: Callable[[], None] | None = None
        self._received = threading.Event()
        self._ending = threading.Lock()

    @property
    def signaled(self) -> bool:
        """True once a signal has come."""
        return self._received.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for a signal; True if one has come. The main thread may know milliseconds earlier."""
        return self._received.wait(seconds)

    @property
    def is_ending(self) -> bool:
        """True when a signal has come and nothing is deferred: the process is about to end."""
        return self.signaled and self._announce is None

    def defer(self, announce: Callable[[], None], outcome: str) -> None:
        """From now on the first signal only calls `announce`, at once and in another thread.

        A second SIGINT, a second or more later, ends the process; the last line then says `outcome`.
        """
        self._announce, self.outcome = announce, outcome

    def enforce(self) -> None:
        """The end of `defer`: a signal that has come ends the process now, and so does a later one."""
        self._announce = None
        if self.signaled:
            self._end_later()

    def watch(self, signals: socket.socket) -> None:
        """Act on the signal numbers that arrive as bytes, until the socket's other end is closed."""
        first = math.inf
        while number := signals.recv(1):
            if number[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            now = time.monotonic()
            again = now - first >= TWICE_SECONDS
            first = min(first, now)
            self._received.set()
            announce = self._announce
            if announce is not None:
                announce()
            if announce is None or (again and number[0] == signal.SIGINT):
                self._end_later()

    def _end_later(self) -> None:
        timer = threading.Timer(GRACE_SECONDS, self.end)
        timer.daemon = True
        timer.start()

    def end(self, outcome: str = "") -> None:
        """Print the last line, with `outcome` or that of `defer`, and end with `interrupted_status`.

        Compilers and workers that were started are ended first. What the interpreter does at its end is left
        out, as it waits for threads.
        """
        if self._ending.acquire(blocking=False):  # once: this thread or the timer's
            newline = "\n" if sys.stderr.isatty() else ""  # a progress bar may stand in the line
            os.write(2, f"{newline}cpplm: interrupted {outcome or self.outcome}\n".encode())
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        os._exit(interrupted_status())


NULL_WATCHER = StopWatcher("")
"""Watches no signals."""

_current = NULL_WATCHER


def current_watcher() -> StopWatcher:
    """The watcher of this process; one that does nothing outside `watch_signals`."""
    return _current


@contextlib.contextmanager
def watch_signals(outcome: str) -> Iterator[StopWatcher]:
    """Within the block, signals end this process within two seconds.

    To be entered in the main thread, where handlers of both signals that raise KeyboardInterrupt are set.

    Args:
        outcome: what the last line says after "interrupted", until something is deferred.
    """
    global _current  # noqa: PLW0603  (signals are the process's)
    _current = watcher = StopWatcher(outcome)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    thread = threading.Thread(target=watcher.watch, args=(ours,), name="signals", daemon=True)
    thread.start()
    previous = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield watcher
    except UserError:
        raise
    except KeyboardInterrupt as stop:
        if watcher.wait(GRACE_SECONDS):
            watcher.end(str(stop))
        raise
    except Exception:
        # A library may have turned the KeyboardInterrupt into this.
        if watcher.wait(GRACE_SECONDS) and watcher.is_ending:
            watcher.end()
        raise
    finally:
        signal.set_wakeup_fd(previous)
        theirs.close()
        thread.join()  # Python's end aborts the process, now and then, when it meets a thread
        ours.close()
        _current = NULL_WATCHER
