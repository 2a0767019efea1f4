"""What `cpplm corpus check` reports: rates with intervals, sizes, and reasons for failure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cpplm.core.statistics import wilson_interval
from cpplm.corpus.compile.compiler import CompileResult

TOP_REASONS = 8
_EXAMPLES = 3


@dataclass(frozen=True)
class CompiledDocument:
    """A document (a row of the corpus) and its verdict under each condition; None where there was none."""

    document: dict[str, Any]
    verdicts: dict[str, CompileResult | None]


def summarize(checked: list[CompiledDocument], projects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All figures.

    Args:
        checked: the sample.
        projects: the manifest's figures by project.
    """
    groups = {
        "by_kind": _grouped(checked, lambda each: each.document["kind"]),
        "by_project": _grouped(checked, lambda each: each.document["project"]),
    }
    for name, part in groups["by_project"].items():
        part["text_per_source"] = _text_per_source([projects[name]])
    judged = "with_headers" if "with_headers" in checked[0].verdicts else "as_is"
    return {
        **_group(checked),
        "text_per_source": _text_per_source(list(projects.values())),
        **groups,
        "reasons": reasons([(each, each.verdicts[judged]) for each in checked]),
        "missing_headers": _missing_headers([each.verdicts[judged] for each in checked]),
    }


def _text_per_source(projects: list[dict[str, Any]]) -> float:
    """Bytes of documents for each byte of source: how often the text is repeated, in the whole corpus."""
    sources = sum(project["source_bytes"] for project in projects)
    return round(sum(project["text_bytes"] for project in projects) / max(sources, 1), 3)


def _grouped(
    checked: list[CompiledDocument], key: Callable[[CompiledDocument], str]
) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[CompiledDocument]] = defaultdict(list)
    for each in checked:
        groups[key(each)].append(each)
    return {name: _group(groups[name]) for name in sorted(groups)}


def _group(checked: list[CompiledDocument]) -> dict[str, Any]:
    """Sizes, and the rate under each condition; `in_project` also compares like with like."""
    figures: dict[str, Any] = {"documents": len(checked), **_sizes([each.document for each in checked])}
    for condition in checked[0].verdicts:
        figures[condition] = rate([v for each in checked if (v := each.verdicts[condition]) is not None])
    if "in_project" in figures:
        judged = "with_headers" if "with_headers" in figures else "as_is"
        same = [each.verdicts[judged] for each in checked if each.verdicts["in_project"] is not None]
        figures["in_project"] |= _share(rate([v for v in same if v is not None]), figures["in_project"])
    return figures


def _share(documents: dict[str, Any], files: dict[str, Any]) -> dict[str, Any]:
    """The documents' rate over the rate of their files."""
    if not files["compile"]:
        return {"documents_rate": documents["compile_rate"], "share": None}
    share = documents["compile"] / files["compile"]
    return {"documents_rate": documents["compile_rate"], "share": round(share, 4)}


def _sizes(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and median length, in tokens where the corpus was built with a tokenizer, else in bytes."""
    counted = all(document["num_tokens"] >= 0 for document in documents)
    sizes = [document["num_tokens"] if counted else len(document["text"].encode()) for document in documents]
    unit = "tokens" if counted else "bytes"
    return {f"mean_{unit}": round(statistics.mean(sizes)), f"median_{unit}": round(statistics.median(sizes))}


def rate(results: list[CompileResult]) -> dict[str, Any]:
    """Compile rate with its 95 % interval.

    `later_standard` counts those that needed another standard than the first.
    """
    number, passed = len(results), sum(result.compiles for result in results)
    return {
        "documents": number,
        "compile": passed,
        "compile_rate": round(passed / number, 4) if number else None,
        "interval": [round(end, 4) for end in wilson_interval(passed, number)] if number else None,
        "later_standard": sum(result.later_standard for result in results),
    }


def reasons(judged: list[tuple[CompiledDocument, CompileResult | None]]) -> list[dict[str, Any]]:
    """The most frequent reasons, each with a few documents and what the compiler said of them."""
    examples: dict[str, list[dict[str, str]]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for each, verdict in judged:
        if verdict is None or verdict.compiles:
            continue
        why = verdict.reason
        counts[why] += 1
        if len(examples[why]) < _EXAMPLES:
            about = {"id": each.document["id"][:16], "project": each.document["project"]}
            examples[why].append({**about, "error": verdict.first_error})
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:TOP_REASONS]
    return [{"reason": why, "documents": count, "examples": examples[why]} for why, count in ranked]


def _missing_headers(verdicts: list[CompileResult | None]) -> dict[str, int]:
    """Headers that were not found, by the number of documents they stopped."""
    counts = Counter(name for verdict in verdicts if verdict is not None for name in verdict.missing_headers)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:TOP_REASONS])


def format_table(result: dict[str, Any]) -> str:
    """The report for people."""
    conditions = [name for name in ("as_is", "with_headers", "in_project") if name in result]
    unit = "tokens" if "median_tokens" in result else "bytes"
    header = f"{'':24}{'documents':>10}{'median ' + unit:>15}"
    lines = [header + "".join(f"{name.replace('_', ' '):>24}" for name in conditions)]
    for name, part in [*result["by_kind"].items(), *result["by_project"].items(), ("all", result)]:
        line = f"{name[:24]:24}{part['documents']:>10,}{part[f'median_{unit}']:>15,}"
        lines.append(line + "".join(f"{_shown(part[condition]):>24}" for condition in conditions))
    if "in_project" in result:
        own = result["in_project"]
        if own["share"] is not None:
            lines.append(f"documents reach {own['share']:.1%} of the rate of their files in their project")
    lines.append(f"{result['text_per_source']:.2f} bytes of documents for each byte of source")
    later = max(result[condition]["later_standard"] for condition in conditions)
    lines.append(f"standards: {', '.join(result['standards'])} ({later} needed a later one than the first)")
    for each in result["reasons"]:
        example = each["examples"][0]
        shown = f"{example['project']} {example['id']}: {example['error']}"
        lines.append(f"{each['documents']:>6}  {each['reason']} ({shown})")
    lines.append(f"{result['compiler']}, sandbox {result['sandbox']}")
    return "\n".join(lines)


def _shown(figures: dict[str, Any]) -> str:
    if figures["interval"] is None:
        return "-"
    low, high = figures["interval"]
    return f"{figures['compile_rate']:.1%} ({low:.0%} to {high:.0%})"
