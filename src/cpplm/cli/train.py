"""`cpplm train`. JAX is imported for runs that it trains only: it is an extra, and takes a while."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict

from cpplm.cli.report import Report
from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.evaluate.callback import CppEvaluationCallback
from cpplm.generate.samples import SampleCallback
from cpplm.generate.settings import SamplingSettings
from cpplm.train.backend_registry import trains_with_jax
from cpplm.train.estimate import estimate_run
from cpplm.train.pretrain import RunSummary, pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback


def train(settings: TrainSettings) -> Report:
    """Pre-train, continue, or estimate."""
    if settings.dry.dry_run:
        estimated, reason = estimate_run(settings)
        return Report("\n".join(filter(None, (reason, estimated.text()))), asdict(estimated))
    uses_jax = import_backend(settings.backend, settings.device_type)
    extra: list[Callback] = []
    if settings.shard:
        log_info("no samples during training, as no process has the whole model; 'cpplm generate' makes them")
    elif uses_jax:
        log_info("no samples during training, as the model is JAX's; 'cpplm generate' makes them")
    elif settings.sample_every > 0:
        extra.append(SampleCallback(settings.sample_every, SamplingSettings()))
    if settings.cpp_eval_every > 0:
        extra.append(CppEvaluationCallback(settings.cpp_eval_every, minutes=settings.cpp_eval_minutes))
    return summary_report(pretrain(settings, extra))


def summary_report(summary: RunSummary) -> Report:
    """The end of a run, for people and as figures."""
    figures = asdict(summary)
    text = (
        f"step {summary.step}: {summary.tokens:,} tokens in {summary.seconds:.0f} s, "
        f"{summary.parameters:,} parameters"
    )
    if summary.validation is not None:
        text += f", validation {summary.validation['bits_per_byte']:.4f} bits per byte"
    return Report(text, figures)


def import_backend(backend: str, device_type: str) -> bool:
    """Import JAX's backend, which registers itself, for a run that it trains; True, or UserError, then."""
    if not trains_with_jax(backend, device_type):
        return False
    if importlib.util.find_spec("jax") is None:
        raise UserError(
            "training on a TPU, or with --backend jax, needs JAX, which is not installed",
            fix="pip install 'cpplm[tpu]', or use --backend torch.",
        )
    import cpplm.jax.backend  # noqa: F401, PLC0415  (registers itself)

    return True
