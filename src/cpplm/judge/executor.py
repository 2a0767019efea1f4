"""The judge of everything that models write: compiles and runs it with its tests, in the sandbox.

A program passes when it reaches the end of its tests with exit code 0 and no assertion failed; both are seen
by reports that it cannot forge (`assertions.py`). Exit code 0 alone proves nothing: `_exit(0)` has it too.

Equal programs are judged once, also in another process when their verdicts are kept. The key is the hash of
the source, the compiler's version and flags, and the limits. A verdict that says as much about the machine as
about the program is not kept: the sandbox failed, the clock ran out on a busy machine, a header is missing.

What only saves time changes no verdict and is not in the key: another linker, and headers compiled
beforehand. These are none but those that the program includes itself before the place where the model wrote,
so a program that lacks an include still fails to compile.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from cpplm.core.progress import progress_bar
from cpplm.core.storage import sha256
from cpplm.core.workers import available_cores
from cpplm.judge.assertions import AssertionReport, InstrumentedProgram, instrument_assertions, parse_report
from cpplm.judge.headers import find_missing_headers, included_headers, leading_headers, link_flags
from cpplm.judge.result_cache import Verdict, VerdictCache
from cpplm.judge.scoring import Outcome, find_forbidden
from cpplm.sandbox import precompiled
from cpplm.sandbox.compiler import COMPILE_LIMITS, MAX_PROGRAM_BYTES, fast_linker, require_compiler
from cpplm.sandbox.limits import MIB, ResourceLimits, RunResult
from cpplm.sandbox.sandbox import Sandbox, SandboxError

# A function that ends without the `return` it owes is trapped: what it gives back would pass by luck, the
# more so as a bool that is neither 0 nor 1 equals both.
COMPILER = (
    "g++", "-std=c++17", "-O0", "-w", "-pipe", "-fmax-errors=5", "-ftemplate-depth=256",
    "-fconstexpr-ops-limit=5000000", "-fsanitize=return", "-fsanitize-undefined-trap-on-error",
)  # fmt: skip
TARGET = ("-include", "harness.h", "-o", "program", "program.cpp")
RUN_LIMITS = ResourceLimits(wall_seconds=10, cpu_seconds=5, memory_bytes=512 * MIB, processes=8)
MAX_ANSWER_CHARS = 1 << 16
"""Characters; a model that writes more has not stopped."""
MESSAGE_CHARACTERS = 2000
MIN_PROGRAMS_TO_PRECOMPILE = 6
"""Programs with the same headers: compiling these beforehand takes as long as it saves on five."""

_SURELY_LIMITED = 0.9  # of the processor time that is allowed: the limit was the program's own doing
_BINARY = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Program:
    """A program in three parts, with what a model wrote in the middle."""

    prefix: str
    completion: str
    """The model's text: not to be trusted."""
    suffix: str
    """Ends with the tests and the closing brace of main."""


@dataclass(frozen=True)
class _PendingProgram:
    """A program that has to be compiled and run."""

    program: Program
    headers: tuple[str, ...]
    """The headers that it includes before everything else."""
    link: tuple[str, ...]
    numbers: list[int]
    """The places at which it was asked for."""


_PrecompiledHeaders = Mapping[tuple[str, ...], "Future[Path | None]"]
"""Sets of headers that are being compiled, and in which folder they will be."""


