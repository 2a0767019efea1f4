"""The figures of a corpus, summed over projects, and as text for people."""

from __future__ import annotations

from collections import Counter
from typing import Any

_PER_PROJECT = 12


def figures(manifest: dict[str, Any]) -> dict[str, Any]:
    """Totals over all projects and shards of a manifest."""
    projects = list(manifest["projects"].values())
    kinds: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    skipped_bytes: Counter[str] = Counter()
    redacted: Counter[str] = Counter()
    for project in projects:
        kinds.update(project["kinds"])
        skipped.update({reason: entry["files"] for reason, entry in project["skipped"].items()})
        skipped_bytes.update({reason: entry.get("bytes", 0) for reason, entry in project["skipped"].items()})
        redacted.update({kind: entry["files"] for kind, entry in project.get("redacted", {}).items()})
    shards = manifest["shards"]
    totals = {
        "projects": len(projects),
        "files": sum(project["files"] for project in projects),
        "source_bytes": sum(project["source_bytes"] for project in projects),
        "functions": sum(project["functions"] for project in projects),
        "documents": sum(shard["documents"] for shard in shards),
        "text_bytes": sum(shard["bytes"] for shard in shards),
        "kinds": dict(sorted(kinds.items())),
        "skipped": dict(sorted(skipped.items())),
        "skipped_bytes": dict(sorted(skipped_bytes.items())),
        "redacted": dict(sorted(redacted.items())),
        "split_by": manifest["split_by"],
    }
    for split in ("train", "val"):
        totals[f"{split}_documents"] = sum(s["documents"] for s in shards if s["split"] == split)
        totals[f"{split}_bytes"] = sum(s["bytes"] for s in shards if s["split"] == split)
    return totals


def build_figures(result: dict[str, Any]) -> dict[str, Any]:
    """The totals of a build with its time and rate."""
    totals = figures(result)
    seconds = result["seconds"]
    rate = 0.0 if result["already_complete"] else totals["source_bytes"] / 1e6 / max(seconds, 1e-9)
    return totals | {
        "already_complete": result["already_complete"],
        "seconds": seconds,
        "source_mb_per_second": round(rate, 3),
    }


def summary(result: dict[str, Any], location: str) -> str:
    """A short table about a corpus; `result` is a manifest, or what `build` returned."""
    totals = figures(result)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in totals["kinds"].items())
    lines = [
        f"corpus     {location}",
        f"sources    {totals['projects']:,} projects, {totals['files']:,} files, "
        f"{totals['source_bytes'] / 1e6:,.2f} MB, {totals['functions']:,} functions",
        f"documents  {totals['documents']:,} ({kinds}), {totals['text_bytes'] / 1e6:,.2f} MB",
        f"splits     train {totals['train_documents']:,} ({totals['train_bytes'] / 1e6:,.2f} MB), "
        f"val {totals['val_documents']:,} ({totals['val_bytes'] / 1e6:,.2f} MB), by {totals['split_by']}",
    ]
    lines += _skips(result, "skipped") + _skips(result, "converted") + _skips(result, "redacted")
    if result.get("already_complete"):
        lines.append("time       nothing to do: this corpus is complete")
    elif "seconds" in result:
        rate = build_figures(result)["source_mb_per_second"]
        lines.append(f"time       {result['seconds']:.1f} s, {rate:.2f} MB of source per second")
    if 1 < totals["projects"] <= _PER_PROJECT:
        lines += [
            f"  {name}: {entry['files']:,} files, {entry['source_bytes'] / 1e6:,.2f} MB, "
            f"{entry['documents']:,} documents"
            for name, entry in sorted(result["projects"].items())
        ]
    return "\n".join(lines)


def _skips(manifest: dict[str, Any], which: str) -> list[str]:
    """One line per reason: files, their share of all bytes that were found, and an example."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    example: dict[str, str] = {}
    found = 0
    for name, project in sorted(manifest["projects"].items()):
        found += project["source_bytes"]
        for reason, entry in project.get(which, {}).items():
            counts[reason] += entry["files"]
            sizes[reason] += entry.get("bytes", 0)
            example.setdefault(reason, f"{name}: {entry['examples'][0]}")
    total = max(1, found + sizes.total())
    word = which.ljust(9)
    return [
        f"{word}  {counts[reason]:,} {reason}"
        + (f" ({sizes[reason] / total:.1%} of the bytes)" if sizes[reason] else "")
        + f", such as {example[reason]!r}"
        for reason in sorted(counts)
    ]


def describe(document: dict[str, Any]) -> str:
    """One document under a line of provenance."""
    tokens = f"{document['num_tokens']:,} tokens, " if document["num_tokens"] >= 0 else ""
    return (
        f"=== {document['project']} | {document['kind']} | {document['split']} | {tokens}"
        f"{len(document['text'].encode()):,} bytes, {document['num_functions']:,} functions | "
        f"{', '.join(document['files'])} | {document['id'][:16]}\n{document['text']}"
    )
