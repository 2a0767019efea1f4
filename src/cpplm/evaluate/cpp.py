"""C++ problems, compiled and run in the sandbox.

A sample passes when the program ends with exit code 0 and the last thing it printed is a random number that
the harness put behind the last assertion. Exit code 0 alone proves nothing: `_exit(0)` has it too. The model
is a function that is passed in; nothing here knows what it is.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.workers import available_cores
from cpplm.evaluate.problems import Problem, load_problems
from cpplm.evaluate.scoring import CppReport, Outcome, SampleResult, function_body, summarise
from cpplm.sandbox.compiler import COMPILE_LIMITS, require_compiler
from cpplm.sandbox.limits import MIB, Limits, Result
from cpplm.sandbox.sandbox import Sandbox, SandboxError

COMPILE_COMMAND = (
    "g++", "-std=c++17", "-O0", "-w", "-pipe", "-fmax-errors=5", "-ftemplate-depth=256",
    "-fconstexpr-ops-limit=5000000", "-o", "program", "program.cpp",
)  # fmt: skip
RUN_LIMITS = Limits(wall_seconds=10, cpu_seconds=5, memory_bytes=512 * MIB, processes=8)
LARGEST_PROGRAM = 48 * MIB
LARGEST_COMPLETION = 1 << 16
"""Characters of a completion that are looked at; the rest is cut."""
MESSAGE_CHARACTERS = 2000

_RETURN_AT_END = re.compile(r"return\s+(?:0|EXIT_SUCCESS)\s*;\s*\Z")


class Generate(Protocol):
    """A model: prompts in, `num_samples` completions for each out, in order."""

    def __call__(
        self,
        prompts: list[str],
        *,
        num_samples: int,
        temperature: float,
        top_k: int,
        max_new_tokens: int,
        seed: int,
    ) -> list[list[str]]:
        """Complete every prompt."""


@dataclass(frozen=True)
class CppEvalSettings:
    """How C++ problems are sampled and judged."""

    problems: str = "small"
    """"small" (21 problems that come with cpplm) or the path of a JSON Lines file."""
    num_samples: int = 1
    """Completions per problem; pass@10 needs at least 10."""
    temperature: float = 0.0
    """0 takes the likeliest token (greedy); 0.2 to 0.8 is usual with several samples."""
    top_k: int = 0
    """Sample among the k likeliest tokens; 0 means all."""
    max_new_tokens: int = 256
    """Length of a completion in tokens."""
    seed: int = 0
    """Seed of the sampling."""
    workers: int = 0
    """Programs compiled and run at the same time; 0 means one per core."""
    unsafe: bool = False
    """Run generated programs WITHOUT isolation. Never do this on a machine you care about."""

    def __post_init__(self) -> None:
        for name in ("num_samples", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1, not {getattr(self, name)}")
        for name in ("temperature", "top_k", "workers"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name} must not be negative, it is {getattr(self, name)}")
        if self.temperature == 0 and self.num_samples > 1:
            raise UserError(
                f"--num_samples {self.num_samples} at --temperature 0 would draw equal samples",
                fix="Set --temperature 0.2 or more, or --num_samples 1.",
            )
        if self.temperature == 0 and self.top_k > 0:
            raise UserError(
                "--top_k has no effect at --temperature 0", fix="Set a temperature or drop --top_k."
            )


def evaluate_problems(
    generate: Generate,
    settings: CppEvalSettings,
    *,
    problems: Sequence[Problem] | None = None,
    sandbox: Sandbox | None = None,
) -> CppReport:
    """Have the model complete every problem, then judge the completions.

    Args:
        generate: the model.
        settings: sampling and judging.
        problems: instead of those that the settings name.
        sandbox: instead of the strongest that works here.

    Raises:
        UserError: no sandbox, no compiler, or a malformed problem file; found before anything is generated.
        ValueError: `generate` returned another number of completions than was asked for.
    """
    chosen = list(problems) if problems is not None else load_problems(settings.problems)
    sandbox = sandbox or Sandbox.probe(unsafe=settings.unsafe)
    require_compiler(sandbox)
    completions = generate(
        [problem.prompt for problem in chosen],
        num_samples=settings.num_samples,
        temperature=settings.temperature,
        top_k=settings.top_k,
        max_new_tokens=settings.max_new_tokens,
        seed=settings.seed,
    )
    if [len(group) for group in completions] != [settings.num_samples] * len(chosen):
        raise ValueError(
            f"{settings.num_samples} completions for each of {len(chosen)} prompts were asked for"
        )
    named = {problem.name: group for problem, group in zip(chosen, completions, strict=True)}
    return evaluate_completions(chosen, named, sandbox, settings.workers)


def evaluate_completions(
    problems: Sequence[Problem], completions: Mapping[str, Sequence[str]], sandbox: Sandbox, workers: int = 0
) -> CppReport:
    """Compile and run given completions.

    Args:
        problems: what was asked.
        completions: for each problem's name its completions, at least one.
        sandbox: where to compile and run.
        workers: programs at the same time; 0 means one per core.

    Raises:
        UserError: there is no compiler in the sandbox.
        ValueError: a problem without completions, or completions without their problem.
    """
    names = {problem.name for problem in problems}
    if names != {name for name, group in completions.items() if group}:
        raise ValueError("every problem needs at least one completion, and every completion its problem")
    require_compiler(sandbox)
    jobs = [(problem, text) for problem in problems for text in completions[problem.name]]
    with (
        ThreadPoolExecutor(workers or available_cores()) as pool,
        progress_bar(len(jobs), "compile and run", "program") as bar,
    ):

        def work(job: tuple[Problem, str]) -> SampleResult:
            result = judge(*job, sandbox)
            bar.update()
            return result

        samples = list(pool.map(work, jobs))
    return summarise(samples, sandbox.name)


def judge(problem: Problem, completion: str, sandbox: Sandbox) -> SampleResult:
    """Compile and run one completion with its problem's tests."""
    body = function_body(completion[:LARGEST_COMPLETION])

    def verdict(outcome: Outcome, message: str, cpu_seconds: float = 0.0) -> SampleResult:
        shown = message[-MESSAGE_CHARACTERS:]
        return SampleResult(problem.name, problem.difficulty, body.text, outcome, shown, cpu_seconds)

    if body.forbidden:
        return verdict("forbidden", f"{body.forbidden!r} is not accepted inside a function")
    proof = secrets.token_hex(16)
    source = program_text(problem, body.text, proof).encode("utf-8", errors="replace")
    try:
        compiled = sandbox.run(
            {"program.cpp": source}, list(COMPILE_COMMAND), COMPILE_LIMITS, fetch={"program": LARGEST_PROGRAM}
        )
        program = compiled.files.get("program")
        if not compiled.succeeded or program is None:
            failed: Outcome = "compile error" if compiled.reason == "exit" else "compile limit"
            return verdict(failed, f"{compiled.reason}: {compiled.message()}", compiled.cpu_seconds)
        ran = sandbox.run({"program": program}, ["./program"], RUN_LIMITS)
    except SandboxError as error:
        return verdict("sandbox error", str(error))
    return verdict(_outcome(ran, proof), ran.message(), compiled.cpu_seconds + ran.cpu_seconds)


