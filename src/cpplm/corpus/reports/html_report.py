"""The page of a corpus: one HTML file that opens offline, with figures, filters, lengths and documents.

It is made from the manifest and the shards alone. Documents, file names and project names come from
strangers: the template escapes everything.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from cpplm import __version__
from cpplm.core.html_page import render
from cpplm.core.progress import progress_bar
from cpplm.core.shards import ShardReader, Split
from cpplm.core.spans import DOCSTRINGS_COLUMN, SPANS_COLUMN
from cpplm.core.storage import Storage
from cpplm.core.text import format_bytes, short_number
from cpplm.corpus.reports.stats import corpus_totals, describe_overlap, filter_results
from cpplm.cpp.highlight import highlight

# Characters of one document, and rows of a table, that are shown.
SHOWN_CHARACTERS = 16_000
_SHOWN_PROJECTS = 100
_SHOWN_EXAMPLES = 12
_SHOWN_PROVENANCE = 400
# Columns that are shown in another way, or are too large to show.
_NOT_PROVENANCE = frozenset({"text", "kind", "project", "split", SPANS_COLUMN, DOCSTRINGS_COLUMN})


# The number of some documents, their size in bytes, and their tokens: 0 where these were not counted.
Sums = Counter[str]


def write_page(reader: ShardReader, documents: list[dict[str, Any]], path: Path) -> None:
    """Write the page of a corpus with these documents of it; every shard is read once.

    Raises:
        UserError: a shard is damaged, or the page cannot be written.
    """
    filters: dict[str, Callable[..., str]] = {"bytes": format_bytes, "held_out": describe_overlap}
    totals = corpus_totals(reader.manifest)
    kinds, lengths, splits = measure(reader)
    projects = sorted(
        reader.manifest["projects"].items(), key=lambda item: (-item[1]["source_bytes"], item[0])
    )
    html = render(
        "cpplm.corpus.reports",
        "corpus.html.jinja",
        filters,
        name=reader.storage.location.rstrip("/").rsplit("/", 1)[-1],
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M"),
        manifest=reader.manifest,
        totals=totals,
        tiles=_tiles(totals, kinds),
        kinds=dict(sorted(kinds.items(), key=lambda item: -item[1]["size"])),
        lengths=sorted(lengths.items()),
        counted=any(kind["tokens"] for kind in kinds.values()),
        results=filter_results(reader.manifest, _SHOWN_EXAMPLES),
        projects=[(name, entry, sorted(splits[name])) for name, entry in projects[:_SHOWN_PROJECTS]],
        documents=[_document_view(document) for document in documents],
    )
    path = path.expanduser()
    Storage(path.parent, create=True).write(path.name, html.encode("utf-8", "replace"))


def measure(reader: ShardReader) -> tuple[dict[str, Sums], dict[int, Sums], dict[str, set[Split]]]:
    """Sums by kind, and by the length in doublings (2 to the power of the key); splits of each project."""
    kinds: dict[str, Sums] = defaultdict(Sums)
    lengths: dict[int, Sums] = defaultdict(Sums)
    splits: dict[str, set[Split]] = defaultdict(set)
    shards = reader.shards()
    with progress_bar(len(shards), "page", "shard") as bar:
        for shard in shards:
            table = reader.table(shard, ["text", "project", "kind", "num_tokens"])
            for project in pc.unique(table["project"]).to_pylist():
                splits[project].add(shard.split)
            sizes = pc.binary_length(table["text"]).to_pylist()
            columns = (table["kind"].to_pylist(), sizes, table["num_tokens"].to_pylist())
            for kind, size, tokens in zip(*columns, strict=True):
                length = size if tokens < 0 else tokens
                for each in (kinds[kind], lengths[max(1, length).bit_length() - 1]):
                    each.update(documents=1, size=size, tokens=max(0, tokens))
            bar.update(1)
    return kinds, lengths, splits


def _tiles(totals: dict[str, Any], kinds: dict[str, Sums]) -> list[tuple[str, str, str]]:
    """Headline figures as (name, value, remark)."""
    tokens = sum(kind["tokens"] for kind in kinds.values())
    source, text = totals["source_bytes"], totals["text_bytes"]
    tiles = [
        ("projects", f"{totals['projects']:,}", f"held out by {totals['split_by']}"),
        ("source", format_bytes(source), f"{totals['files']:,} files, {totals['functions']:,} functions"),
        ("documents", f"{totals['documents']:,}", f"{totals['val_documents']:,} of them for validation"),
        ("text", format_bytes(text), f"{text / max(1, source):.2f} times the source"),
    ]
    if tokens:
        tiles.append(("tokens", short_number(tokens), f"{text / tokens:.2f} bytes per token"))
    left_out = sum(totals["skipped"].values())
    tiles.append(("files left out", f"{left_out:,}", format_bytes(sum(totals["skipped_bytes"].values()))))
    return tiles


def _document_view(document: dict[str, Any]) -> dict[str, Any]:
    """A document as the template wants it."""
    text = document["text"]
    provenance = {
        name: _words(value)[:_SHOWN_PROVENANCE]
        for name, value in document.items()
        if name not in _NOT_PROVENANCE and value not in (None, "", [], -1)
    }
    return {
        "title": ", ".join(document["files"][:3]) + (", ..." if len(document["files"]) > 3 else ""),
        "project": document["project"],
        "kind": document["kind"],
        "split": document["split"],
        "size": len(text.encode("utf-8", "replace")),
        "tokens": document["num_tokens"],
        "code": highlight(text[:SHOWN_CHARACTERS]),
        "rest": max(0, len(text) - SHOWN_CHARACTERS),
        "provenance": provenance,
    }


def _words(value: Any) -> str:
    """A column's value; a span of lines as `file:first-last`, with the reason why it is there."""
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    if isinstance(value, dict) and value.keys() >= {"file", "first", "last"}:
        lines = f"{value['file']}:{value['first']}-{value['last']}"
        return f"{lines} ({value['reason']})" if value.get("reason") else lines
    return str(value)
