"""One call that runs untrusted programs, compilers included: `Sandbox.probe().run(files, argv, limits)`.

Nothing runs here unless a backend was seen to work: `probe` runs a program that tries to read a file of the
host, to open sockets and to write outside, and takes the first backend in which all of that fails. Each run
gets a fresh launcher process (`launcher.py`), a fresh file tree and ends with everything in it dead. Safe to
call from several threads.
"""

from __future__ import annotations

import functools
import marshal  # noqa: TID251
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.sandbox import seccomp
from cpplm.sandbox.backends import BACKENDS, UNSAFE, Mode, SandboxBackend, make_request
from cpplm.sandbox.limits import MIB, Reason, ResourceLimits, RunResult
from cpplm.sandbox.request import NOBODY

_START = "import sys; sys.path.append(sys.argv[2]); from cpplm.sandbox.launcher import main; main()"
_PACKAGE_ROOT = str(Path(__file__).parents[2])
_NAME = r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]{0,99}"
_FILE_NAME, _FILE_PATH = re.compile(_NAME), re.compile(f"{_NAME}(?:/{_NAME}){{0,15}}")
_GRACE_SECONDS = 5.0
"""Time that the launcher may take longer than its program before it is killed from outside."""

MAX_STDIN_BYTES = 1 << 16
"""Bytes that a pipe holds: the launcher writes them before there is a reader."""

_BETTER = (
    "Install bubblewrap (Debian, Ubuntu: 'sudo apt-get install bubblewrap'), or allow user namespaces "
    "('sudo sysctl -w user.max_user_namespaces=10000', on Ubuntu 24.04 also "
    "'sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0')"
)
FIX = (
    f"{_BETTER}, or use a kernel with Landlock (5.13 or newer, 'landlock' in /sys/kernel/security/lsm). "
    "--unsafe runs programs without any isolation."
)
"""Advice where no backend works."""


class SandboxError(RuntimeError):
    """The isolation could not be set up or the launcher was lost; the program's fate is unknown."""


class Sandbox:
    """Runs programs under one kind of isolation."""

    def __init__(self, backend: SandboxBackend) -> None:
        """Use this backend without asking whether it works; `probe` asks."""
        self.backend = backend

    @classmethod
    def probe(cls, *, unsafe: bool = False) -> Sandbox:
        """The strongest sandbox that works on this machine, proven by a run.

        Args:
            unsafe: run without isolation, after a warning, whatever the machine offers.

        Raises:
            UserError: no backend works; the message has each backend's trouble and what to install or enable.
        """
        if not sys.platform.startswith("linux"):
            raise UserError(f"generated programs can be run on Linux only, this is {sys.platform}")
        if unsafe:
            log_info(
                "cpplm: WARNING: --unsafe: generated programs run as this user with NO isolation; they can "
                "read and delete every file you can, and use the network."
            )
            return cls(UNSAFE)
        problems = []
        for backend in BACKENDS:
            problem = backend_problem(backend)
            if not problem:
                return cls(backend)
            problems.append(f"{backend.mode}: {problem}")
        raise UserError(
            f"no sandbox works here, so no generated program is run ({'; '.join(problems)})", fix=FIX
        )

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.backend.mode

    def describe(self) -> dict[str, str]:
        """For `cpplm doctor`: the backend, what it isolates, what it lacks, and what would be better."""
        return {
            "backend": self.backend.mode,
            "isolates": self.backend.isolates,
            "lacks": self.backend.lacks,
            "fix": f"{_BETTER}." if self.backend in (BACKENDS[-1], UNSAFE) else "",
        }

    def run(
        self,
        files: dict[str, bytes],
        argv: list[str],
        limits: ResourceLimits,
        *,
        stdin: bytes = b"",
        fetch: dict[str, int] | None = None,
        folders: dict[str, Path] | None = None,
    ) -> RunResult:
        """Run one program in a new working folder and wait for its end.

        Args:
            files: put into the working folder, executable; plain names or paths such as "include/a.h".
            argv: the program (looked up in /usr/local/bin, /usr/bin, /bin, or "./name") and its arguments.
            limits: what it may use.
            stdin: what it can read from its standard input, once; at most 64 KiB.
            fetch: name and largest size in bytes of files to return; larger or missing ones are left out.
            folders: folders of the host that the program can read and cannot change, by their names in the
                working folder. A link in them that leads out of them leads nowhere, or into the toolchain;
                with Landlock it leads to a file that cannot be opened.

        Returns:
            How it ended. A program that does not exist gives reason "start" with the text in stderr.

        Raises:
            SandboxError: the isolation could not be set up; the program did not run, or its fate is unknown.
            ValueError: a file name that is not plain, a name taken twice, a folder that is none, or too long
                an input.
        """
        if len(stdin) > MAX_STDIN_BYTES:
            raise ValueError(f"stdin takes {MAX_STDIN_BYTES:,} bytes, not {len(stdin):,}")
        fetch = fetch or {}
        paths = _check_names(files, fetch, folders or {})
        with _work_folder(self.backend.mode) as folder:
            message = make_request(
                self.backend.mode, files, argv, limits, stdin=stdin, fetch=fetch, folders=paths, folder=folder
            )
            reply = _run_launcher(marshal.dumps(vars(message)), limits, sum(fetch.values()))
        return _result(reply, limits, list(fetch), self.backend.mode)


