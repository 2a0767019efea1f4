"""`cpplm train`."""

from __future__ import annotations

from dataclasses import asdict

from cpplm.cli.report import Report
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings


def train(settings: TrainSettings) -> Report:
    """Pre-train, or continue."""
    summary = pretrain(settings)
    figures = asdict(summary)
    text = (
        f"step {summary.step}: {summary.tokens:,} tokens in {summary.seconds:.0f} s, "
        f"{summary.parameters:,} parameters"
    )
    if summary.validation is not None:
        text += f", validation {summary.validation['bits_per_byte']:.4f} bits per byte"
    return Report(text, figures)
