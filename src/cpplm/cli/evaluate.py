"""`cpplm evaluate [bpb|likelihood|cpp|fim|tasks|self_test]`."""

from __future__ import annotations

from typing import Any

from cpplm.cli.report import Report
from cpplm.core.errors import UserError
from cpplm.core.text import pluralize
from cpplm.evaluate import bits_per_byte
from cpplm.evaluate import likelihood as solutions
from cpplm.evaluate.problems import load_problems
from cpplm.evaluate.run import Evaluation
from cpplm.evaluate.self_test import self_test as judge_solutions
from cpplm.evaluate.self_test import table as self_test_table
from cpplm.evaluate.settings import (
    BpbCommand,
    CppCommand,
    EvaluateCommand,
    FimCommand,
    LikelihoodCommand,
    LikelihoodSettings,
    SelfTestSettings,
)
from cpplm.evaluate.task_comparison import evaluate_tasks, format_comparison
from cpplm.evaluate.task_settings import TasksCommand
from cpplm.judge.executor import Judge
from cpplm.sandbox.sandbox import Sandbox


def bpb(settings: BpbCommand) -> Report:
    """Bits per byte."""
    evaluation = Evaluation(settings.target)
    result = evaluation.bits_per_byte(settings.bpb)
    return report_on(evaluation, bits_per_byte.table(result), bpb=result)


def likelihood(settings: LikelihoodCommand) -> Report:
    """Likelihood of right and wrong solutions."""
    evaluation = Evaluation(settings.target)
    result = evaluation.likelihood(settings.likelihood)
    return report_on(evaluation, solutions.table(result), likelihood=result)


def cpp(settings: CppCommand) -> Report:
    """C++ problems."""
    evaluation = Evaluation(settings.target)
    result = evaluation.cpp(settings.cpp)
    return report_on(evaluation, _cpp_table(result), cpp=result)


def fim(settings: FimCommand) -> Report:
    """Fill-in-the-middle."""
    evaluation = Evaluation(settings.target)
    result = evaluation.fim(settings.fim)
    return report_on(evaluation, result["table"], fim=result)


def tasks(settings: TasksCommand) -> Report:
    """Tasks from the user's own code, one model against others."""
    result = evaluate_tasks(settings)
    return Report(format_comparison(result), result)


def self_test(settings: SelfTestSettings) -> Report:
    """The harness judged by solutions whose worth is known."""
    problems = [problem for name in settings.problems for problem in load_problems(name)]
    figures = judge_solutions(Judge(Sandbox.probe(), workers=settings.workers), problems)
    if figures["complaints"]:
        raise UserError("the harness judges wrongly:\n" + self_test_table(figures))
    return Report(self_test_table(figures), figures)


def everything(settings: EvaluateCommand) -> Report:
    """All of them, the same problems for the last two."""
    evaluation = Evaluation(settings.target)
    bits = evaluation.bits_per_byte(settings.bpb)
    likely = evaluation.likelihood(LikelihoodSettings(settings.cpp.problems))
    problems = evaluation.cpp(settings.cpp)
    text = "\n\n".join([bits_per_byte.headline(bits), solutions.table(likely), _cpp_table(problems)])
    return report_on(evaluation, text, bpb=bits, likelihood=likely, cpp=problems)


def report_on(evaluation: Evaluation, text: str, **results: dict[str, Any]) -> Report:
    """The report on some results of a model."""
    about = evaluation.about
    return Report(f"{about['model']}\n{text}", {**about, **{k: _figures(v) for k, v in results.items()}})


def _cpp_table(result: dict[str, Any]) -> str:
    lines = [result["table"]]
    lines += [
        f"{pluralize(count, 'sample')} failed: {why}"
        for why, count in result.get("failed_samples", {}).items()
    ]
    return "\n".join(lines)


def _figures(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in ("table", "details")}
