"""Progress bars on stderr: live on a terminal, one line every ten seconds in a log file.

Of several ranks that do the same, the first one speaks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tqdm import tqdm


def progress_bar(total: float | None, description: str, unit: str, **options: Any) -> tqdm[Any]:
    """A tqdm bar on stderr with rate and time left; use as a context manager and call `update(n)`."""
    interactive = sys.stderr.isatty()
    return tqdm(
        total=total,
        desc=description,
        unit=unit,
        file=sys.stderr,
        mininterval=0.1 if interactive else 10.0,
        dynamic_ncols=interactive,
        smoothing=0.05,
        **options,
    )


def log_info(message: str) -> None:
    """One line to stderr that does not tear a live progress bar."""
    if os.environ.get("RANK", "0") == "0":
        tqdm.write(message, file=sys.stderr)
