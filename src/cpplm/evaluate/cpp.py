"""C++ problems: completions are cut where the function ends, judged with their tests, and counted.

The model is a function that is passed in; nothing here knows what it is. `judge/` compiles and runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.evaluate.judge.judging import LARGEST_WRITTEN, Judge, Program
from cpplm.evaluate.judge.scoring import CppReport, SampleResult, function_body, summarise
from cpplm.evaluate.problems import Problem, load_problems
from cpplm.generate.sampling import SamplingSettings
from cpplm.sandbox.sandbox import Sandbox

Generate = Callable[[list[str], SamplingSettings, int], list[list[str]]]
"""A model: prompts, sampling and the number of samples in; the completions of each prompt out, in order."""


@dataclass(frozen=True)
class CppEvalSettings:
    """How C++ problems are sampled and judged."""

    problems: str = "small"
    """"small" (21 problems of ours), "humaneval" (164, HumanEvalPack) or the path of a JSON Lines file."""
    num_samples: int = 1
    """Completions per problem; pass@10 needs at least 10."""
    temperature: float = 0.0
    """0 takes the likeliest token (greedy); 0.2 to 0.8 is usual with several samples."""
    top_k: int = 0
    """Sample among the k likeliest tokens; 0 means all."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that have this share of the probability together (0.95 is usual)."""
    max_new_tokens: int = 256
    """Length of a completion in tokens."""
    seed: int = 0
    """Seed of the sampling."""
    workers: int = 0
    """Programs compiled and run at the same time; 0 means one per core."""
    unsafe: bool = False
    """Run generated programs WITHOUT isolation. Never do this on a machine you care about."""

    def __post_init__(self) -> None:
        for name, least in (("num_samples", 1), ("workers", 0)):
            if getattr(self, name) < least:
                raise UserError(f"--{name} must be at least {least}, not {getattr(self, name)}")
        _ = self.sampling
        if self.temperature == 0 and self.num_samples > 1:
            raise UserError(
                f"--num_samples {self.num_samples} at --temperature 0 would draw equal samples",
                fix="Set --temperature 0.2 or more, or --num_samples 1.",
            )
        if self.temperature == 0 and (self.top_k > 0 or self.top_p < 1):
            raise UserError(
                "--top_k and --top_p have no effect at --temperature 0",
                fix="Set a temperature or leave them out.",
            )

    @property
    def sampling(self) -> SamplingSettings:
        """How completions are drawn."""
        return SamplingSettings(
            self.max_new_tokens, self.temperature, self.top_k, self.seed, top_p=self.top_p
        )


def evaluate_problems(
    generate: Generate,
    settings: CppEvalSettings,
    *,
    problems: Sequence[Problem] | None = None,
    sandbox: Sandbox | None = None,
    verdicts: Path | None = None,
) -> CppReport:
    """Have the model complete every problem, then judge the completions.

    Args:
        generate: the model.
        settings: sampling and judging.
        problems: instead of those that the settings name.
        sandbox: instead of the strongest that works here.
        verdicts: the folder in which verdicts are kept, so that a crash resumes.

    Raises:
        UserError: no sandbox, no compiler, or a malformed problem file; found before anything is generated.
        ValueError: `generate` returned another number of completions than was asked for.
    """
    chosen = list(problems) if problems is not None else load_problems(settings.problems)
    sandbox = sandbox or Sandbox.probe(unsafe=settings.unsafe)
    judge = Judge(sandbox, workers=settings.workers, verdicts=verdicts)
    completions = generate([problem.prompt for problem in chosen], settings.sampling, settings.num_samples)
    if [len(group) for group in completions] != [settings.num_samples] * len(chosen):
        raise ValueError(
            f"{settings.num_samples} completions for each of {len(chosen)} prompts were asked for"
        )
    named = {problem.name: group for problem, group in zip(chosen, completions, strict=True)}
    return evaluate_completions(chosen, named, judge)


def evaluate_completions(
    problems: Sequence[Problem], completions: Mapping[str, Sequence[str]], judge: Judge
) -> CppReport:
    """Judge given completions.

    Args:
        problems: what was asked.
        completions: for each problem's name its completions, at least one.
        judge: compiles and runs them.

    Raises:
        UserError: this machine lacks something for every one of the problems, or verdicts cannot be kept.
        ValueError: a problem without completions, or completions without their problem.
    """
    names = {problem.name for problem in problems}
    if names != {name for name, group in completions.items() if group}:
        raise ValueError("every problem needs at least one completion, and every completion its problem")
    asked = [problem for problem in problems for _ in completions[problem.name]]
    bodies = [cut(text) for problem in problems for text in completions[problem.name]]
    verdicts = dict(judge.judge([program(*pair) for pair in zip(asked, bodies, strict=True)]))
    samples = []
    for number, (problem, body) in enumerate(zip(asked, bodies, strict=True)):
        found = verdicts[number]
        samples.append(
            SampleResult(
                problem.name, problem.difficulty, body, found.outcome, found.message, found.cpu_seconds,
                found.assertions, found.assertions_passed,
            )
        )  # fmt: skip
    return summarise(samples, judge.sandbox.name)


def cut(completion: str) -> str:
    """The body of the function; everything when it does not end."""
    body = function_body(completion[:LARGEST_WRITTEN])
    return body.text if body.complete else completion


def program(problem: Problem, body: str) -> Program:
    """What judges the body of a problem's function."""
    return Program(problem.prompt, body, f'\n#line 1 "tests.cpp"\n{problem.tests}')
