"""`cpplm tokenizer train|evaluate|show|export`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cpplm.cli.report import Report
from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.core.shards import ShardReader
from cpplm.core.storage import Storage
from cpplm.core.text import pluralize
from cpplm.corpus.ingest.raw_files import find_batches
from cpplm.tokenizer.benchmark import TokenizerBenchmarkSettings, benchmark_tokenizer
from cpplm.tokenizer.conversations import render_conversation
from cpplm.tokenizer.export import export_hf
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.tokenizer.train import TokenizerSettings, train_on_corpus, train_tokenizer
from cpplm.tokenizer.visualize import to_html, to_terminal


@dataclass(frozen=True)
class ShowSettings:
    """Settings of `cpplm tokenizer show`."""

    tokenizer: Annotated[Path, Argument("TOKENIZER", positional=True)]
    """Tokenizer file, or the name of one that comes with cpplm, such as `cpp-32k`."""
    file: Path | None = None
    """Show this file (default: what comes on standard input)."""
    conversation: Path | None = None
    """Show this conversation instead: JSON with `messages`; what an assistant learns to write is green."""
    with_ids: bool = False
    """Write each token's id behind it."""
    html: Path | None = None
    """Write a piece of HTML to this file instead of colors to the terminal."""

    def __post_init__(self) -> None:
        if self.file is not None and self.conversation is not None:
            raise UserError("--file and --conversation exclude each other", fix="Give one of them.")
        if self.html is not None and self.with_ids:
            raise UserError(
                "--with_ids is for the terminal", fix="In HTML the ids show under the pointer; leave it out."
            )


@dataclass(frozen=True)
class TokenizerExportSettings:
    """Settings of `cpplm tokenizer export`."""

    tokenizer: Annotated[Path, Argument("TOKENIZER", positional=True)]
    """Tokenizer file, or the name of one that comes with cpplm, such as `cpp-32k`."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder to write to."""
    to: Literal["hf"] = "hf"
    """hf: what `transformers.AutoTokenizer.from_pretrained` loads."""


def train(settings: TokenizerSettings) -> Report:
    """Train, or report the tokenizer that is already there."""
    if settings.projects_dir is None:
        tokenizer, now = train_on_corpus(settings)
    else:
        batches, digest = find_batches(settings.projects_dir, settings.max_project_bytes)
        tokenizer, now = train_tokenizer(settings, batches, {"files": digest})
    text = (
        f"{settings.out}: {tokenizer.vocab_size:,} tokens, hash {tokenizer.hash[:12]}"
        f"{'' if now else ' (already trained on this text)'}"
        + (
            f"; the text gives no {settings.vocab_size:,}: the vocabulary was lowered"
            if tokenizer.vocab_size < settings.vocab_size
            else ""
        )
    )
    figures = {
        "out": str(settings.out),
        "vocab_size": tokenizer.vocab_size,
        "hash": tokenizer.hash,
        "trained_now": now,
    }
    return Report(text, figures)


def evaluate(settings: TokenizerBenchmarkSettings) -> Report:
    """Bytes per token by project, and speed."""
    tokenizer = Tokenizer.load(settings.tokenizer)
    if settings.projects_dir is None:
        texts = [(project, text.encode()) for project, text in ShardReader(settings.data_dir).texts("val")]
    else:
        batches, _ = find_batches(settings.projects_dir, sys.maxsize, prose=False)
        texts = [text for batch in batches for text in batch.texts()]
    result = benchmark_tokenizer(tokenizer, texts, settings.threads)
    rows = [f"{project:30} {ratio:6.3f} bytes/token" for project, ratio in sorted(result.by_project.items())]
    rows.append(f"{'mean over projects':30} {result.bytes_per_token:6.3f} bytes/token")
    rows += [
        f"encoding on {pluralize(threads, 'thread')}: {speed:.1f} MB/s"
        for threads, speed in result.megabytes_per_second.items()
    ]
    read = f"{pluralize(result.documents, 'document')}, {result.bytes / 1e6:.1f} MB"
    rows.append(f"{read}, decoding gives back every byte")
    return Report("\n".join(rows), {**asdict(result), "hash": tokenizer.hash})


def show(settings: ShowSettings) -> Report:
    """Tokens in colors."""
    tokenizer = Tokenizer.load(settings.tokenizer)
    mask = None
    if settings.conversation is not None:
        rendered = render_conversation(tokenizer, _json(settings.conversation), max_tokens=sys.maxsize)
        ids, mask = rendered.ids, rendered.mask
    else:
        ids = tokenizer.encode(_read(settings.file))
    figures: dict[str, Any] = {"ids": ids} if mask is None else {"ids": ids, "mask": mask}
    if settings.html is not None:
        html = settings.html.expanduser()
        Storage(html.parent, create=True).write(html.name, to_html(tokenizer, ids, mask).encode())
        return Report(f"{html}: {pluralize(len(ids), 'token')}", figures)
    return Report(to_terminal(tokenizer, ids, mask, with_ids=settings.with_ids), figures)


def export(settings: TokenizerExportSettings) -> Report:
    """Write the files of another library."""
    files = export_hf(Tokenizer.load(settings.tokenizer), settings.out.expanduser())
    return Report("\n".join(files), {"files": files, "format": settings.to})


def _read(path: Path | None) -> bytes:
    try:
        return sys.stdin.buffer.read() if path is None else path.expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", fix='Write {"messages": [...]}.') from error
