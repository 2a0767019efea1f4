"""A guarded process that parses units with libclang, one for each process that builds; see `worker`.

A unit that crashes it, or takes too much time or memory, costs that unit's exactness alone: the next one
gets a new process. Time is processor time, so that a busy machine does not change the result; real time,
many times longer, is the last resort.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from cpplm.cpp.parser import Language

CPU_SECONDS = 60
"""Processor time for one unit; a large one takes 5."""
MEMORY_BYTES = 4 << 30
"""Address space of the process; a large unit takes 1 GiB."""
_COMMAND = (sys.executable, "-P", "-m", "cpplm.corpus.clang.worker")
# What Python needs to start; CPATH, CCC_OVERRIDE_OPTIONS, DEPENDENCIES_OUTPUT and their like stay out.
_ENVIRONMENT = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SDKROOT", "TMPDIR")
_REAL_TIME_FACTOR = 10
_START_SECONDS = 60.0
_END_SECONDS = 5.0


@dataclass(frozen=True)
class WorkerSetup:
    """The first request to the process.

    Attributes:
        roots: the project's folders, resolved.
        readable: files and folders that may be read, where they exist.
        builtin: folder of the compiler's own headers.
        database: folder of the compilation database; empty without one.
    """

    roots: tuple[str, ...]
    readable: tuple[str, ...]
    builtin: str
    database: str = ""


class ClangProcess:
    """Asks a libclang process, which it starts when there is none."""

    def __init__(self, setup: WorkerSetup) -> None:
        """Nothing is started yet."""
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        self._served = 0

    def parse(self, path: str, language: Language, flags: list[str]) -> dict[str, Any]:
        """The references of a unit, see `worker`; or the reason why they are not known, as `failed`.

        Args:
            path: of the file.
            language: of the file, where the database does not say.
            flags: that come after those of the database.
        """
        while True:
            first = self._served == 0
            self.hello()
            self._served += 1
            job = {"path": path, "language": language, "flags": flags, "cpu_seconds": CPU_SECONDS}
            answer = self._converse(job, CPU_SECONDS * _REAL_TIME_FACTOR)
            if answer is not None:
                return answer
            reason = self.close()
            if first or reason == "timed out":  # else it may be for what was parsed before
                return {"failed": reason}

    def hello(self) -> dict[str, Any]:
        """Start the process if there is none; what it says about itself."""
        if self._process is not None:
            return {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            | {"LIBCLANG_DISABLE_CRASH_RECOVERY": "1", "PYTHONUTF8": "1"},
        )
        hello = self._converse(asdict(self._setup) | {"memory_bytes": MEMORY_BYTES}, _START_SECONDS)
        if hello is None:
            raise RuntimeError(f"the libclang process did not start: {self.close()}")
        return hello

    def _converse(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """Send a line and return the answer; None when the process ended, or was ended for its slowness."""
        process = self._process
        assert process is not None  # noqa: S101  (for the type checker, as the next two)
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            return None
        finally:
            timer.cancel()
        return json.loads(line) if line.endswith(b"\n") else None

    def close(self) -> str:
        """End the process; returns in words how it ended."""
        process, self._process, self._served = self._process, None, 0
        if process is None:
            return ""
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            code = process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._errors.seek(0)
        said = self._errors.read()[-2_000:].decode("utf-8", "replace").strip()
        self._errors.close()
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return "timed out"
        if any(sign in said for sign in ("MemoryError", "bad_alloc", "out of memory")):
            return "out of memory"
        return f"libclang crashed (signal {-code})" if code < 0 else f"worker ended ({code}): {said[-200:]}"
