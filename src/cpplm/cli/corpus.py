"""`cpplm corpus build|inspect|check`."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.corpus import build as builder
from cpplm.corpus import check as checker
from cpplm.corpus import inspect as inspector
from cpplm.corpus import summary
from cpplm.corpus.check import CheckSettings
from cpplm.corpus.inspect import InspectSettings
from cpplm.corpus.settings import CorpusSettings


def build(settings: CorpusSettings) -> Report:
    """Turn projects into training documents."""
    result = builder.build(settings)
    return Report(summary.summary(result, settings.out), summary.build_figures(result))


def inspect(settings: InspectSettings) -> Report:
    """Show figures and documents."""
    manifest, documents = inspector.inspect(settings)
    shown = [summary.describe(document) for document in documents]
    return Report(
        "\n\n".join([summary.summary(manifest, settings.corpus), *shown]),
        summary.figures(manifest) | {"shown": [document["id"] for document in documents]},
    )


def check(settings: CheckSettings) -> Report:
    """Compile a sample of the documents."""
    result = checker.check(settings)
    rows = [f"{'':24}{'documents':>10}{'compile':>10}   95 % interval"]
    for name, part in [*result["by_kind"].items(), *result["by_project"].items(), ("all", result)]:
        low, high = part["interval"]
        rows.append(
            f"{name[:24]:24}{part['documents']:>10}{part['compile_rate']:>10.1%}   {low:.1%} to {high:.1%}"
        )
    rows += [
        f"{each['documents']:>6}  {each['reason']} (such as {each['example']})" for each in result["reasons"]
    ]
    rows.append(f"{result['compiler']}, sandbox {result['sandbox']}")
    return Report("\n".join(rows), result)
