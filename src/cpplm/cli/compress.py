"""`cpplm compress`."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.cli.train import summary_report
from cpplm.compress.check import CheckSettings, check_run
from cpplm.compress.check import records as check_records
from cpplm.compress.check import table as check_table
from cpplm.compress.compare import compare as compare_models
from cpplm.compress.compare import records, table
from cpplm.compress.qat import train_quantized
from cpplm.compress.quantize import quantize_run
from cpplm.compress.settings import CompareSettings, QatSettings, QuantizeSettings


def quantize(settings: QuantizeSettings) -> Report:
    """Round, or pack what training has rounded."""
    packed = quantize_run(settings)
    return Report(
        f"{packed.size / 1e6:,.2f} MB in {packed.path()}", {"path": packed.path(), "bytes": packed.size}
    )


def qat(settings: QatSettings) -> Report:
    """Train, or go on."""
    return summary_report(train_quantized(settings))


def check(settings: CheckSettings) -> Report:
    """Show the layers."""
    checks = check_run(settings)
    return Report(check_table(checks), {"layers": check_records(checks)})


def compare(settings: CompareSettings) -> Report:
    """Measure what was lost."""
    results = compare_models(settings)
    return Report(table(results), {"models": records(results)})
