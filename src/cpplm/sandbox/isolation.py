"""Isolation of a program: namespaces, Landlock, the system-call filter; system calls through ctypes.

Part of the launcher, so the standard library alone and little of it.

Sources: Linux man-pages namespaces(7), user_namespaces(7), pivot_root(2), landlock(7), seccomp(2), and the
kernel's Documentation/userspace-api/landlock.rst.
"""

# pathlib would add 5 ms of imports to every run.
# ruff: noqa: PTH102, PTH103, PTH120, PTH123, PTH211
from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

from cpplm.sandbox.request import CANARY, NOBODY, OWN_PID, LaunchRequest

libc = ctypes.CDLL(None, use_errno=True)

SIGKILL = 9
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE, MNT_DETACH = 2, 4, 8, 0x4000, 0x40000, 2
ATTR_READ_ONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442  # the same numbers on every architecture
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE, OPEN_TREE_CLONE, MOVE_MOUNT_EMPTY_PATH = -100, 0x1000, 0x8000, 1, 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38


def check_errno(result: int, what: str) -> int:
    """Raise OSError from errno when a C call failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def system_call(number: int, *arguments: int | bytes | None, what: str) -> int:
    """A raw system call; integers are passed as longs."""
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return check_errno(libc.syscall(ctypes.c_long(number), *passed), what)


def process_control(option: int, value: int, pointer: ctypes.Array[ctypes.c_char] | None = None) -> None:
    """prctl(2)."""
    rest = [ctypes.c_ulong(0)] * 2 if pointer is None else [pointer, ctypes.c_ulong(0)]
    check_errno(libc.prctl(option, ctypes.c_ulong(value), *rest, ctypes.c_ulong(0)), f"prctl {option}")


def die_with_parent() -> None:
    """Be killed when the parent ends, however it ends."""
    process_control(PR_SET_PDEATHSIG, SIGKILL)


def drop_user() -> None:
    """Become nobody for good when started as root.

    In a container whose only user is its root (that is somebody else outside) there is nobody to become;
    `drop_capabilities` then makes root a plain user.
    """
    if os.geteuid() != 0:
        return
    try:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setgroups([])
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    process_control(PR_SET_DUMPABLE, 1)  # /proc/self/uid_map would belong to root otherwise


# ---- namespaces ------------------------------------------------------------------------------------------


def enter_namespaces() -> None:
    """New user, mount, process, network, IPC, host-name and cgroup namespaces for what is forked next."""
    uid, gid = os.geteuid(), os.getegid()
    kinds = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID
    check_errno(libc.unshare(kinds | CLONE_NEWNET), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {uid} 1"),
        ("gid_map", f"{NOBODY} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    check_errno(libc.sethostname(b"sandbox", 7), "sethostname")


def clone_tree(path: str, attributes: int) -> int:
    """A detached copy of the mounts below `path` with attributes such as read-only; a descriptor."""
    flags = OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC
    tree = system_call(OPEN_TREE, AT_FDCWD, path.encode(), flags, what=f"open_tree {path}")
    values = struct.pack("QQQQ", attributes, 0, 0, 0)
    system_call(
        MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, values, len(values), what="mount_setattr"
    )
    return tree


def attach_tree(tree: int, target: str) -> None:
    """Mount a detached copy at `target` and close its descriptor."""
    arguments = (tree, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_EMPTY_PATH)
    system_call(MOVE_MOUNT, *arguments, what=f"move_mount {target}")
    os.close(tree)


def entry_limit(size: int) -> int:
    """The most files and folders among `size` bytes: each takes a kilobyte that no size counts."""
    return max(4096, size >> 14)


def mount_tmpfs(path: str, size: int, options: int) -> None:
    """An empty memory file system of at most `size` bytes."""
    text = f"size={max(size, 4096)},nr_inodes={entry_limit(size)},mode=0755".encode()
    check_errno(
        libc.mount(b"tmpfs", path.encode(), b"tmpfs", ctypes.c_ulong(options), text), f"mount tmpfs {path}"
    )


def build_root(request: LaunchRequest) -> None:
    """Replace the root by one that holds the toolchain (read-only), /proc, five devices and /work."""
    check_errno(libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "make / private")
    read_only = ATTR_READ_ONLY | ATTR_NOSUID
    trees = {path: clone_tree(path, read_only | ATTR_NODEV) for path in request.read_only}
    trees.update({path: clone_tree(path, read_only | ATTR_NOEXEC) for path in request.devices})
    no_programs = read_only | ATTR_NODEV | ATTR_NOEXEC
    folders = {name: clone_tree(path, no_programs) for name, path in request.folders.items()}
    root = "/tmp"  # noqa: S108  (any folder that exists everywhere; only this namespace sees the change)
    mount_tmpfs(root, 1 << 20, MS_NOSUID | MS_NODEV)
    for path, tree in trees.items():
        target = root + path
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        attach_tree(tree, target)
    for path, points_to in request.symlinks.items():
        os.symlink(points_to, root + path)
    os.mkdir(root + "/proc")
    os.mkdir(root + "/work")
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    check_errno(
        libc.mount(b"proc", f"{root}/proc".encode(), b"proc", ctypes.c_ulong(flags), b"subset=pid"),
        "mount /proc",
    )
    size = request.scratch_bytes + sum(len(data) + 4096 for data in request.files.values())
    mount_tmpfs(root + "/work", size, MS_NOSUID | MS_NODEV)
    for name, tree in folders.items():
        os.mkdir(f"{root}/work/{name}")
        attach_tree(tree, f"{root}/work/{name}")
    os.chdir(root)
    system_call(request.pivot_root, b".", b".", what="pivot_root")
    check_errno(libc.umount2(b".", MNT_DETACH), "detach the old root")
    os.chdir("/work")
    make_read_only("/")


def make_read_only(path: str) -> None:
    """Remount one mount read-only."""
    values = struct.pack("QQQQ", ATTR_READ_ONLY, 0, 0, 0)
    system_call(MOUNT_SETATTR, AT_FDCWD, path.encode(), 0, values, len(values), what=f"remount {path}")


def drop_capabilities() -> None:
    """Give up what a user namespace granted, and the means to get it back."""
    for number in range(64):
        # Fails for the last ones, which do not exist.
        libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), *[ctypes.c_ulong(0)] * 3)
    header = struct.pack("Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    check_errno(libc.capset(header, struct.pack("6I", *[0] * 6)), "capset")


# ---- Landlock --------------------------------------------------------------------------------------------


def landlock(request: LaunchRequest, work: str) -> None:
    """Deny all files but these, and with newer kernels TCP, outside signals and abstract sockets."""
    abi = system_call(LANDLOCK_CREATE, None, 0, 1, what="landlock")
    files = (1 << 13) - 1 | (abi >= 2) << 13 | (abi >= 3) << 14 | (abi >= 5) << 15
    size = 8 if abi < 4 else 16 if abi < 6 else 24  # of struct landlock_ruleset_attr
    attributes = struct.pack("QQQ", files, 3 * (abi >= 4), 3 * (abi >= 6))[:size]
    ruleset = system_call(LANDLOCK_CREATE, attributes, len(attributes), 0, what="landlock_create_ruleset")
    execute, write, read, list_folder, truncate = 1, 2, 4, 8, 1 << 14
    look = execute | read | list_folder
    rules = [(path, look) for path in request.read_only]
    rules += [(path, read | list_folder) for path in request.folders.values()]
    rules += [(path, read | write) for path in request.devices]
    rules.append((work, files & ~(1 << 15) if request.scratch_bytes else look))
    for path, rights in rules:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= execute | write | read | truncate  # noqa: PLW2901
        rule = struct.pack("=Qi", rights & files, descriptor)
        system_call(LANDLOCK_ADD, ruleset, 1, rule, 0, what=f"landlock_add_rule {path}")
        os.close(descriptor)
    system_call(LANDLOCK_RESTRICT, ruleset, 0, what="landlock_restrict_self")
    os.close(ruleset)


# ---- the filter and the proof ------------------------------------------------------------------------------


def install_filter(program: bytes) -> None:
    """Load the seccomp filter with this process's id in place of the mark."""
    program = program.replace(struct.pack("I", OWN_PID), struct.pack("I", os.getpid()))
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    process_control(PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header))


def verify_isolation() -> None:
    """Raise PermissionError unless reading the harness's file and opening sockets fail from here."""
    try:
        os.close(os.open(CANARY, os.O_RDONLY))
    except OSError:
        pass  # as it must be
    else:
        raise PermissionError(f"a file outside the sandbox can be read ({CANARY})")
    for family in (1, 2, 10):  # unix, IPv4, IPv6
        descriptor = libc.socket(family, 1, 0)
        if descriptor >= 0:
            raise PermissionError(f"a socket of family {family} can be opened")
