"""How densely and how fast a tokenizer encodes held-out code."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class MeasureSettings:
    """Settings of `cpplm tokenizer evaluate`."""

    tokenizer: Path
    """Tokenizer file."""
    data_dir: str
    """Corpus; its validation documents are encoded."""


@dataclass(frozen=True)
class Measurement:
    """`bytes_per_token` is the mean over projects, so that one large project does not decide it."""

    bytes_per_token: float
    by_project: dict[str, float]
    megabytes_per_second: float
    documents: int


def measure(settings: MeasureSettings) -> Measurement:
    """Encode every validation document once.

    Raises:
        UserError: no such files, no validation documents, or a document that does not come back as it was.
    """
    tokenizer = Tokenizer.load(settings.tokenizer)
    documents = list(ShardReader(settings.data_dir).texts("val"))
    if not documents:
        raise UserError(f"{settings.data_dir} has no validation documents")
    num_bytes: Counter[str] = Counter()
    num_tokens: Counter[str] = Counter()
    seconds = 0.0
    for project, text in documents:
        begin = time.perf_counter()
        ids = tokenizer.encode(text)
        seconds += time.perf_counter() - begin
        if tokenizer.decode_bytes(ids) != text.encode():
            raise UserError(
                f"{settings.tokenizer} loses text of project {project}", fix="Train the tokenizer again."
            )
        num_bytes[project] += len(text.encode())
        num_tokens[project] += len(ids)
    by_project = {project: num_bytes[project] / max(1, num_tokens[project]) for project in num_bytes}
    return Measurement(
        bytes_per_token=sum(by_project.values()) / len(by_project),
        by_project=by_project,
        megabytes_per_second=num_bytes.total() / 1e6 / max(seconds, 1e-9),
        documents=len(documents),
    )
