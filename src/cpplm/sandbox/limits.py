"""Limits of an untrusted program, and the result of its run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MIB = 1 << 20

Reason = Literal["exit", "signal", "timeout", "memory", "output limit", "disk", "start"]
"""Why a run ended: by itself, by a signal, by one of the limits, or "start": the program does not exist."""

# Below these the launcher itself could not do its work.
_MINIMUM = {
    "wall_seconds": 0.001,
    "cpu_seconds": 1,
    "memory_bytes": 64 * MIB,
    "processes": 1,
    "output_bytes": 1,
    "scratch_bytes": 0,
    "open_files": 24,
}


@dataclass(frozen=True)
class ResourceLimits:
    """Upper bounds of one run. A program that reaches one is ended together with all it started."""

    wall_seconds: float = 10.0
    """Real time from start to end."""
    cpu_seconds: int = 10
    """Processor time of each process."""
    memory_bytes: int = 512 * MIB
    """Address space of each process, and resident memory of all of them together."""
    processes: int = 8
    """Processes and threads at one time."""
    output_bytes: int = 64 * 1024
    """Bytes kept of stdout, and of stderr; the program is ended when it writes more."""
    scratch_bytes: int = 0
    """Bytes that may be written into the working folder; 0 makes it read-only."""
    open_files: int = 64
    """Open descriptors of each process; at least 24."""

    def __post_init__(self) -> None:
        for name, least in _MINIMUM.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True)
class RunResult:
    """Outcome of a run."""

    reason: Reason
    exit_code: int | None
    """None when the program was ended by a signal or a limit."""
    signal: int | None
    """The signal that ended the program, if one did."""
    stdout: bytes
    stderr: bytes
    wall_seconds: float
    cpu_seconds: float
    files: dict[str, bytes] = field(default_factory=dict)
    """The files that were asked for and exist."""

    @property
    def succeeded(self) -> bool:
        """True if the program ended by itself with exit code 0."""
        return self.reason == "exit" and self.exit_code == 0

    def message(self) -> str:
        """Stderr as text."""
        return self.stderr.decode("utf-8", errors="replace")
