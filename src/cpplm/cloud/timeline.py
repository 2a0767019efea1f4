"""The time line of a run's machines: RUN/watcher/timeline.jsonl, one JSON object for each change.

    {"time": unix seconds, "event": ..., "attempt": ..., "text": for people, ...}

`cpplm.train.report.machine_timeline` says what the events are, measures recoveries and draws them.
"""

from __future__ import annotations

import json
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.train.report.machine_timeline import TIMELINE


def read_timeline(run: Storage) -> list[dict[str, Any]]:
    """All events, oldest first.

    Raises:
        UserError: the bucket cannot be read, or something else lies there.
    """
    if not run.exists(TIMELINE):
        return []
    try:
        return [json.loads(line) for line in run.read(TIMELINE).splitlines()]
    except ValueError as error:
        raise UserError(f"{run.path(TIMELINE)} is no time line: {error}", fix="Delete it.") from error


class Timeline:
    """Appends events. An object in a bucket cannot grow: it is written anew, so only one watcher may."""

    def __init__(self, run: Storage) -> None:
        """Read what there is."""
        self._run = run
        self.events = read_timeline(run)

    def append(self, event: dict[str, Any]) -> None:
        """Add an event and write all of them."""
        self.events.append(event)
        lines = [json.dumps(each, sort_keys=True) for each in self.events]
        self._run.write(TIMELINE, ("\n".join(lines) + "\n").encode())
