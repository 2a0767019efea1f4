"""Output of a command: its report, and text of a model, which a terminal must not obey."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Report:
    """Text for people on stdout; figures for programs with `--json`; the exit status."""

    text: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    status: int = 0


def text_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows as lines of columns: the first `left` ones aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def escape_control(text: str) -> str:
    """The text without what a terminal would obey: its control characters become visible ones."""
    return _CONTROL.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\ufffd", text)


def sanitize(text: str, style: str = "") -> str:
    """For stdout: on a terminal printable and in a style ("1" bold, "2" faint), elsewhere as it is."""
    if not sys.stdout.isatty():
        return text
    return f"\x1b[{style}m{escape_control(text)}\x1b[0m" if style and text else escape_control(text)
