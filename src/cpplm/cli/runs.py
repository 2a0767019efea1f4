"""`cpplm runs [page|compare|list]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cpplm.cli.report import Report
from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.core.text import short_number
from cpplm.train.report.compare import compare as compare_runs
from cpplm.train.report.compare import find_runs, read_runs, write_comparison
from cpplm.train.report.html import duration, write_page
from cpplm.train.report.log_reader import RunHistory, headline_figures


@dataclass(frozen=True)
class RunPageSettings:
    """Settings of `cpplm runs page`."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Run folder of `cpplm train`."""
    out: Path | None = None
    """Write the page to this file (default: page.html in the run folder; where that cannot be written, the
    present folder gets it)."""


@dataclass(frozen=True)
class RunCompareSettings:
    """Settings of `cpplm runs compare`."""

    runs: Annotated[tuple[str, ...], Argument("RUN", positional=True)] = ()
    """Run folders of `cpplm train`, two or more."""
    out: Path | None = None
    """Also write a page with their curves to this file."""


@dataclass(frozen=True)
class RunListSettings:
    """Settings of `cpplm runs list`."""

    folder: Annotated[str, Argument("FOLDER", positional=True)] = "runs"
    """Folder under which the runs lie."""


def page(settings: RunPageSettings) -> Report:
    """Write the page of a run."""
    path = write_page(settings.run, settings.out)
    return Report(f"{path} (open it in a browser)", {"page": str(path)})


def compare(settings: RunCompareSettings) -> Report:
    """Lay runs side by side."""
    histories = read_runs(settings.runs)
    found = compare_runs(histories)
    rows = [["", *found.names], *([row.name, *row.cells] for row in found.rows())]
    text = _table(rows)
    if found.remark:
        text += f"\n\n{found.remark}"
    if found.differences:
        text += "\n\nsettings in which they differ\n"
        text += _table([[name, *map(str, values)] for name, values in found.differences.items()])
    if settings.out is not None:
        write_comparison(histories, found, settings.out)
        text += f"\n\n{settings.out} (open it in a browser)"
    return Report(text, {"runs": found.runs, "common": found.common, "differences": found.differences})


def list_runs(settings: RunListSettings) -> Report:
    """One line for each run."""
    found = []
    rows = [["run", "state", "steps", "tokens", "bits per byte", "tokens/s", "time"]]
    for folder in find_runs(settings.folder):
        try:
            run = headline_figures(RunHistory(folder))
        except UserError as error:
            run = {"folder": str(folder), "state": f"unreadable: {error}"}
        found.append(run)
        bits = run.get("bits_per_byte")
        rows.append(
            [
                str(folder),
                run["state"],
                f"{run.get('step', 0):,}",
                short_number(run.get("tokens", 0)),
                "" if bits is None else f"{bits:.4f}",
                f"{run.get('tokens_per_second', 0):,.0f}",
                duration(run.get("seconds", 0)),
            ]
        )
    if not found:
        raise UserError(f"no runs below {settings.folder}", fix="Name a folder that holds run folders.")
    return Report(_table(rows), {"runs": found})


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
