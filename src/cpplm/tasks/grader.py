"""Compilers and judges for graders: what was compiled once is not compiled again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cpplm.core.jsonl import JsonlFile, read_jsonl
from cpplm.core.storage import sha256
from cpplm.core.workers import available_cores, map_in_threads
from cpplm.corpus.compile.compiler import STANDARDS, compile_document, require_standards
from cpplm.cpp.parser import Language
from cpplm.judge.executor import RUN_LIMITS, Judge
from cpplm.sandbox.sandbox import Sandbox

_FILE = "diagnostics.jsonl"
CALL_LIMITS = replace(RUN_LIMITS, cpu_seconds=2)  # for a few calls of one function


@dataclass(frozen=True)
class Diagnostic:
    """The compiler's verdict on a document: its first error, and the line that it names (0 = none)."""

    compiles: bool
    error: str = ""
    line: int = 0
    standard: str = ""
    certain: bool = True
    """False if a limit ended the compiler, which says as much about the machine as about the document."""


class Grader:
    """A sandbox with a compiler, and verdicts that were reached before."""

    def __init__(
        self,
        *,
        headers: Sequence[Path] = (),
        cache_dir: Path | None = None,
        workers: int = 0,
        quiet: bool = False,
    ) -> None:
        """Look at the compiler, and read the verdicts that are there.

        Args:
            headers: folders of third-party headers.
            cache_dir: where verdicts are kept; None keeps them as long as this grader.
            workers: programs at the same time; 0 means one per core.
            quiet: compile and judge without progress bars.

        Raises:
            UserError: no compiler in the sandbox, or the folder cannot be used.
        """
        self.sandbox = Sandbox.probe()
        self._workers = workers or available_cores()
        self._headers = tuple(headers)
        self._key = f"{require_standards(self.sandbox)} {self._headers}"
        self._quiet = quiet
        self.judge = Judge(
            self.sandbox,
            workers=workers,
            cache_dir=cache_dir,
            limits=CALL_LIMITS,
            quiet=quiet,
        )
        self._found: dict[str, Diagnostic] = {}
        self._lock = threading.Lock()
        self._file: JsonlFile | None = None
        if cache_dir:
            path = cache_dir / _FILE
            for key, *values in read_jsonl(path, damaged="skip"):
                self._found[key] = Diagnostic(*values)
            self._file = JsonlFile(path)

    def compile(self, documents: Sequence[tuple[str, Language, str]], what: str) -> list[Diagnostic]:
        """The verdict on each document, compiled on its own.

        Args:
            documents: of each text, language and the standard that it is known to be written for; where that
                is "", standards are tried in turn.
            what: is said beside the progress bar.
        """
        return map_in_threads(
            self._compile, documents, workers=self._workers, what=what, unit="text", disable=self._quiet
        )

    def _compile(self, document: tuple[str, Language, str]) -> Diagnostic:
        text, language, standard = document
        text = text.encode("utf-8", errors="replace").decode()
        key = sha256(f"{self._key} {language}{standard}\n{text}".encode())[:32]
        if key in self._found:
            return self._found[key]
        standards = (standard,) if standard and language == "c++" else STANDARDS
        result = compile_document(text, language, self.sandbox, self._headers, standards)
        certain = not result.ended_by_limit
        found = Diagnostic(result.compiles, result.first_error, result.place[0], result.standard, certain)
        with self._lock:
            if certain:
                self._found[key] = found
            if self._file and certain:
                self._file.append([key, found.compiles, found.error, found.line, found.standard])
        return found
