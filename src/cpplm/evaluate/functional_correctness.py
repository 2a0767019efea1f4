"""C++ problems: completions are cut where the function ends, judged with their tests, and counted.

`judge/` compiles and runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cpplm.core.progress import progress_bar
from cpplm.evaluate.completion_cache import CompletionCache
from cpplm.evaluate.models.code_model import CodePrompt
from cpplm.evaluate.problems import Problem, load_problems
from cpplm.evaluate.settings import CppEvalSettings
from cpplm.judge.executor import MAX_ANSWER_CHARS, Judge, Program
from cpplm.judge.scoring import CppReport, SampleResult, function_body, is_empty, summarize
from cpplm.sandbox.sandbox import Sandbox


def evaluate_problems(
    completions: CompletionCache,
    settings: CppEvalSettings,
    *,
    problems: Sequence[Problem] | None = None,
    sandbox: Sandbox | None = None,
    cache_dir: Path | None = None,
) -> CppReport:
    """Have the model complete every problem, then judge the completions.

    Args:
        completions: by the model, or those that it wrote before.
        settings: sampling and judging.
        problems: instead of those that the settings name.
        sandbox: instead of the strongest that works here.
        cache_dir: the folder in which verdicts are kept, so that a crash resumes.

    Raises:
        UserError: no sandbox, no compiler, or a malformed problem file; found before anything is generated.
    """
    chosen = list(problems) if problems is not None else load_problems(settings.problems)
    sandbox = sandbox or Sandbox.probe(unsafe=settings.unsafe)
    judge = Judge(sandbox, workers=settings.workers, cache_dir=cache_dir)
    texts: dict[str, list[str]] = {}
    with progress_bar(len(chosen), "completing problems", "problem") as bar:
        for number, samples in completions.generate(
            [CodePrompt(problem.prompt) for problem in chosen],
            settings.sampling,
            num_samples=settings.num_samples,
            rule="end of the function",
            stop=lambda text: function_body(text).complete,
        ):
            texts[chosen[number].name] = [sample.text for sample in samples]
            bar.update()
    return evaluate_completions(chosen, texts, judge)


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
    """
    repeated = [problem for problem in problems for _ in completions[problem.name]]
    bodies = [truncate_to_body(text) for problem in problems for text in completions[problem.name]]
    verdicts = dict(judge.judge([problem_program(*pair) for pair in zip(repeated, bodies, strict=True)]))
    samples = []
    for number, (problem, body) in enumerate(zip(repeated, bodies, strict=True)):
        verdict = verdicts[number].as_empty() if is_empty(body) else verdicts[number]
        samples.append(
            SampleResult(
                problem.name, problem.difficulty, body, verdict.outcome, verdict.message, verdict.cpu_seconds,
                verdict.assertions, verdict.assertions_passed,
            )
        )  # fmt: skip
    return summarize(samples, judge.sandbox.name)


def truncate_to_body(completion: str) -> str:
    """The body of the function; everything when it does not end."""
    body = function_body(completion[:MAX_ANSWER_CHARS])
    return body.text if body.complete else completion


def problem_program(problem: Problem, body: str) -> Program:
    """The program that judges the body of a problem's function."""
    return Program(problem.prompt, body, f'\n#line 1 "tests.cpp"\n{problem.tests}')
