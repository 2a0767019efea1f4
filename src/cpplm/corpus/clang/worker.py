"""Parses files with libclang and tells what their identifiers refer to; a process of its own.

Started as `python -P -m cpplm.corpus.clang.worker`. It reads a request per line of stdin and answers with
a line on stdout, both JSON: first a `WorkerSetup`, then jobs. libclang runs nothing of what it parses, but
the code is not trusted: libclang follows its `#include`s and may crash, hang or swell on it. So this process
takes limits on processor time and memory and, on Linux, gives up writing, opening sockets, and reading
anything but the project, the toolchain and the folders that it is given. Where the kernel has no Landlock it
says so; an
`#include "/etc/passwd"` can then leak into the diagnostic that the report shows.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from clang import cindex

from cpplm.corpus.clang.protocol import ParseFailure, ParseJob, ParseResult, WorkerSetup
from cpplm.corpus.clang.translation_unit import Walker, load_library, parse
from cpplm.sandbox import isolation, seccomp
from cpplm.sandbox.request import LaunchRequest

_FLAGS = ("-w", "-ferror-limit=0", "-fno-spell-checking", "-fno-caret-diagnostics")
_MOST_DIAGNOSTICS = 2_000
_LONGEST_MESSAGE = 300


class FileNumbers:
    """Numbers of the project's files by any path that leads to one of them, or to a copy of one."""

    def __init__(self, setup: WorkerSetup) -> None:
        """Know the files by path and by contents."""
        self.paths = setup["files"]
        self._numbers = {path: number for number, path in enumerate(self.paths)}
        self._by_digest = dict(zip(setup["digests"], range(len(self.paths)), strict=True))
        self._roots = tuple(root + "/" for root in setup["roots"])

    def number(self, name: str) -> int:
        """The file's number; -1 when it is not of the project."""
        path = os.path.realpath(name)
        number = self._numbers.get(path)
        if number is None:
            number = -1
            if path.startswith(self._roots):
                with suppress(OSError):
                    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
                    number = self._by_digest.get(digest, -1)
            self._numbers[path] = number
        return number


class Worker:
    """Answers jobs one after the other."""

    def __init__(self, setup: WorkerSetup) -> None:
        """Choose the compiler's headers and build the walls; raises nothing, `hello` tells."""
        self._files = FileNumbers(setup)
        self._index = cindex.Index.create()
        self._library = load_library()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (setup["memory_bytes"], setup["memory_bytes"]))
        wall = build_walls(setup["readable"])
        self._builtin: list[str] = []
        error = "no flags"
        for flags in setup["builtin"]:
            error = self._probe(flags, setup["probe"])
            if not error:
                self._builtin = flags
                break
        self.hello = {"error": error, "builtin": self._builtin, "walls": wall}

    def _probe(self, flags: list[str], program: str) -> str:
        """The first error in a program that includes the compiler's own headers."""
        unit = self._index.parse("probe.cpp", args=[*_FLAGS, *flags], unsaved_files=[("probe.cpp", program)])
        return next((each.spelling for each in unit.diagnostics if each.severity >= each.Error), "")

    def answer(self, job: ParseJob) -> ParseResult | ParseFailure:
        """Parse and walk one file."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime) + 1
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (spent + job["cpu_seconds"], hard))
        path = self._files.paths[job["file"]]
        unit = parse(self._library, self._index, path, [*_FLAGS, *self._builtin, *job["flags"]])
        if unit is None:
            return {"failed": "libclang refuses these flags"}
        seen = {self._files.number(each.include.name) for each in unit.get_includes()}
        seen = (seen | {job["file"]}) - {-1}
        walker = Walker(self._library, self._files.number, [n for n in job["walk"] if n in seen])
        walker.walk(unit.obj)
        errors, doubtful = self._errors(unit, job["file"])
        return {
            "seen": sorted(seen),
            "errors": errors,
            "doubtful": {number: sorted(lines) for number, lines in doubtful.items()},
            **walker.references(self._files.paths),
        }

    def _errors(self, unit: cindex.TranslationUnit, main: int) -> tuple[dict[str, str], dict[str, set[int]]]:
        """The first error in each project file, and all lines with one.

        Errors in other headers are the main file's.
        """
        errors: dict[str, str] = {}
        doubtful: dict[str, set[int]] = {}
        for diagnostic in itertools.islice(unit.diagnostics, _MOST_DIAGNOSTICS):
            if diagnostic.severity < diagnostic.Error:
                continue
            location = diagnostic.location
            number = self._files.number(location.file.name) if location.file else -1
            place = f"line {location.line}" if number >= 0 else f"{location.file}:{location.line}"
            message = f"{place}: {diagnostic.spelling}"[:_LONGEST_MESSAGE]
            errors.setdefault(str(number if number >= 0 else main), message)
            if number >= 0:
                doubtful.setdefault(str(number), set()).add(location.line - 1)
        return errors, doubtful


def build_walls(readable: list[str]) -> str:
    """Give up what parsing does not need; returns what stands between the code and this machine."""
    if sys.platform != "linux":
        return "limits"
    isolation.die_with_parent()
    isolation.process_control(isolation.PR_SET_NO_NEW_PRIVS, 1)
    names = ["limits"]
    try:
        request = LaunchRequest(read_only=readable, folders={}, devices=[os.devnull], scratch_bytes=0)
        isolation.landlock(request, os.devnull)
        names.append("Landlock")
    except OSError:  # an older kernel, or one without Landlock
        pass
    if seccomp.supported():
        isolation.install_filter(seccomp.assemble(shared_host=True), seccomp.OWN_PID)
        names.append("seccomp")
    return ", ".join(names)


def main() -> None:
    """Serve until stdin ends."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answers:
        os.dup2(2, 1)  # what libclang prints does not get between the answers
        lines = iter(sys.stdin.buffer.readline, b"")
        worker = Worker(json.loads(next(lines)))
        answers.write(json.dumps(worker.hello) + "\n")
        answers.flush()
        for line in lines:
            answers.write(json.dumps(worker.answer(json.loads(line)), separators=(",", ":")) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