def _check_names(files: dict[str, bytes], fetch: dict[str, int], folders: dict[str, Path]) -> dict[str, str]:
    """The folders' absolute paths, after a look at all names (see `Sandbox.run`).

    Only plain names are fetched: a program could put a link to elsewhere in place of a folder of its own.
    """
    for name in (*fetch, *folders):
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"not a plain file name: {name!r}")
    for name in files:
        if not _FILE_PATH.fullmatch(name):
            raise ValueError(f"not a plain file name: {name!r}")
        if name.split("/")[0] in folders:
            raise ValueError(f"{name!r} would lie in a folder that can only be read")
    for path in folders.values():
        if not path.is_dir():
            raise ValueError(f"not a folder: {path}")
    return {name: str(path.resolve()) for name, path in folders.items()}


@functools.cache
def backend_problem(backend: SandboxBackend) -> str:
    """Why a backend does not work on this machine; empty when it does. Probed once per process."""
    if not seccomp.supported():
        return f"no system-call filter for the processor {os.uname().machine}"
    if backend.mode == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    return probe_backend(backend)


def probe_backend(backend: SandboxBackend) -> str:
    """Run a program that tries to break out; the hole it found, or empty when there is none.

    It must not read or change a file that everybody may read and write, nor signal this process; it must be
    able to start from its own folder and to write there. The launcher tries sockets
    (`isolation.verify_isolation`).
    """
    secret = os.urandom(8).hex()
    with tempfile.NamedTemporaryFile(prefix="cpplm-canary-") as canary:
        canary.write(secret.encode())
        canary.flush()
        Path(canary.name).chmod(0o666)
        # With process namespaces the same number may be one of the program's own.
        signals = f"kill -0 {os.getpid()} && echo signals" if backend.mode == "landlock" else "true"
        script = (
            f"#!/bin/sh\ncat {canary.name} /etc/passwd; echo x >{canary.name}; echo x >/usr/cpplm-canary; "
            f"{signals}; set -e; echo inside >file; cat file"
        )
        limits = ResourceLimits(scratch_bytes=MIB, wall_seconds=20)
        files = {"probe": script.encode()}
        try:
            result = Sandbox(backend).run(files, ["./probe"], limits, fetch={"file": 100})
        except SandboxError as error:
            return str(error)
        unchanged = Path(canary.name).read_text(encoding="utf-8") == secret
    if result.stdout == b"inside\n" and result.files == {"file": b"inside\n"} and unchanged:
        return ""
    return f"the sandbox leaks or nothing runs: {result.stdout[:300]!r} {result.message()[:300]!r}"


@contextmanager
def _work_folder(mode: Mode) -> Iterator[str]:
    """A folder of the host for the backends that need one, owned by the user that will run in it."""
    if mode == "namespaces":
        yield ""
        return
    as_root = os.geteuid() == 0
    base = "/tmp" if as_root else None  # noqa: S108  (TMPDIR of root may be closed to others)
    folder = tempfile.mkdtemp(prefix="cpplm-sandbox-", dir=base)
    try:
        if as_root:
            with suppress(OSError):  # a container may have no such user: see isolation.drop_user
                os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:
        _remove(folder)


def _remove(folder: str) -> None:
    """Delete what a hostile program left, folders without permissions or nested by the thousand included."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if Path(folder).exists():
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", folder], check=False, stderr=subprocess.DEVNULL)


@dataclass(frozen=True)
class _LauncherReply:
    stdout: bytes
    stderr: bytes
    status: bytes
    """The launcher's report; empty when it was killed."""
    cut: Reason | None
    """The limit that made the harness kill everything."""
    wall_seconds: float


