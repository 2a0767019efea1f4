"""`cpplm evaluate fim`; a file of its own, since it needs the extra `[corpus]` and the other verbs do not."""

from __future__ import annotations

from cpplm.cli.evaluate import report_on
from cpplm.cli.report import Report
from cpplm.evaluate.run import Evaluation
from cpplm.evaluate.run_fim import evaluate_fim
from cpplm.evaluate.settings import FimCommand


def fim(settings: FimCommand) -> Report:
    """Fill-in-the-middle."""
    evaluation = Evaluation(settings.target)
    result = evaluate_fim(evaluation, settings.fim)
    return report_on(evaluation, result["table"], fim=result)
