"""`cpplm corpus inspect`: the figures of a corpus and a few of its documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any

from cpplm.core.errors import UserError
from cpplm.core.html_page import shaded_text
from cpplm.core.settings import Argument
from cpplm.core.shards import ShardReader
from cpplm.corpus.reports.html_report import write_page
from cpplm.corpus.reports.sample import sample_documents

_ON_A_PAGE = 12


@dataclass(frozen=True)
class InspectSettings:
    """Settings of `cpplm corpus inspect`."""

    corpus: Annotated[str, Argument("CORPUS", positional=True)]
    """Folder or bucket URL of a corpus."""
    project: str | None = None
    """Only documents of this project."""
    kind: str | None = None
    """Only documents of this kind."""
    num: int | None = None
    """Number of documents to show; when left out, 1 in the terminal and 12 on a page."""
    seed: int = 0
    """Seed of the sample: another one shows others."""
    page: Path | None = None
    """Write an HTML page that opens offline, with the documents, to this file."""

    def __post_init__(self) -> None:
        if self.num is not None and self.num < 0:
            raise UserError(f"--num {self.num} is negative", fix="Use 0 to see the figures only.")
        if self.page is not None and self.page.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"--page {self.page} is no .html file", fix="Name it page.html, say.")


def inspect_corpus(settings: InspectSettings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The manifest and the chosen documents, each with its columns and its split; writes the page, if any.

    Raises:
        UserError: no corpus there, no document of that project and kind, or the page cannot be written.
    """
    reader = ShardReader(settings.corpus)
    num = settings.num if settings.num is not None else 1 if settings.page is None else _ON_A_PAGE
    documents = sample_documents(
        reader, project=settings.project, kind=settings.kind, num=num, seed=settings.seed
    )
    if settings.page is not None:
        write_page(reader, documents, settings.page)
    return reader.manifest, documents


def document_html(document: Mapping[str, Any]) -> str:
    """One document and a table of its sources as HTML; what it borrows from other files is shaded."""
    data, pieces, end = document["text"].encode(), [], 0
    for borrowed in [*document["borrowed"], {"start": len(data), "end": len(data)}]:
        pieces.append((data[end : borrowed["start"]].decode(), 0.0, "its own files"))
        end = borrowed["end"]
        pieces.append((data[borrowed["start"] : end].decode(), 0.25, "borrowed for what it declares"))
    rows = "".join(
        f"<tr><td>{escape(source['file'])}:{source['first']}-{source['last']}</td>"
        f"<td>{escape(source['reason'])}</td></tr>"
        for source in document["sources"]
        if source["reason"]
    )
    return f"{shaded_text(pieces)}<table><tr><th>borrowed lines</th><th>needed for</th></tr>{rows}</table>\n"