def _run_launcher(message: bytes, limits: ResourceLimits, fetch_bytes: int) -> _LauncherReply:
    """Start a launcher, send the request, collect capped output and the report, leave nothing running."""
    reading, writing = os.pipe()
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _START, str(writing), _PACKAGE_ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(writing,),
        env={},
        cwd="/",
        start_new_session=True,
    )
    os.close(writing)
    try:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101  (they are pipes)
        with suppress(BrokenPipeError):  # the report, or its absence, says more
            process.stdin.write(message)
            process.stdin.close()
        streams = {process.stdout.fileno(): limits.output_bytes, process.stderr.fileno(): limits.output_bytes}
        streams[reading] = fetch_bytes + 8192
        received = {descriptor: bytearray() for descriptor in streams}
        cut = _read_streams(received, streams, begin + limits.wall_seconds + _GRACE_SECONDS)
        if cut:
            _stop(process)
    finally:
        with suppress(ProcessLookupError):  # before it is reaped, while its id cannot be anybody else's
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()
        os.close(reading)
    out, err, status = (bytes(received[stream][:bound]) for stream, bound in streams.items())
    return _LauncherReply(out, err, status, cut, time.monotonic() - begin)


def _read_streams(received: dict[int, bytearray], bounds: dict[int, int], deadline: float) -> Reason | None:
    """Read descriptors until all are closed; stop early at the bound of one of them or at the deadline."""
    with selectors.DefaultSelector() as selector:
        for descriptor in bounds:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return "timeout"
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fd)
                received[key.fd] += chunk
                if len(received[key.fd]) > bounds[key.fd]:
                    return "output limit"
    return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Have the launcher end everything; it ends last. Does not reap it, so that its id stays taken."""
    launcher = os.pidfd_open(process.pid)
    signal.pidfd_send_signal(launcher, signal.SIGTERM)  # Popen.terminate would reap one that has ended
    with selectors.DefaultSelector() as selector:
        selector.register(launcher, selectors.EVENT_READ)
        selector.select(_GRACE_SECONDS)
    os.close(launcher)


def _result(reply: _LauncherReply, limits: ResourceLimits, names: list[str], mode: Mode) -> RunResult:
    """Interpret the launcher's report.

    Raises:
        SandboxError: there is none, it is none that is known, or the isolation could not be set up.
    """
    if reply.cut:
        return RunResult(reply.cut, None, None, reply.stdout, reply.stderr, reply.wall_seconds, 0.0)
    line, newline, rest = reply.status.partition(b"\n")
    fields = line.decode(errors="replace").split()
    if not newline or len(fields) not in (4, 4 + len(names)):
        raise SandboxError(
            f"the launcher ended without a report: {reply.stderr[-500:].decode(errors='replace')!r}"
        )
    event, status, wall, cpu = fields[0], int(fields[1]), float(fields[2]), float(fields[3])
    if event == "broken":
        raise SandboxError(rest.decode(errors="replace"))
    if event == "absent":
        return RunResult("start", None, None, reply.stdout, rest, wall, cpu)
    if event not in {"exit", "timeout", "memory", "disk"}:
        raise SandboxError(f"the launcher reports {event!r}: {rest.decode(errors='replace')}")
    files: dict[str, bytes] = {}
    for name, length in zip(names, map(int, fields[4:]), strict=True):
        if length:
            files[name] = rest[:length]
        rest = rest[length:]
    exit_code = os.waitstatus_to_exitcode(status)
    if mode == "bubblewrap" and exit_code > 128:
        exit_code = 128 - exit_code  # bwrap ends with 128 + signal
    reason, signal_number = _cause(event, exit_code, cpu, limits, reply.stderr)
    plain_exit = exit_code if reason == "exit" else None
    return RunResult(reason, plain_exit, signal_number, reply.stdout, reply.stderr, wall, cpu, files)


def _cause(
    event: str, exit_code: int, cpu: float, limits: ResourceLimits, stderr: bytes
) -> tuple[Reason, int | None]:
    """The reason and the signal behind what the launcher saw; negative exit codes are signals."""
    if event in {"timeout", "memory", "disk"}:
        return event, None  # type: ignore[return-value]
    number = -exit_code if exit_code < 0 else None
    if exit_code == 0:
        return "exit", None
    if cpu > limits.cpu_seconds - 0.1 or number == signal.SIGXCPU:
        return "timeout", number
    if number == signal.SIGXFSZ:
        return "disk", number
    # A failed allocation ends in many ways; the words only label a program that has failed already.
    words = (b"bad_alloc", b"out of memory", b"virtual memory exhausted", b"Cannot allocate memory")
    if number == signal.SIGKILL or any(word in stderr for word in words):
        return "memory", number
    return ("exit" if number is None else "signal"), number
