"""Verdicts that are kept, so that no program is compiled and run twice.

One file (`core/jsonl.py`), to which a verdict is appended as soon as its program is judged: kill -9 loses the
programs under way and nothing else. Lines that are no verdicts are passed over.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import dacite

from cpplm.core.errors import UserError
from cpplm.core.jsonl import JsonlFile, read_jsonl
from cpplm.judge.scoring import Outcome

FILE = "verdicts.jsonl"


@dataclass(frozen=True)
class Verdict:
    """The judge's word on a program."""

    outcome: Outcome
    message: str
    """The compiler's message, or the assertion that failed and the end of the program's stderr."""
    cpu_seconds: float
    """Processor time of the compiler and the program, when they ran."""
    assertions: int
    """The number in the tests."""
    assertions_passed: int
    """The number of them that were reached and never failed."""
    certain: bool = True
    """False if it says as much about the machine as about the program; such verdicts are not kept."""

    def as_empty(self) -> Verdict:
        """The verdict on an empty answer (`is_empty`): it earns nothing even where its program compiles."""
        if self.outcome in ("not judged", "sandbox error"):
            return self
        return replace(self, outcome="empty", assertions_passed=0)


class VerdictCache:
    """Verdicts by key; safe to call from several threads and several processes."""

    def __init__(self, folder: Path | None) -> None:
        """Read what is kept in a folder, which is made when it does not exist; None keeps in memory.

        Raises:
            UserError: it cannot be read or made.
        """
        self._path = folder.expanduser() / FILE if folder else None
        self._lock = threading.Lock()
        self._verdicts: dict[str, Verdict] = {}
        if self._path:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                for record in read_jsonl(self._path, damaged="skip"):
                    self._read(record)
            except OSError as error:
                raise UserError(f"cannot keep verdicts in {folder}: {error.strerror}") from error

    def _read(self, record: Any) -> None:
        try:
            key = record.pop("key")
            verdict = dacite.from_dict(Verdict, record, dacite.Config(strict=True))
        except (TypeError, KeyError, AttributeError, dacite.DaciteError):
            return
        if isinstance(key, str) and verdict.outcome in get_args(Outcome):
            self._verdicts[key] = verdict

    def get(self, key: str) -> Verdict | None:
        """The verdict on an equal program."""
        return self._verdicts.get(key)

    def add(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict.

        Raises:
            UserError: the disk is full or the file cannot be written.
        """
        values = asdict(verdict)
        del values["certain"]
        with self._lock:
            self._verdicts[key] = verdict
            if self._path:
                file = JsonlFile(self._path)
                try:
                    file.append({"key": key, **values})
                finally:
                    file.close(sync=False)
