"""`cpplm rl`."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.cli.train import summary_report
from cpplm.post_training.rl.rft import rejection_sampling, sample_rollouts, train_on_rollouts
from cpplm.post_training.rl.run import train_by_rewards
from cpplm.post_training.rl.settings import RlSettings


def rl(settings: RlSettings) -> Report:
    """Train by rewards, or by one of the halves of rejection sampling, or go on."""
    if settings.rollouts_only:
        figures = sample_rollouts(settings, minutes=settings.max_minutes)
        return Report(f"{figures['answers']:,} answers, {figures['solved']:.1%} right", figures)
    if settings.train_from:
        return summary_report(train_on_rollouts(settings, settings.train_from))
    run = rejection_sampling if settings.method == "rft" else train_by_rewards
    return summary_report(run(settings))