class Judge:
    """Judges programs, several at a time."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        workers: int = 0,
        cache_dir: Path | None = None,
        limits: ResourceLimits = RUN_LIMITS,
        speed_up: bool = True,
        quiet: bool = False,
    ) -> None:
        """Look at the compiler, and read the verdicts that are there.

        Args:
            sandbox: where programs are compiled and run.
            workers: programs at the same time; 0 means one per core.
            cache_dir: the folder in which verdicts are kept; None keeps them as long as this judge.
            limits: of a run.
            quiet: judge without a progress bar.
            speed_up: take the fastest linker that works, and compile common headers beforehand.

        Raises:
            UserError: no compiler in the sandbox, or the folder cannot be used.
        """
        self.sandbox = sandbox
        self.compiler = require_compiler(sandbox)
        self._workers = workers or available_cores()
        self._store = VerdictCache(cache_dir)
        self._limits = limits
        self._speed_up = speed_up
        self._quiet = quiet
        self._linker = fast_linker(sandbox) if speed_up else ()
        self._header_counts: Counter[tuple[str, ...]] = Counter()
        self._precompiled: dict[tuple[str, ...], Path | None] = {}

    def judge(self, programs: Sequence[Program]) -> Iterator[tuple[int, Verdict]]:
        """Number and verdict of each program, as soon as there is one.

        Raises:
            UserError: a verdict cannot be kept (the disk is full).
            ValueError: a program has too many assertions to count.
        """
        headers = [
            (*included_headers(program.prefix), *included_headers(program.suffix)) for program in programs
        ]
        missing = find_missing_headers({name for names in headers for name in names}, self.sandbox)
        jobs: dict[str, _PendingProgram] = {}
        with progress_bar(len(programs), "compile and run", "program", disable=self._quiet) as bar:
            for number, (program, names) in enumerate(zip(programs, headers, strict=True)):
                counted, link = _instrument(program), link_flags(names)
                key = self._key(counted, link)
                verdict = _refusal(program, counted, names, missing) or self._store.get(key)
                if verdict:
                    bar.update()
                    yield number, verdict
                else:
                    job = _PendingProgram(program, leading_headers(program.prefix), link, [])
                    jobs.setdefault(key, job).numbers.append(number)
            for job, verdict in self._run(jobs):
                bar.update(len(job.numbers))
                for number in job.numbers:
                    yield number, verdict

    def _key(self, counted: InstrumentedProgram, link: Sequence[str]) -> str:
        limits = (repr(COMPILE_LIMITS), repr(self._limits))
        what = (counted.harness, counted.source, *COMPILER, *link, self.compiler, *limits)
        return sha256("\0".join(what).encode("utf-8", errors="replace"))

    def _run(self, jobs: Mapping[str, _PendingProgram]) -> Iterator[tuple[_PendingProgram, Verdict]]:
        """Compile and run in any order; leaving early drops what has not begun."""
        pool = ThreadPoolExecutor(self._workers)
        try:
            if self._speed_up:  # counted over all calls, of which each may have few programs
                self._header_counts.update(job.headers for job in jobs.values())
            headers = {
                group: pool.submit(self._precompile, group)
                for group, count in self._header_counts.most_common()
                if group and count >= MIN_PROGRAMS_TO_PRECOMPILE
            }  # before the programs, which wait for them
            futures = {pool.submit(self._verdict, key, job, headers): job for key, job in jobs.items()}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _precompile(self, group: tuple[str, ...]) -> Path | None:
        known = self._precompiled.get(group)
        if group not in self._precompiled or (known and not known.is_dir()):
            try:
                known = precompiled.precompile(self.sandbox, group, COMPILER, self.compiler)
            except (SandboxError, OSError):
                known = None  # it would only have been faster
            self._precompiled[group] = known
        return known

    def _verdict(self, key: str, job: _PendingProgram, headers: _PrecompiledHeaders) -> Verdict:
        """Compile and run one program, and keep the verdict where it is one on the program alone."""
        counted = _instrument(job.program)
        own = [group for group in headers if set(group) <= set(job.headers)]
        folder = headers[max(own, key=len)].result() if own else None
        try:
            verdict = self._compile_and_run(counted, job.link, folder)
        except SandboxError as error:
            return Verdict("sandbox error", str(error), 0.0, len(counted.assertions), 0, certain=False)
        if verdict.certain:
            self._store.add(key, verdict)
        return verdict

    def _compile_and_run(
        self, counted: InstrumentedProgram, link: Sequence[str], folder: Path | None
    ) -> Verdict:
        count = len(counted.assertions)
        source = counted.source.encode("utf-8", errors="replace")
        compiled = self.sandbox.run(
            {"program.cpp": source, "harness.h": counted.harness.encode()},
            [*COMPILER, *(precompiled.FLAGS if folder else ()), *TARGET, *self._linker, *link],
            COMPILE_LIMITS,
            fetch={"program": MAX_PROGRAM_BYTES},
            folders=precompiled.pch_include_dir(folder) if folder else None,
        )
        binary = compiled.files.get("program")
        if not compiled.succeeded or binary is None:
            by_itself = compiled.reason == "exit"
            message = ("" if by_itself else f"{compiled.reason}: ") + compiled.message()[:MESSAGE_CHARACTERS]
            outcome: Outcome = "compile error" if by_itself else "compile limit"
            certain = _is_reproducible(compiled, COMPILE_LIMITS)
            return Verdict(outcome, message, compiled.cpu_seconds, count, 0, certain=certain)
        words = counted.make_report_tokens()
        stdin = b"".join(words)
        limits = replace(self._limits, output_bytes=self._limits.output_bytes + len(stdin))
        ran = self.sandbox.run({"program": binary}, ["./program"], limits, stdin=stdin)
        reported = parse_report(ran.stdout, words)
        cpu_seconds = compiled.cpu_seconds + ran.cpu_seconds
        message = _run_message(ran, counted, reported)
        certain = _is_reproducible(ran, limits)
        return Verdict(_outcome(ran, reported), message, cpu_seconds, count, reported.passed, certain=certain)


def _instrument(program: Program) -> InstrumentedProgram:
    return instrument_assertions(program.prefix + program.completion, program.suffix)


def _refusal(
    program: Program, counted: InstrumentedProgram, headers: Sequence[str], missing: Mapping[str, str]
) -> Verdict | None:
    """The verdict on a program that is not even compiled."""
    forbidden = find_forbidden(program.completion)
    outcome: Outcome
    if lacking := [missing[name] for name in headers if name in missing]:
        outcome, message = "not judged", ", ".join(lacking)
    elif len(program.completion) > MAX_ANSWER_CHARS:
        outcome, message = (
            "too long",
            f"{len(program.completion):,} characters, more than {MAX_ANSWER_CHARS:,}",
        )
    elif _BINARY.search(program.completion):
        outcome, message = "binary", "control characters or halves of characters"
    elif forbidden in {"/*", 'R"'}:
        outcome, message = "compile error", f"{forbidden!r} begins what does not end"
    elif forbidden:
        outcome, message = "forbidden", f"{forbidden!r} is not accepted from a model"
    else:
        return None
    return Verdict(outcome, message, 0.0, len(counted.assertions), 0, certain=not lacking)


def _run_message(ran: RunResult, counted: InstrumentedProgram, reported: AssertionReport) -> str:
    """The assertion, signal or exit code that ended a run, and the end of its stderr."""
    happened = ""
    if reported.failed is not None:
        number, of = reported.failed, len(counted.assertions)
        happened = f"assertion {number + 1} of {of} failed: {counted.assertions[number]}\n"
    elif ran.signal is not None:
        happened = f"signal {ran.signal}\n"
    elif ran.exit_code:
        happened = f"exit code {ran.exit_code}\n"
    return happened + ran.message()[-MESSAGE_CHARACTERS:]


def _outcome(ran: RunResult, reported: AssertionReport) -> Outcome:
    """The outcome of a run; a failed assertion decides it, as an ordinary one ends the program."""
    if reported.failed is not None:
        return "wrong answer"
    if ran.reason in {"timeout", "memory", "output limit"}:
        return ran.reason
    if ran.succeeded:
        return "pass" if reported.finished else "early exit"
    return "early exit" if ran.reason == "exit" else "crash"


def _is_reproducible(result: RunResult, limits: ResourceLimits) -> bool:
    """True if the run depends on the program alone: not when a busy machine let the clock run out."""
    if result.reason != "timeout" or result.signal == signal.SIGXCPU:
        return True
    # The kernel's limit and its report count differently: on a busy machine the report may be less.
    return result.cpu_seconds >= _SURELY_LIMITED * limits.cpu_seconds
