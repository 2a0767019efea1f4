"""The message from the harness to the launcher; imports nothing, as every run pays for its imports."""

from __future__ import annotations

NOBODY = 65534
"""The user as which programs run when the harness is root, and whom they see themselves as in namespaces."""
OWN_PID = 0x7EC0DE42
"""Stands in the filter for the process id of the program; the launcher puts the real one in its place."""
CANARY = "/etc/passwd"
"""A file of the host that must not be readable inside."""


class LaunchRequest:
    """One run; sent as the dictionary of its attributes, all of plain types."""

    mode: str
    """namespaces, bubblewrap, landlock or unsafe."""
    files: dict[str, bytes]
    folders: dict[str, str]
    """Names in the working folder of host folders that can be read."""
    fetch: dict[str, int]
    """Files to return and their largest sizes."""
    folder: str
    """The working folder on the host; unused with namespaces."""
    argv: list[str]
    stdin: bytes
    environment: dict[str, str]
    read_only: list[str]
    """Files and folders of the host that can be read."""
    symlinks: dict[str, str]
    """Links to make in the new root, such as /bin to usr/bin."""
    devices: list[str]
    limits: dict[int, int]
    """For setrlimit, of each process."""
    memory_bytes: int
    """Limit of all processes together."""
    wall_seconds: float
    scratch_bytes: int
    """Bytes that may be written; 0 for a read-only working folder."""
    folder_bytes: int
    """Bytes that the working folder may hold, input files included."""
    filter: bytes
    """The seccomp filter."""
    pivot_root: int
    """The number of that system call."""

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)
