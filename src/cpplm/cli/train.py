"""`cpplm train`."""

from __future__ import annotations

from dataclasses import asdict

from cpplm.cli.report import Report
from cpplm.generate.samples import SampleCallback
from cpplm.generate.sampling import SamplingSettings
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings


def train(settings: TrainSettings) -> Report:
    """Pre-train, or continue."""
    samplers = (
        [SampleCallback(settings.sample_every, SamplingSettings())] if settings.sample_every > 0 else []
    )
    summary = pretrain(settings, samplers)
    figures = asdict(summary)
    text = (
        f"step {summary.step}: {summary.tokens:,} tokens in {summary.seconds:.0f} s, "
        f"{summary.parameters:,} parameters"
    )
    if summary.validation is not None:
        text += f", validation {summary.validation['bits_per_byte']:.4f} bits per byte"
    return Report(text, figures)
