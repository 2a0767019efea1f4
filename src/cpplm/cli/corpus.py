"""`cpplm corpus build|inspect|explain|check|export`."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.core.text import format_bytes, pluralize
from cpplm.corpus import build as builder
from cpplm.corpus.reports import explain as explainer
from cpplm.corpus.reports import export_jsonl as exporter
from cpplm.corpus.reports import inspect_corpus as inspector
from cpplm.corpus.reports import stats
from cpplm.corpus.reports.compile_rate import CompileRateSettings, format_table, measure_compile_rate
from cpplm.corpus.reports.explain import ExplainSettings
from cpplm.corpus.reports.export_jsonl import ExportSettings
from cpplm.corpus.reports.inspect_corpus import InspectSettings
from cpplm.corpus.settings import CorpusSettings


def build(settings: CorpusSettings) -> Report:
    """Turn projects into training documents."""
    result = builder.build(settings)
    return Report(stats.format_summary(result, settings.out), stats.build_figures(result))


def inspect(settings: InspectSettings) -> Report:
    """Show figures and documents."""
    manifest, documents = inspector.inspect_corpus(settings)
    where = {} if settings.page is None else {"page": str(settings.page)}
    lines = [f"page       {where['page']}"] if where else ["", *map(stats.describe, documents)]
    return Report(
        "\n".join([stats.format_summary(manifest, settings.corpus), *lines]),
        stats.corpus_totals(manifest) | {"shown": [document["id"] for document in documents]} | where,
    )


def explain(settings: ExplainSettings) -> Report:
    """Name the documents that a source line stands in, and why."""
    result = explainer.explain(settings)
    return Report(explainer.format_explanation(result), result)


def check(settings: CompileRateSettings) -> Report:
    """Compile a sample of the documents."""
    result = measure_compile_rate(settings)
    return Report(format_table(result), result)


def export(settings: ExportSettings) -> Report:
    """Write documents or docstring pairs as JSON lines."""
    result = exporter.export_corpus(settings)
    written = pluralize(result["lines"], "pair" if settings.what == "docstrings" else "document")
    documents, size = pluralize(result["documents"], "document"), format_bytes(result["bytes"])
    return Report(f"{written} of {documents}, {size}, in {settings.to}", result)
