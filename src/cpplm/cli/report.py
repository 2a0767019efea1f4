"""What a command hands back to be printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """Text for people on stdout; figures for programs with `--json`."""

    text: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
