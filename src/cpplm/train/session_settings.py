"""Settings that every command has that trains a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from cpplm.core.settings import Precision, group
from cpplm.train.memory_log import MemoryLogSettings


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Checkpoints, memory log and precision."""

    save_every: int = -1
    """Checkpoint every so many steps (-1 = by time only)."""
    save_minutes: float = 10.0
    """Checkpoint at least this often; the end and an interrupt always save (-1 = not by time)."""
    keep_last: int = 2
    """Checkpoints to keep; older ones are deleted."""
    upload_dir: str = ""
    """Also upload each checkpoint there, in the background: a bucket URL or folder. What is newer there than
    here is downloaded at the start."""
    precision: Precision = "auto"
    """Number format of matrix products; weights stay float32. auto = bf16 where the hardware has it."""
    memory: Annotated[MemoryLogSettings, group("memory log")] = field(default_factory=MemoryLogSettings)
    """Log what holds the memory."""
