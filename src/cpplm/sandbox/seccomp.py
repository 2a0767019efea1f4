"""The system-call filter: a classic BPF program, assembled here and loaded by the launcher.

It refuses what a compiler or a test program never needs and what has a record of leading out: namespaces,
mounts, tracing, sockets, kernel keys, io_uring, bpf, shared memory that outlives its maker. Calls newer than
the table answer "not implemented", as does clone3, whose arguments a filter cannot see (the C library then
uses clone). Without namespaces (`shared_host`) it also refuses what reaches other processes and files of
the same user: signals, sessions, scheduling, changing modes and owners by path.

Numbers: Linux uapi `asm/unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64).
Format: Linux `filter.h`, `struct sock_filter { u16 code; u8 jt; u8 jf; u32 k; }`.
"""

from __future__ import annotations

import errno
import platform
import struct

from cpplm.core.errors import UserError
from cpplm.sandbox.request import OWN_PID

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_NAMESPACE_FLAGS = 0x7E020080  # CLONE_NEW{TIME,NS,CGROUP,UTS,IPC,USER,PID,NET}
_LAST_KNOWN = 462  # mseal, Linux 6.10; the numbers from 424 on are the same on every architecture

# name: (x86_64, aarch64); None where aarch64 has no such call
_REFUSED: dict[str, tuple[int, int | None]] = {
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_setup": (206, None), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "socket": (41, 198), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "vmsplice": (278, 75), "personality": (135, 92), "syslog": (103, 116),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224),
    "swapoff": (168, 225), "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "fanotify_init": (300, 262), "inotify_init1": (294, 26), "inotify_init": (253, 26),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "uselib": (134, None), "ustat": (136, None), "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
}  # fmt: skip

_REFUSED_ON_SHARED_HOST: dict[str, tuple[int, int | None]] = {
    "setsid": (112, 157), "setpgid": (109, 154), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "tkill": (200, 130), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "chmod": (90, 53), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 54), "fchown": (93, 55),
    "lchown": (94, 54), "fchownat": (260, 54), "truncate": (76, 45), "utime": (132, 88),
    "utimes": (235, 88), "futimesat": (261, 88), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}  # fmt: skip

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE, _CLONE3, _IOCTL, _FCNTL, _KILL_CALL = (56, 220), (435, 435), (16, 29), (72, 25), (62, 129)
_TGKILL, _PRLIMIT = (234, 131), (302, 261)
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_SIGNAL_OWNERS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals to any process, sent by the kernel

Instruction = tuple[int, int, int, int]


def supported() -> bool:
    """True if the filter is known for this machine's architecture."""
    return platform.machine() in _ARCHITECTURES


def pivot_root_number() -> int:
    """The number of pivot_root, for which the C library has no function."""
    return (155, 41)[_column()]


def _column() -> int:
    if not supported():
        raise UserError(
            f"the sandbox does not know the processor architecture {platform.machine()!r}",
            fix=f"It runs on Linux on {' and '.join(_ARCHITECTURES)}.",
        )
    return _ARCHITECTURES[platform.machine()][0]


def assemble(*, shared_host: bool) -> bytes:
    """The filter as an array of `struct sock_filter`.

    Args:
        shared_host: the program sees the host's processes and files (no namespaces).

    Raises:
        UserError: the architecture is not known.
    """
    column = _column()
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[platform.machine()][1]),
        (_RETURN, 0, 0, _KILL),  # 32-bit calls have other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GREATER_EQUAL, 0, 1, _LAST_KNOWN + 1),  # also the x32 calls, from 0x40000000 on
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_JUMP_EQUAL, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    names = _REFUSED | (_REFUSED_ON_SHARED_HOST if shared_host else {})
    numbers = sorted({number for pair in names.values() if (number := pair[column]) is not None})
    for number in numbers:
        program += [(_JUMP_EQUAL, 0, 1, number), refuse]
    program += _on_argument(_CLONE[column], 0, [(_JUMP_ANY_BIT, 0, 1, _NAMESPACE_FLAGS), refuse])
    program += _on_argument(_IOCTL[column], 1, _refuse_values(_TERMINAL_INJECTION))
    if shared_host:
        program += _on_argument(_FCNTL[column], 1, _refuse_values(_SIGNAL_OWNERS))
        program += _on_argument(_KILL_CALL[column], 0, _allow_values((OWN_PID,)))
        program += _on_argument(_TGKILL[column], 0, _allow_values((OWN_PID,)))
        program += _on_argument(_PRLIMIT[column], 0, _allow_values((OWN_PID, 0)))
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _on_argument(number: int, argument: int, then: list[Instruction]) -> list[Instruction]:
    """For call `number`: load the low half of an argument, run `then`, allow what it lets through."""
    body: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *then, (_RETURN, 0, 0, _ALLOW)]
    return [(_JUMP_EQUAL, 0, len(body), number), *body]


def _refuse_values(values: tuple[int, ...]) -> list[Instruction]:
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    return [instruction for value in values for instruction in ((_JUMP_EQUAL, 0, 1, value), refuse)]


def _allow_values(values: tuple[int, ...]) -> list[Instruction]:
    allow = (_RETURN, 0, 0, _ALLOW)
    allowed = [instruction for value in values for instruction in ((_JUMP_EQUAL, 0, 1, value), allow)]
    return [*allowed, (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
