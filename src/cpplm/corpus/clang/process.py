"""Worker processes that parse with libclang, kept alive from file to file and replaced when one is lost.

A file that crashes its worker, or takes too much time or memory, costs that file alone. Time is processor
time, so that a busy machine does not change the result; real time, many times longer, is the last resort.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.corpus.clang.flags import INSTALL
from cpplm.corpus.clang.protocol import ParseFailure, ParseJob, ParseResult, WorkerSetup

_COMMAND = (sys.executable, "-P", "-m", "cpplm.corpus.clang.worker")
# What Python needs to start; CPATH, CCC_OVERRIDE_OPTIONS, DEPENDENCIES_OUTPUT and their like stay out.
_ENVIRONMENT = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SDKROOT", "TMPDIR")
_REAL_TIME_FACTOR = 10
_START_SECONDS = 60.0
_END_SECONDS = 5.0


class WorkerProcess:
    """One worker and the conversation with it."""

    def __init__(self, setup: WorkerSetup) -> None:
        """Start it; the process takes jobs when the compiler's headers were found.

        Raises:
            UserError: they were not.
        """
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the worker)
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            | {"LIBCLANG_DISABLE_CRASH_RECOVERY": "1", "PYTHONUTF8": "1"},
        )
        hello = self._converse(setup, _START_SECONDS)
        if hello is None:
            reason = self.close()
            raise RuntimeError(f"the libclang worker did not start: {reason}")
        if hello["error"]:
            self.close()
            raise UserError(
                f"libclang finds no usable compiler headers ({hello['error']})",
                fix=f"{INSTALL}, and install g++ for the standard library (Debian, Ubuntu: apt install g++).",
            )
        if "Landlock" not in hello["walls"]:
            _warn_of_open_walls()

    def ask(self, job: ParseJob) -> ParseResult | ParseFailure:
        """Have one file parsed; after a `fatal` failure the worker is gone."""
        answer = self._converse(job, job["cpu_seconds"] * _REAL_TIME_FACTOR)
        return {"failed": self.close(), "fatal": True} if answer is None else answer

    def _converse(self, request: WorkerSetup | ParseJob, seconds: float) -> Any:
        """Send a line and return the answer; None when the process ended, or was ended for its slowness."""
        assert self._process.stdin is not None  # noqa: S101  (for the type checker: both are pipes)
        assert self._process.stdout is not None  # noqa: S101
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            return None
        finally:
            timer.cancel()
        return json.loads(line) if line.endswith(b"\n") else None

    def close(self) -> str:
        """End the process; returns in words how it ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read()[-2_000:].decode("utf-8", "replace").strip()
        self._errors.close()
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return "timed out"
        if any(sign in said for sign in ("MemoryError", "bad_alloc", "out of memory")):
            return "out of memory"
        return f"libclang crashed (signal {-code})" if code < 0 else f"worker ended ({code}): {said[-200:]}"

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


@functools.cache
def _warn_of_open_walls() -> None:
    """Once per process."""
    log_info(
        "cpplm: WARNING: this kernel has no Landlock: what --semantic parses can include any file that you "
        "can read, and a line of it may be quoted in the first error that is reported."
    )


def run_parse_jobs(
    jobs: Sequence[ParseJob], setup: WorkerSetup, *, workers: int, report: Callable[[int], object]
) -> list[ParseResult | ParseFailure]:
    """Answers in the order of the jobs, whichever worker gave them.

    Args:
        jobs: what to parse.
        setup: what all of them share.
        workers: processes at one time.
        report: called with 1 after each job.

    Raises:
        UserError: the compiler's own headers were not found.
    """
    answers: dict[int, ParseResult | ParseFailure] = {}
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(jobs)):
        waiting.put(number)
    alive: set[WorkerProcess] = set()
    stop = threading.Event()

    def serve() -> None:
        worker: WorkerProcess | None = None
        try:
            while not stop.is_set():
                number = waiting.get_nowait()
                if worker is None:
                    worker = WorkerProcess(setup)
                    alive.add(worker)
                answers[number] = answer = worker.ask(jobs[number])
                report(1)
                if "fatal" in answer:
                    alive.discard(worker)
                    worker = None
        except queue.Empty:
            pass
        finally:
            if worker is not None:
                alive.discard(worker)
                worker.close()

    with ThreadPoolExecutor(max(1, min(workers, len(jobs)))) as pool:
        try:
            for future in [pool.submit(serve) for _ in range(max(1, min(workers, len(jobs))))]:
                future.result()
        except BaseException:
            stop.set()
            for worker in list(alive):
                worker.kill()
            raise
    return [answers[number] for number in range(len(jobs))]
