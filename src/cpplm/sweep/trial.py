"""One trial: a run in a process of its own, whose log is watched while it grows."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cpplm.core.appended_lines import AppendedLines
from cpplm.core.errors import UserError
from cpplm.core.lease import FencedError
from cpplm.core.run_log import LOG
from cpplm.core.shutdown import PREEMPTED_STATUS
from cpplm.train.report.html import write_page

OUTPUT = "output.txt"
POLL_SECONDS = 1.0
STOPPED = (130, PREEMPTED_STATUS)
"""Exit statuses of a run that was asked to stop, and goes on when it is started again."""

Record = dict[str, Any]


def new_records(log: AppendedLines) -> list[Record]:
    """The complete records of a run log since the last look; a resumed run writes all of them anew."""
    try:
        _, lines = log.read()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        with contextlib.suppress(ValueError):  # torn by a kill
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict) and "event" in record]


def measured(records: list[Record], metric: str) -> Iterator[tuple[int, float]]:
    """Step and value of each measurement of the metric."""
    event, name = metric.split("/")
    for record in records:
        if record["event"] == event and isinstance(record.get(name), int | float) and "step" in record:
            yield record["step"], float(record[name])


def run_trial(arguments: list[str], folder: Path, watch: Callable[[list[Record]], bool]) -> int:
    """Run a command to its end.

    Args:
        arguments: of `cpplm`; what it prints goes to `OUTPUT` in the folder.
        folder: of the run.
        watch: gets the new records of its log every second; True asks it to stop.

    Returns:
        Its exit status.

    Raises:
        FencedError: `watch` found that the trial is another worker's; the process is killed.
        KeyboardInterrupt: this process is to stop; the run has saved what it learned.
    """
    log, asked = AppendedLines(folder / LOG), False
    with (folder / OUTPUT).open("wb") as output, subprocess.Popen(
        [sys.executable, "-m", "cpplm.cli.trial", *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            while process.poll() is None:
                if watch(new_records(log)) and not asked:
                    asked = True
                    process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
            watch(new_records(log))
        except BaseException as error:
            (process.kill if isinstance(error, FencedError) else process.terminate)()
            try:
                process.wait()
            except BaseException:
                process.kill()
                raise
            raise
    return process.returncode


def failure_reason(status: int, folder: Path) -> str:
    """Reason for the failure of a run, in one line."""
    if status < 0:
        out_of_memory = " (out of memory?)" if -status == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-status).name}{out_of_memory}"
    lines = re.split(r"[\r\n]+", (folder / OUTPUT).read_text(errors="replace").strip())
    ours = [line.removeprefix("cpplm: ") for line in lines if line.startswith("cpplm: ")]
    reason = "".join(letter for letter in (ours or lines)[-1] if letter.isprintable()).strip()
    return reason[:400] or f"exit status {status}"


def write_run_page(folder: Path) -> None:
    """Write the page of a run, if it has trained."""
    with contextlib.suppress(UserError):
        write_page(folder)