def program_text(problem: Problem, body: str, proof: str) -> str:
    """The whole program: prompt, body, tests, and at the end of main the proof that it was reached.

    <cassert> is included again behind the body, which restores `assert` whatever came before.
    """
    main = problem.tests.rstrip().removesuffix("}").rstrip()
    main = _RETURN_AT_END.sub("", main)
    head = f"{problem.prompt}{body}\n#undef NDEBUG\n#include <cassert>\n#include <cstdio>\n"
    proven = f'std::fflush(stdout);\n    std::fputs("{proof}", stdout);\n    return std::fflush(stdout);'
    return f"{head}{main}\n    {proven}\n}}\n"


def _outcome(ran: Result, proof: str) -> Outcome:
    if ran.reason in {"timeout", "memory", "output limit"}:
        return ran.reason
    if ran.succeeded:
        return "pass" if ran.stdout.endswith(proof.encode()) else "early exit"
    if b"Assertion" in ran.stderr:
        return "wrong answer"
    return "early exit" if ran.reason == "exit" else "crash"


def self_test(sandbox: Sandbox, problems: Sequence[Problem] | None = None, workers: int = 0) -> list[str]:
    """Judge the harness itself: canonical solutions must pass, buggy ones must compile and fail.

    Returns:
        One line for each solution that was judged wrongly; empty when all is well.
    """
    chosen = list(problems) if problems is not None else load_problems("small")
    solutions = {problem.name: [problem.canonical_solution, problem.buggy_solution] for problem in chosen}
    complaints = []
    for number, sample in enumerate(evaluate_completions(chosen, solutions, sandbox, workers).samples):
        if number % 2 == 0 and sample.outcome != "pass":
            complaints.append(
                f"{sample.problem}: the canonical solution ended as {sample.outcome}: {sample.message}"
            )
        if number % 2 == 1 and sample.outcome not in {"wrong answer", "crash", "timeout"}:
            complaints.append(
                f"{sample.problem}: the buggy solution ended as {sample.outcome}: {sample.message}"
            )
    return complaints
