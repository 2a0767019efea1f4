"""`cpplm sft`."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.cli.train import import_backend, summary_report
from cpplm.post_training.settings import SftSettings
from cpplm.post_training.sft import fine_tune


def sft(settings: SftSettings) -> Report:
    """Fine-tune, or go on."""
    import_backend(settings.backend, settings.device_type)
    return summary_report(fine_tune(settings))
