"""`cpplm tpu [check|bench]`: the training step on TPUs; the one part of `cpplm tpu` that needs JAX."""

from __future__ import annotations

from dataclasses import asdict

from cpplm.cli.report import Report
from cpplm.jax.aot_compile import check as check_step
from cpplm.jax.bench import bench as bench_step
from cpplm.jax.check_settings import BenchSettings, CheckSettings


def check(settings: CheckSettings) -> Report:
    """Compile the training step for TPUs that are not here."""
    checked = check_step(settings)
    return Report(checked.text(), asdict(checked))


def bench(settings: BenchSettings) -> Report:
    """Time the training step on the devices of this machine."""
    measured = bench_step(settings)
    return Report(measured.text(), asdict(measured))
