"""`cpplm tokenizer train|evaluate`."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.tokenizer.measure import MeasureSettings, measure
from cpplm.tokenizer.train import TokenizerSettings, train_tokenizer


def train(settings: TokenizerSettings) -> Report:
    """Train, or report the tokenizer that is already there."""
    tokenizer, now = train_tokenizer(settings)
    text = (
        f"{settings.out}: {tokenizer.vocab_size:,} tokens, hash {tokenizer.hash[:12]}"
        f"{'' if now else ' (already trained on this corpus)'}"
    )
    figures = {
        "out": str(settings.out),
        "vocab_size": tokenizer.vocab_size,
        "hash": tokenizer.hash,
        "trained_now": now,
    }
    return Report(text, figures)


def evaluate(settings: MeasureSettings) -> Report:
    """Bytes per token by project, and speed."""
    result = measure(settings)
    rows = [f"{project:30} {ratio:6.3f} bytes/token" for project, ratio in sorted(result.by_project.items())]
    rows.append(f"{'mean over projects':30} {result.bytes_per_token:6.3f} bytes/token")
    rows.append(
        f"encoding {result.megabytes_per_second:.1f} MB/s on one thread, {result.documents:,} documents"
    )
    figures = {
        "bytes_per_token": result.bytes_per_token,
        "by_project": result.by_project,
        "megabytes_per_second": result.megabytes_per_second,
        "documents": result.documents,
    }
    return Report("\n".join(rows), figures)
