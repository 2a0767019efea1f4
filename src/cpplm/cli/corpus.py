"""`cpplm corpus build|inspect|check|export`."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.core.wording import counted, format_bytes
from cpplm.corpus import build as builder
from cpplm.corpus import check as checker
from cpplm.corpus import check_report, summary
from cpplm.corpus import export as exporter
from cpplm.corpus import inspect as inspector
from cpplm.corpus.check import CheckSettings
from cpplm.corpus.export import ExportSettings
from cpplm.corpus.inspect import InspectSettings
from cpplm.corpus.settings import CorpusSettings


def build(settings: CorpusSettings) -> Report:
    """Turn projects into training documents."""
    result = builder.build(settings)
    return Report(summary.summary(result, settings.out), summary.build_figures(result))


def inspect(settings: InspectSettings) -> Report:
    """Show figures and documents."""
    manifest, documents = inspector.inspect(settings)
    where = {} if settings.page is None else {"page": str(settings.page)}
    shown = [f"page       {where['page']}"] if where else ["", *map(summary.describe, documents)]
    return Report(
        "\n".join([summary.summary(manifest, settings.corpus), *shown]),
        summary.figures(manifest) | {"shown": [document["id"] for document in documents]} | where,
    )


def check(settings: CheckSettings) -> Report:
    """Compile a sample of the documents."""
    result = checker.check(settings)
    return Report(check_report.table(result), result)


def export(settings: ExportSettings) -> Report:
    """Write documents or docstring pairs as JSON lines."""
    result = exporter.export(settings)
    pairs = "repeated_pairs" in result
    repeated = f"; {counted(result['repeated_pairs'], 'repeated pair')} left out" if pairs else ""
    return Report(
        f"{counted(result['lines'], 'pair' if pairs else 'document')} of "
        f"{counted(result['documents'], 'document')}, "
        f"{format_bytes(result['bytes'])}, in {settings.to}{repeated}",
        result,
    )
