"""The kinds of isolation, strongest first, and what each of them isolates."""

from __future__ import annotations

import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cpplm.sandbox import seccomp
from cpplm.sandbox.limits import MIB, ResourceLimits
from cpplm.sandbox.request import NOBODY, LaunchRequest

Mode = Literal["namespaces", "bubblewrap", "landlock", "unsafe"]

_TOOLCHAIN = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PRLIMIT_FLAGS = {
    resource.RLIMIT_AS: "as",
    resource.RLIMIT_NPROC: "nproc",
    resource.RLIMIT_FSIZE: "fsize",
    resource.RLIMIT_NOFILE: "nofile",
    resource.RLIMIT_CORE: "core",
    resource.RLIMIT_STACK: "stack",
}


@dataclass(frozen=True)
class SandboxBackend:
    """One kind of isolation."""

    mode: Mode
    isolates: str
    lacks: str
    """Harm that a hostile program can still do, beyond exhausting its own limits."""


BACKENDS: tuple[SandboxBackend, ...] = (
    SandboxBackend(
        "namespaces",
        "own file tree, processes, network, IPC, host name and user; system-call filter; resource limits",
        "all of /usr can be read",
    ),
    SandboxBackend(
        "bubblewrap",
        "own file tree, processes, network, IPC, host name and user; system-call filter; resource limits",
        "all of /usr can be read; the working folder lies on the host's disk, its size is checked 40 times a "
        "second; bwrap's own process inside can be tampered with, and so the exit code",
    ),
    SandboxBackend(
        "landlock",
        "files by Landlock; network, signals and sessions refused by the system-call filter; resource limits",
        "all of /usr can be read; names and sizes of other files can be looked up; the working folder "
        "lies on the host's disk, its size is checked 40 times a second; 64 processes more than the "
        "limit can be started; what a program started may outlive a killed harness, within its limits",
    ),
)
UNSAFE = SandboxBackend("unsafe", "nothing but resource limits and the clock", "everything else")


def toolchain_paths() -> list[str]:
    """The files and folders a compiler and its programs may read; those that exist here."""
    return [path for path in _TOOLCHAIN if Path(path).exists()]


def resource_limits(limits: ResourceLimits, input_bytes: int) -> dict[int, int]:
    """`setrlimit` values for one process; two of the counted processes are the launcher's."""
    return {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_NPROC: limits.processes + 2,
        resource.RLIMIT_FSIZE: max(limits.scratch_bytes, input_bytes),
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_STACK: min(limits.memory_bytes // 2, 64 * MIB),
    }


def make_request(
    mode: Mode,
    files: dict[str, bytes],
    argv: list[str],
    limits: ResourceLimits,
    *,
    stdin: bytes,
    fetch: dict[str, int],
    folders: dict[str, str],
    folder: str,
) -> LaunchRequest:
    """The launcher's instructions for one run."""
    input_bytes = sum(map(len, files.values()))
    paths = toolchain_paths()
    links = {path: str(Path(path).readlink()) for path in paths if Path(path).is_symlink()}
    work = "/work" if mode in {"namespaces", "bubblewrap"} else folder
    message = LaunchRequest(
        mode=mode,
        files=files,
        folders=folders,
        fetch=fetch,
        folder=folder,
        argv=argv,
        stdin=stdin,
        environment={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "TMPDIR": work,
            "HOME": work,
            "LC_ALL": "C.UTF-8",
        },
        read_only=[path for path in paths if mode == "landlock" or path not in links],
        symlinks=links,
        devices=[path for path in _DEVICES if Path(path).exists()],
        limits=resource_limits(limits, input_bytes),
        memory_bytes=limits.memory_bytes,
        wall_seconds=limits.wall_seconds,
        scratch_bytes=limits.scratch_bytes,
        folder_bytes=limits.scratch_bytes + input_bytes + 4096 * len(files),
        filter=seccomp.assemble(shared_host=mode == "landlock"),
        pivot_root=seccomp.pivot_root_number(),
    )
    if mode == "bubblewrap":
        message.argv = _bubblewrap(message)
        message.limits = {}  # prlimit sets them inside, where the process limit has its own count
        message.environment = {}  # bwrap sets it inside; its own can be read there through /proc
    return message


def _bubblewrap(message: LaunchRequest) -> list[str]:
    """The bwrap command around a request; descriptor 21 carries the filter (launcher.FILTER_DESCRIPTOR)."""
    command = [shutil.which("bwrap") or "/usr/bin/bwrap", "--unshare-all", "--unshare-user", "--new-session"]
    command += ["--die-with-parent", "--cap-drop", "ALL", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    for path in message.read_only:
        command += ["--ro-bind", path, path]
    for path, points_to in message.symlinks.items():
        command += ["--symlink", points_to, path]
    command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    command += [
        "--bind" if message.scratch_bytes else "--ro-bind",
        message.folder,
        "/work",
        "--chdir",
        "/work",
    ]
    for name, path in message.folders.items():
        command += ["--ro-bind", path, f"/work/{name}"]
    command += ["--remount-ro", "/", "--seccomp", "21", "--clearenv"]
    for name, value in message.environment.items():
        command += ["--setenv", name, value]
    flags = [
        f"--{_PRLIMIT_FLAGS[kind]}={value}"
        for kind, value in message.limits.items()
        if kind in _PRLIMIT_FLAGS
    ]
    cpu = message.limits[resource.RLIMIT_CPU]
    flags.append(f"--cpu={cpu}:{cpu + 1}")
    return [*command, "--", "prlimit", *flags, "--", *message.argv]
