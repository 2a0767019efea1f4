"""Fill-in-the-middle as a part of an evaluation; apart from `run.py`, as it needs the extra `[corpus]`."""

from __future__ import annotations

from typing import Any

from cpplm.core.settings import to_dict
from cpplm.evaluate.fim.suite import input_hashes, run_fim
from cpplm.evaluate.run import Evaluation
from cpplm.evaluate.settings import FimEvalSettings
from cpplm.judge.scoring import SCORING_VERSION


def evaluate_fim(evaluation: Evaluation, settings: FimEvalSettings) -> dict[str, Any]:
    """Holes filled, and what became of them, kept with the other results.

    Raises:
        UserError: no sandbox or compiler here, or there is nothing to cut.
    """

    def measure(_: dict[str, Any]) -> dict[str, Any]:
        report = run_fim(evaluation.model, settings, folder=evaluation.folder)
        return {**report.figures(), "table": report.table(), "details": report.details()}

    what = to_dict(settings) | {"workers": 0, "inputs": input_hashes(settings), "scoring": SCORING_VERSION}
    return evaluation.cached("fim", what, measure)
