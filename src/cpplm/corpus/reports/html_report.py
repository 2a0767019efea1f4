"""The page of a corpus: one HTML file that opens offline, with figures, filters, lengths and documents.

It is made from the manifest and the shards alone. Documents, file names and project names come from
strangers: the template escapes everything. It draws the charts, too: a plotting library would double the time
that every `cpplm corpus` command takes to start.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from cpplm import __version__
from cpplm.core.html_page import render
from cpplm.core.progress import progress_bar
from cpplm.core.shards import SPLITS, ShardReader
from cpplm.core.spans import SPANS_COLUMN
from cpplm.core.storage import Storage
from cpplm.core.text import format_bytes, short_number
from cpplm.corpus.reports.stats import FilterResult, corpus_totals, describe_overlap, filter_results
from cpplm.cpp.doc_comments import DOCSTRINGS_COLUMN
from cpplm.cpp.highlight import highlight

# Characters of one document, and rows of a table, that are shown.
SHOWN_CHARACTERS = 16_000
_SHOWN_PROJECTS = 100
_SHOWN_EXAMPLES = 12
_SHOWN_PROVENANCE = 400
# Bars of the charts per doubling of the length.
_BARS_PER_DOUBLING = 2
# Columns that are shown in another way, or are too large to show.
_NOT_PROVENANCE = frozenset({"text", "kind", "project", "split", SPANS_COLUMN, DOCSTRINGS_COLUMN})


@dataclass(frozen=True)
class BarPart:
    """One kind's piece of a bar; lengths in units of the chart's view box."""

    kind: int
    y: float
    height: float


@dataclass(frozen=True)
class Bar:
    """Documents of some range of lengths, or their text."""

    x: float
    remark: str
    boxes: list[BarPart]


@dataclass(frozen=True)
class Chart:
    """Bars over the length of documents; `labels` are (x, text)."""

    title: str
    top: str
    bar_width: float
    bars: list[Bar]
    labels: list[tuple[float, str]]


@dataclass(frozen=True)
class KindTotals:
    """Totals of one kind of documents; `tokens` is 0 where they were not counted."""

    documents: int = 0
    size: int = 0
    tokens: int = 0

    def plus(self, size: int, tokens: int) -> KindTotals:
        """One document more."""
        return KindTotals(self.documents + 1, self.size + size, self.tokens + tokens)


@dataclass(frozen=True)
class CorpusPage:
    """Values that the template shows."""

    name: str
    version: str
    made: str
    manifest: dict[str, Any]
    totals: dict[str, Any]
    tiles: list[tuple[str, str, str]]
    kinds: dict[str, KindTotals]
    counted: bool
    charts: list[Chart]
    filters: list[FilterResult]
    projects: list[tuple[str, dict[str, Any], list[str]]]
    documents: list[dict[str, Any]]


def write_page(reader: ShardReader, documents: list[dict[str, Any]], path: Path) -> None:
    """Write the page of a corpus with these documents of it.

    Raises:
        UserError: a shard is damaged, or the page cannot be written.
    """
    filters: dict[str, Callable[..., str]] = {"bytes": format_bytes, "held_out": describe_overlap}
    page = collect(reader, documents)
    html = render("cpplm.corpus.reports", "corpus.html.jinja", filters, page=page)
    path = path.expanduser()
    Storage(path.parent, create=True).write(path.name, html.encode("utf-8", "replace"))


def collect(reader: ShardReader, documents: list[dict[str, Any]]) -> CorpusPage:
    """Read what the page shows; every shard is read once."""
    totals = corpus_totals(reader.manifest)
    kinds, documents_by_length, text_by_length, splits = _measure(reader)
    counted = any(kind.tokens for kind in kinds.values())
    unit = "tokens" if counted else "bytes"
    projects = sorted(
        reader.manifest["projects"].items(), key=lambda item: (-item[1]["source_bytes"], item[0])
    )
    return CorpusPage(
        name=reader.storage.location.rstrip("/").rsplit("/", 1)[-1],
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M"),
        manifest=reader.manifest,
        totals=totals,
        tiles=_tiles(totals, kinds),
        kinds=kinds,
        counted=counted,
        charts=[
            _chart(f"Documents by their length in {unit}", "documents", documents_by_length, list(kinds)),
            _chart(f"Text by the length of its document in {unit}", unit, text_by_length, list(kinds)),
        ],
        filters=filter_results(reader.manifest, _SHOWN_EXAMPLES),
        projects=[(name, project, sorted(splits[name])) for name, project in projects[:_SHOWN_PROJECTS]],
        documents=[_document_view(document) for document in documents],
    )


ByLength = dict[int, Counter[str]]


def _measure(reader: ShardReader) -> tuple[dict[str, KindTotals], ByLength, ByLength, dict[str, set[str]]]:
    """Sums by kind; documents and text by length and kind; and the splits that each project is in."""
    kinds: dict[str, KindTotals] = defaultdict(KindTotals)
    documents: ByLength = defaultdict(Counter)
    text: ByLength = defaultdict(Counter)
    splits: dict[str, set[str]] = defaultdict(set)
    shards = [shard for split in SPLITS for shard in reader.shards(split)]
    with progress_bar(len(shards), "page", "shard") as bar:
        for shard in shards:
            table = reader.table(shard, ["text", "project", "kind", "num_tokens"])
            for project in pc.unique(table["project"]).to_pylist():
                splits[project].add(shard.split)
            sizes = pc.binary_length(table["text"]).to_pylist()
            columns = (table["kind"].to_pylist(), sizes, table["num_tokens"].to_pylist())
            for kind, size, tokens in zip(*columns, strict=True):
                kinds[kind] = kinds[kind].plus(size, max(0, tokens))
                length = max(1, size if tokens < 0 else tokens)
                place = int(math.log2(length) * _BARS_PER_DOUBLING)
                documents[place][kind] += 1
                text[place][kind] += length
            bar.update(1)
    return dict(sorted(kinds.items(), key=lambda item: -item[1].size)), documents, text, splits


def _chart(title: str, what: str, counts: ByLength, kinds: list[str]) -> Chart:
    """Bars for every length between the shortest and the longest; the view box is 640 by 220."""
    places = range(min(counts), max(counts) + 1)
    top = max(counter.total() for counter in counts.values())
    width = 624 / len(places)
    bars, labels = [], []
    for number, place in enumerate(places):
        counter, y, boxes = counts.get(place, Counter()), 195.0, []
        for index, kind in enumerate(kinds):
            height = 170 * counter[kind] / top
            y -= height
            boxes.append(BarPart(index, round(y, 2), round(height, 2)))
        low, high = (math.ceil(2 ** (edge / _BARS_PER_DOUBLING)) for edge in (place, place + 1))
        x = round(8 + number * width, 2)
        bars.append(Bar(x, f"{low:,} to {high - 1:,}: {counter.total():,} {what}", boxes))
        if place % (2 * _BARS_PER_DOUBLING) == 0:
            labels.append((x, f"{low:,}" if low < 1024 else f"{low // 1024:,}K"))
    return Chart(title, f"{short_number(top)} {what}", round(0.86 * width, 2), bars, labels)


def _tiles(totals: dict[str, Any], kinds: dict[str, KindTotals]) -> list[tuple[str, str, str]]:
    """Headline figures as (name, value, remark)."""
    tokens = sum(kind.tokens for kind in kinds.values())
    source, text = totals["source_bytes"], totals["text_bytes"]
    tiles = [
        ("projects", f"{totals['projects']:,}", f"held out by {totals['split_by']}"),
        (
            "source",
            format_bytes(source),
            f"{totals['files']:,} files, {totals['functions']:,} functions",
        ),
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
    """A column's value; a span of lines as `file:first-last`."""
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    if isinstance(value, dict) and value.keys() == {"file", "first", "last"}:
        return f"{value['file']}:{value['first']}-{value['last']}"
    return str(value)
