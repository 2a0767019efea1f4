"""The filter, run instruction by instruction in a small interpreter of classic BPF."""

from __future__ import annotations

import errno
import platform
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.sandbox import seccomp

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSED, UNKNOWN = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
NUMBERS = {  # read, mmap, clone, kill, ioctl, socket, mount, setsid
    "x86_64": (0, 9, 56, 62, 16, 41, 165, 112),
    "aarch64": (63, 222, 220, 129, 29, 198, 40, 157),
}
NAMES = ("read", "mmap", "clone", "kill", "ioctl", "socket", "mount", "setsid")


def decide(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel would return for a system call; every jump must stay inside."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    instructions = list(struct.iter_unpack("<HBBI", program))
    position, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif code == 0x06:
            return value
        else:
            test = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[
                code
            ]
            position += if_true if test else if_false


@pytest.fixture(params=sorted(ARCHITECTURES))
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setattr(platform, "machine", lambda: name)
    return name


@pytest.mark.parametrize("shared_host", [False, True])
def test_verdicts(machine: str, shared_host: bool) -> None:
    program = seccomp.assemble(shared_host=shared_host)
    numbers = dict(zip(NAMES, NUMBERS[machine], strict=True))
    architecture = ARCHITECTURES[machine]

    def verdict(name: str, *arguments: int) -> int:
        return decide(program, architecture, numbers[name], arguments)

    assert verdict("read") == verdict("mmap") == ALLOW
    assert verdict("mount") == verdict("socket", 2, 1) == REFUSED
    assert verdict("clone", 0x3D0F00) == ALLOW  # a thread
    assert verdict("clone", 0x1200011) == ALLOW  # fork
    for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict("clone", flag | 17) == REFUSED
    assert verdict("ioctl", 0, 0x5412) == REFUSED
    assert verdict("ioctl", 0, 0x5401) == ALLOW
    assert decide(program, architecture, 435) == UNKNOWN  # clone3
    assert decide(program, architecture, 463) == decide(program, architecture, 0x40000000) == UNKNOWN
    assert verdict("setsid") == (REFUSED if shared_host else ALLOW)
    assert verdict("kill", seccomp.OWN_PID, 9) == ALLOW
    for target in (0, 1, 0xFFFFFFFF, seccomp.OWN_PID + 1):
        assert verdict("kill", target, 9) == (REFUSED if shared_host else ALLOW)


def test_a_foreign_architecture_is_killed(machine: str) -> None:
    other = next(value for name, value in ARCHITECTURES.items() if name != machine)
    assert decide(seccomp.assemble(shared_host=False), other, 0) == KILL
    assert decide(seccomp.assemble(shared_host=False), 0x40000003, 11) == KILL  # i386 execve


@given(number=st.integers(0, 2**32 - 1), arguments=st.tuples(*[st.integers(0, 2**64 - 1)] * 3))
def test_every_call_gets_a_verdict(number: int, arguments: tuple[int, ...]) -> None:
    if platform.machine() in ARCHITECTURES:
        program = seccomp.assemble(shared_host=True)
        assert decide(program, ARCHITECTURES[platform.machine()], number, arguments) in {
            ALLOW,
            REFUSED,
            UNKNOWN,
        }


def test_shared_host_refuses_more(machine: str) -> None:
    def refused(shared_host: bool) -> set[int]:
        program = seccomp.assemble(shared_host=shared_host)
        return {n for n in range(463) if decide(program, ARCHITECTURES[machine], n) == REFUSED}

    assert refused(False) < refused(True)


def test_an_unknown_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "m68k")
    assert not seccomp.supported()
    with pytest.raises(UserError, match="m68k"):
        seccomp.assemble(shared_host=False)
