"""The figures of a corpus, summed over projects, and as text for people."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from cpplm.core.text import format_bytes, pluralize
from cpplm.corpus.repeated_lines import DOCUMENTS

# What the manifest says of a project's files under these names: left out, read in another encoding, redacted.
ACTIONS = ("skipped", "converted", "redacted")
_PER_PROJECT = 12
_TOP_REASONS = 8


def corpus_totals(manifest: dict[str, Any]) -> dict[str, Any]:
    """Totals over all projects and shards of a manifest."""
    projects = list(manifest["projects"].values())
    shards = manifest["shards"]
    totals: dict[str, Any] = {
        "projects": len(projects),
        "files": sum(project["files"] for project in projects),
        "source_bytes": sum(project["source_bytes"] for project in projects),
        "functions": sum(project["functions"] for project in projects),
        "documents": sum(shard["documents"] for shard in shards),
        "text_bytes": sum(shard["bytes"] for shard in shards),
        "shared_bytes": sum(project.get("shared_bytes", 0) for project in projects),
        "kinds": _sums(projects, "kinds"),
        "skipped": _sums(projects, "skipped", "files"),
        "skipped_bytes": _sums(projects, "skipped", "bytes"),
        "redacted": _sums(projects, "redacted", "files"),
        "split_by": manifest["split_by"],
    }
    for split in ("train", "val"):
        totals[f"{split}_documents"] = sum(s["documents"] for s in shards if s["split"] == split)
        totals[f"{split}_bytes"] = sum(s["bytes"] for s in shards if s["split"] == split)
    if "validation" in manifest:  # not in a corpus of an earlier version
        totals["validation"] = manifest["validation"]
    if any("labels" in project for project in projects):
        totals["labels"] = _labels(projects)
    if any("semantic" in project for project in projects):
        totals["semantic"] = _semantic([each["semantic"] for each in projects if "semantic" in each])
    if any("configured" in project for project in projects):
        totals["configured"] = _configured(manifest["projects"])
    return totals


def _configured(projects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The numbers of projects whose configuration succeeded, failed, or was none; why each failed."""
    results = {name: each["configured"] for name, each in projects.items() if "configured" in each}
    return {
        "projects": len(results),
        "configured": sum(bool(each["step"] and not each["problem"]) for each in results.values()),
        "without_step": sum(not each["step"] and not each["problem"] for each in results.values()),
        "headers": sum(each["headers"] for each in results.values()),
        "problems": {name: each["problem"] for name, each in sorted(results.items()) if each["problem"]},
    }


def _sums(projects: list[dict[str, Any]], name: str, figure: str = "") -> dict[str, int]:
    """The numbers that projects have under a name, summed by key; of entries one of their figures."""
    sums: Counter[str] = Counter()
    for project in projects:
        found = project.get(name, {})
        sums.update({key: found[key].get(figure, 0) for key in found} if figure else found)
    return dict(sorted(sums.items()))


