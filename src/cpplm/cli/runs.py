"""`cpplm runs [page|compare|list|watch]`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cpplm.cli.report import Report, text_table
from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.settings import Argument
from cpplm.core.text import duration, short_number
from cpplm.serve.settings import LOOPBACK, NetworkSettings
from cpplm.train.report.compare import compare as compare_runs
from cpplm.train.report.compare import find_runs, read_runs, write_comparison
from cpplm.train.report.html import write_page
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


@dataclass(frozen=True)
class RunWatchSettings:
    """Settings of `cpplm runs watch`."""

    folder: Annotated[str, Argument("FOLDER", positional=True)] = "runs"
    """Folder under which the runs lie."""
    host: str = NetworkSettings.host
    """Address to listen on; the loopback is reached from this machine alone."""
    port: int = 8100
    """Port to listen on (0 = any that is free; the URL is printed)."""

    def __post_init__(self) -> None:
        self.network()

    def network(self) -> NetworkSettings:
        """The address, and limits as a page of one's own runs needs them."""
        return NetworkSettings(self.host, self.port, max_connections=128, max_request_bytes=1 << 16)

    def check_paths(self) -> None:
        """Refuse a folder that is not there."""
        if not Path(self.folder).expanduser().is_dir():
            raise UserError(f"no such folder: {self.folder}", fix="Name the folder that holds the runs.")


def page(settings: RunPageSettings) -> Report:
    """Write the page of a run."""
    path = write_page(settings.run, settings.out)
    return Report(f"{path} (open it in a browser)", {"page": str(path)})


def compare(settings: RunCompareSettings) -> Report:
    """Lay runs side by side."""
    histories = read_runs(settings.runs)
    found = compare_runs(histories)
    rows = [["", *found.names], *([row.name, *row.cells] for row in found.rows())]
    text = text_table(rows)
    if found.remark:
        text += f"\n\n{found.remark}"
    if found.differences:
        text += "\n\nsettings in which they differ\n"
        text += text_table([[name, *map(str, values)] for name, values in found.differences.items()])
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
        except Exception as error:  # a log may hold anything
            why = str(error) if isinstance(error, UserError) else f"no log of a run ({error!r})"
            run = {"folder": str(folder), "state": f"unreadable: {why}"}
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
    return Report(text_table(rows), {"runs": found})


def watch(settings: RunWatchSettings) -> Report:
    """Serve the page of all runs until a signal says that it is enough."""
    from cpplm.serve.runs_app import RunsApplication  # noqa: PLC0415  (the others need no server)
    from cpplm.serve.server import listen, run_server  # noqa: PLC0415
    from cpplm.train.report.watch import RunWatcher  # noqa: PLC0415

    network = settings.network()
    bound, url = listen(network)
    with contextlib.closing(bound):
        if network.host not in LOOPBACK:
            log_info(f"--host {network.host} shows the runs to everybody who reaches it")
        run_server(
            RunsApplication(RunWatcher(Path(settings.folder)), network), network, bound, grace=0.0,
            what=f"runs below {settings.folder}, at {url}", ready=lambda: print(url, flush=True),
        )  # fmt: skip
    return Report("", {"url": url, "folder": settings.folder})
