"""Runs inside the sandbox's own interpreter: isolates itself, starts the program, watches it, reports.

Started by `Sandbox.run` as `python -I -S` with an empty environment, so that no open file and no thread of
the harness comes along; it uses the standard library alone, and as little of it as possible because every
run pays for its imports. It reads one request (a `marshal` dictionary from its parent) on stdin and writes
one report to the status pipe. SIGTERM makes it end everything early. What follows the
isolation happens without privileges.

Invariants: the program is started only after reading a file and opening a socket were seen to fail from
where it will run (bubblewrap, which runs no code of ours inside, is checked by the probe alone); every
process it starts is dead before the report is written.
"""

# pathlib would add 5 ms of imports to every run.
# ruff: noqa: PTH103, PTH102, PTH109, PTH116, PTH120, PTH123, PTH208, PTH211
from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` would import enum: 4 ms
import marshal  # noqa: TID251
import os
import resource
import stat
import sys
import time

from cpplm.sandbox import isolation
from cpplm.sandbox.request import LaunchRequest

TICK_SECONDS = 0.025
SPARE_THREADS = 64  # for what the same user starts elsewhere meanwhile, other sandboxes included
ERROR_DESCRIPTOR, FILTER_DESCRIPTOR = 20, 21  # in the child, just before exec


class CannotStartError(Exception):
    """The program's own fault, not the sandbox's."""


def threads_of_user() -> int:
    """Threads that this user runs now: RLIMIT_NPROC counts them all where there is no namespace."""
    uid, total = os.geteuid(), 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return total


def set_limits(limits: dict[int, int]) -> None:
    """Lower the resource limits; a hard limit that is lower already stays."""
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        ceiling = value + 1 if kind == resource.RLIMIT_CPU else value  # SIGXCPU, a second later SIGKILL
        if hard != resource.RLIM_INFINITY:
            ceiling = min(ceiling, hard)
        resource.setrlimit(kind, (min(value, ceiling), ceiling))


def execute(argv: list[str], environment: dict[str, str]) -> None:
    """Replace this process by the program; os.execvpe would import a module that is out of sight here.

    Raises:
        CannotStartError: there is no such program, or it is none.
    """
    folders = environment.get("PATH", "").split(":")
    for path in [argv[0]] if "/" in argv[0] else [f"{folder}/{argv[0]}" for folder in folders]:
        try:
            os.execve(path, argv, environment)  # noqa: S606  (no shell is the point)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise CannotStartError(f"{argv[0]}: {error.strerror}") from error
    raise CannotStartError(f"{argv[0]}: no such program in the sandbox")


def provide_stdin(data: bytes) -> None:
    """Put a pipe that holds the data and ends behind it in the place of stdin.

    Raises:
        BlockingIOError: the kernel gave the pipe too little room; it does so when a user has very many.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    if os.write(writing, data) != len(data):
        raise BlockingIOError("no room in the pipe for stdin")
    os.close(writing)
    os.dup2(reading, 0)


def exec_child(request: LaunchRequest, errors: int) -> None:
    """In the forked child: isolate, verify, then exec. Never returns."""
    try:
        if request.mode != "namespaces":
            isolation.die_with_parent()
        provide_stdin(request.stdin)
        errors = os.dup2(errors, ERROR_DESCRIPTOR, inheritable=False)
        filter_descriptor = os.memfd_create("filter", 0) if request.mode == "bubblewrap" else -1
        isolation.process_control(isolation.PR_SET_NO_NEW_PRIVS, 1)
        set_limits(request.limits)
        if request.mode == "landlock":
            isolation.landlock(request, os.getcwd())
        if request.mode in {"landlock", "namespaces"}:
            isolation.drop_capabilities()
            isolation.install_filter(request.filter)
            isolation.verify_isolation()
        elif request.mode == "bubblewrap":
            os.write(filter_descriptor, request.filter)
            os.lseek(filter_descriptor, 0, os.SEEK_SET)
            os.dup2(filter_descriptor, FILTER_DESCRIPTOR)  # bwrap loads it and closes it
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, the program must not
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, ERROR_DESCRIPTOR)
        os.closerange(FILTER_DESCRIPTOR + (request.mode == "bubblewrap"), 1 << 20)
        execute(request.argv, request.environment)
    except CannotStartError as error:
        os.write(errors, f"absent {error}".encode())
    except BaseException as error:
        os.write(errors, f"broken {type(error).__name__}: {error}".encode())
    finally:
        os._exit(127)


class StartError(Exception):
    """The program could not be started; the text begins with "absent" or "broken"."""


def start_program(request: LaunchRequest) -> int:
    """Fork the program; its process id, or StartError."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        exec_child(request, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        trouble = pipe.read(2000).decode(errors="replace")  # ends at exec
    if trouble:
        os.waitpid(pid, 0)
        raise StartError(trouble)
    return pid


# ---- watching --------------------------------------------------------------------------------------------


def descendants() -> list[int]:
    """Every process below this one, children first."""
    pids, pending = [], [os.getpid()]
    while pending:
        parent = pending.pop()
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    children = [int(word) for word in file.read().split()]
                pids += children
                pending += children
        except OSError:
            continue
    return pids


def resident_bytes(pids: list[int]) -> int:
    """Memory that these processes hold now."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError):
            continue
    return total * resource.getpagesize()


def folder_is_full(limit_bytes: int) -> bool:
    """True if the working folder holds more than the limit, more entries than that allows, or over 64 levels.

    The last two keep this function fast.
    """
    total = entries = 0
    most_entries = isolation.entry_limit(limit_bytes)
    for folder, _, names in os.walk("."):
        if folder.count("/") > 64:
            return True
        for name in (".", *names):
            entries += 1
            try:
                total += os.lstat(f"{folder}/{name}").st_blocks * 512
            except OSError:
                continue
            if total > limit_bytes or entries > most_entries:
                return True
    return False


def reap(pid: int) -> int | None:
    """Reap whatever has ended; the wait status of `pid` if it is among them."""
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == pid:
            return status
        if ended == 0:
            return None


def watch(pid: int, request: LaunchRequest) -> tuple[str, int]:
    """Wait for the program to end or to break a limit; (reason, wait status)."""
    deadline = time.monotonic() + request.wall_seconds
    polls_folder = request.mode != "namespaces" and request.scratch_bytes > 0
    while True:
        status = reap(pid)
        if polls_folder and folder_is_full(request.folder_bytes):
            return "disk", 0
        if status is not None:
            return "exit", status
        if time.monotonic() >= deadline:
            return "timeout", 0
        if resident_bytes(descendants()) > request.memory_bytes:
            return "memory", 0
        patience = min(TICK_SECONDS, max(0.0, deadline - time.monotonic()))
        event = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, patience)
        if event and event.si_signo == signal.SIGTERM:
            return "stopped", 0


def end_all() -> None:
    """Kill every descendant until none is left."""
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def collect_outputs(names: dict[str, int]) -> list[bytes]:
    """The wanted files of the working folder; empty where missing, too large, or no plain file."""
    contents = []
    for name, size_limit in names.items():
        data = b""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                facts = os.fstat(descriptor)
                if stat.S_ISREG(facts.st_mode) and facts.st_size <= size_limit:
                    data = file.read(size_limit)
        except OSError:
            pass  # missing, a link or unreadable: the program decides what is there, so it counts as empty
        contents.append(data)
    return contents


def report(status_pipe: int, fields: tuple[object, ...], contents: list[bytes], note: str = "") -> None:
    """One line of fields, then the files: reason, wait status, wall and CPU seconds, length of each file."""
    line = " ".join(str(field) for field in (*fields, *map(len, contents)))
    with os.fdopen(status_pipe, "wb") as pipe:
        pipe.write(line.encode() + b"\n" + b"".join(contents) + note.encode())


def supervise(request: LaunchRequest, status_pipe: int) -> None:
    """Start the program, watch it, end everything, report."""
    isolation.process_control(isolation.PR_SET_CHILD_SUBREAPER, 1)
    # Nobody may look into this process through /proc, where its status pipe is. The program can be looked
    # into again as soon as it is executed.
    isolation.process_control(isolation.PR_SET_DUMPABLE, 0)
    begin = time.monotonic()
    pid = start_program(request)
    reason, status = watch(pid, request)
    wall = time.monotonic() - begin
    end_all()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    contents = collect_outputs(request.fetch) if reason == "exit" else [b""] * len(request.fetch)
    report(status_pipe, (reason, status, wall, usage.ru_utime + usage.ru_stime), contents)


def write_files(request: LaunchRequest) -> None:
    """Put the input files into the working folder, and what leads to the host folders."""
    for name, path in request.folders.items():
        if request.mode == "bubblewrap":
            os.mkdir(name)  # it mounts the folder there
        elif request.mode != "namespaces":  # which are mounted already
            os.symlink(path, name)
    for name, data in request.files.items():
        if "/" in name:
            os.makedirs(os.path.dirname(name), exist_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o755), "wb") as file:
            file.write(data)


def wait_for_namespace_init(holder: int) -> None:
    """Wait for the first process of the namespaces, which ends when everything in them has ended."""
    while os.waitpid(holder, os.WNOHANG)[0] == 0:
        event = signal.sigwaitinfo({signal.SIGCHLD, signal.SIGTERM})
        if event.si_signo == signal.SIGTERM:
            os.kill(holder, signal.SIGKILL)


def build_and_supervise(request: LaunchRequest, status_pipe: int) -> None:
    """In the process that holds the namespaces, or in the only one without them: all of the above."""
    if request.mode == "namespaces":
        isolation.die_with_parent()
        isolation.build_root(request)
        write_files(request)
        if request.scratch_bytes == 0:
            isolation.make_read_only("/work")
        isolation.drop_capabilities()
    else:
        os.chdir(request.folder)
        write_files(request)
        if request.mode != "bubblewrap":  # which sets them inside its own user namespace
            request.limits[resource.RLIMIT_NPROC] += threads_of_user() + SPARE_THREADS
    supervise(request, status_pipe)


def main() -> None:
    """Read the request, then report a result or why there is none."""
    status_pipe = int(sys.argv[1])
    os.set_inheritable(status_pipe, False)
    try:
        request = LaunchRequest(**marshal.loads(sys.stdin.buffer.read()))  # noqa: S302  (written by our parent)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the program may share our user
        os.umask(0o022)
        isolation.drop_user()
        isolation.die_with_parent()
        if request.mode == "namespaces":
            isolation.enter_namespaces()
            holder = os.fork()
            if holder:
                os.close(status_pipe)
                wait_for_namespace_init(holder)
                return
        build_and_supervise(request, status_pipe)
    except StartError as error:
        reason, _, note = str(error).partition(" ")
        report(status_pipe, (reason, 0, 0, 0), [], note)
    except BaseException as error:
        report(status_pipe, ("broken", 0, 0, 0), [], f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)  # in both processes; a tidy end of the interpreter takes 3 ms