def _semantic(projects: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of files that libclang parsed, and of compilation databases."""
    return {
        "projects": len(projects),
        "databases": sum(bool(project["database"]) for project in projects),
        "parsed": sum(project["parsed"] for project in projects),
        "incomplete": _sums(projects, "incomplete", "files"),
    }


def _labels(projects: list[dict[str, Any]]) -> dict[str, Any]:
    """Compile rates, of all documents and by kind, and the most frequent reasons for failure."""
    compile_: Counter[str] = Counter()
    documents: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for project in projects:
        documents.update(project["kinds"])
        compile_.update(project["labels"]["compile"])
        reasons.update(project["labels"]["reasons"])
    return {
        "compile": compile_.total(),
        "compile_rate": round(compile_.total() / max(1, documents.total()), 4),
        "by_kind": {
            kind: {"documents": number, "compile": compile_[kind]}
            for kind, number in sorted(documents.items())
        },
        "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:_TOP_REASONS]),
    }


def build_figures(result: dict[str, Any]) -> dict[str, Any]:
    """The totals of a build with its time, memory and rates."""
    totals = corpus_totals(result)
    seconds = result["seconds"]
    megabytes = 0.0 if result["already_complete"] else totals["source_bytes"] / 1e6
    return totals | {
        "already_complete": result["already_complete"],
        "seconds": seconds,
        "source_mb_per_second": round(megabytes / max(seconds, 1e-9), 3),
        "source_mb_per_core_second": round(megabytes / max(result["core_seconds"], 1e-9), 3),
        **{key: result[key] for key in ("core_seconds", "peak_memory_bytes", "peak_worker_memory_bytes")},
    }


def format_summary(result: dict[str, Any], location: str) -> str:
    """A short table about a corpus; `result` is a manifest, or what `build` returned."""
    totals = corpus_totals(result)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in totals["kinds"].items())
    shared = totals["shared_bytes"] / max(totals["text_bytes"], 1)
    lines = [
        f"corpus     {location}",
        f"sources    {pluralize(totals['projects'], 'project')}, {pluralize(totals['files'], 'file')}, "
        f"{format_bytes(totals['source_bytes'])}, {pluralize(totals['functions'], 'function')}",
        f"documents  {totals['documents']:,} ({kinds}), {format_bytes(totals['text_bytes'])}, "
        f"{shared:.0%} of it in lines of {DOCUMENTS} documents or more",
        f"splits     train {totals['train_documents']:,} ({format_bytes(totals['train_bytes'])}), "
        f"val {totals['val_documents']:,} ({format_bytes(totals['val_bytes'])}), by {totals['split_by']}",
    ]
    if "validation" in totals:
        lines.append(f"held out   {describe_overlap(totals['validation'])}")
    records = result.get("records", [])
    if records:
        number = sum(file["records"] for file in records)
        lines.append(f"records    {number:,} from {pluralize(len(records), 'JSONL file')}")
    if "labels" in totals:
        labels = totals["labels"]
        compiled = ", ".join(
            f"{part['compile']:,} of {part['documents']:,} {kind}" for kind, part in labels["by_kind"].items()
        )
        lines.append(f"compile    {labels['compile_rate']:.1%} ({compiled})")
        lines += [f"  {number:,}  {reason}" for reason, number in labels["reasons"].items()]
    if "semantic" in totals:
        semantic = totals["semantic"]
        number = semantic["parsed"] + sum(semantic["incomplete"].values())
        lines.append(
            f"semantics  {semantic['parsed']:,} of {number:,} files parsed without an error, "
            f"{semantic['databases']:,} of {semantic['projects']:,} projects with a compilation database"
        )
    if "configured" in totals:
        configured = totals["configured"]
        lines.append(
            f"configured {configured['configured']:,} of {pluralize(configured['projects'], 'project')}, "
            f"{configured['without_step']:,} have no such step, {pluralize(configured['headers'], 'header')}"
        )
        lines += [f"  {name}: {problem}" for name, problem in configured["problems"].items()]
    lines += map(str, filter_results(result))
    if result.get("already_complete"):
        lines.append("time       nothing to do: this corpus is complete")
    elif "seconds" in result:
        figures = build_figures(result)
        wall, core = (figures[f"source_mb_per_{unit}second"] for unit in ("", "core_"))
        own, worker = (format_bytes(result[f"peak_{who}memory_bytes"]) for who in ("", "worker_"))
        lines += [
            f"time       {result['seconds']:.1f} s, {wall:.2f} MB of source per second, {core:.2f} per core",
            f"memory     {own}, the largest worker {worker}",
        ]
    if 1 < totals["projects"] <= _PER_PROJECT:
        lines += [
            f"  {name}: {pluralize(entry['files'], 'file')}, {format_bytes(entry['source_bytes'])}, "
            f"{pluralize(entry['documents'], 'document')}"
            for name, entry in sorted(result["projects"].items())
        ]
    return "\n".join(lines)


def describe_overlap(validation: dict[str, Any]) -> str:
    """A line on the overlap of validation and training text."""
    number, shared = validation["projects"], validation["projects_in_train"]
    whose = pluralize(number, "project")
    whose = f"{shared:,} of {whose} in training, too" if shared else f"{whose}, none of them in training"
    return (
        f"{whose}; {validation['repeated_share']:.1%} of the text in lines of {validation['min_line_bytes']} "
        "bytes or more is in training text"
    )


class FilterResult(NamedTuple):
    """The effect of a filter on all projects; `share` is that of its bytes in all bytes, 0 if not counted."""

    action: str
    reason: str
    number: int
    share: float
    examples: tuple[str, ...]

    def __str__(self) -> str:
        share = f" ({self.share:.1%} of the bytes)" if self.share else ""
        return f"{self.action:9}  {self.number:,} {self.reason}{share}, such as {self.examples[0]!r}"


def filter_results(manifest: dict[str, Any], num_examples: int = 1) -> list[FilterResult]:
    """Everything that was left out or changed, with examples from different projects first."""
    entries: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for action in ACTIONS:
        for name, project in sorted(manifest["projects"].items()):
            for reason, entry in sorted(project.get(action, {}).items()):
                entries[action, reason].append((f"{name}: ", entry))
    for name, project in sorted(manifest["projects"].items()):
        for reason, entry in sorted(project.get("semantic", {}).get("incomplete", {}).items()):
            entries["by name", reason].append((f"{name}: ", entry))
    for file in manifest.get("records", []):
        for reason, entry in sorted(file["left_out"].items()):
            entries["records", reason].append(("", entry))
    source_bytes = sum(project["source_bytes"] for project in manifest["projects"].values())
    left_out = sum(entry.get("bytes", 0) for group in entries.values() for _, entry in group)
    return [
        FilterResult(
            action,
            reason,
            number=sum(entry["files"] for _, entry in group),
            share=sum(entry.get("bytes", 0) for _, entry in group) / max(1, source_bytes + left_out),
            examples=tuple(_examples(group, num_examples)),
        )
        for (action, reason), group in entries.items()
    ]


def _examples(group: list[tuple[str, dict[str, Any]]], number: int) -> Iterator[str]:
    """The first example of each project, then the second of each, and so on."""
    columns = [[where + example for example in entry["examples"]] for where, entry in group]
    rows = itertools.chain.from_iterable(itertools.zip_longest(*columns))
    return itertools.islice((example for example in rows if example is not None), number)


def describe(document: dict[str, Any]) -> str:
    """One document under a line of provenance."""
    tokens = f"{pluralize(document['num_tokens'], 'token')}, " if document["num_tokens"] >= 0 else ""
    return (
        f"=== {document['project']} | {document['kind']} | {document['split']} | {tokens}"
        f"{len(document['text'].encode()):,} bytes, {pluralize(document['num_functions'], 'function')} | "
        f"{', '.join(document['files'])} | {document['id'][:16]}\n{document['text']}"
    )
