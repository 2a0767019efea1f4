"""Bytes per token and speed of a tokenizer on held-out code, and a check that it loses none of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenizerBenchmarkSettings:
    """Settings of `cpplm tokenizer evaluate`."""

    tokenizer: Annotated[Path, Argument("FILE")]
    """Tokenizer file, or the name of one that comes with cpplm, such as `cpp-32k`."""
    data_dir: Annotated[str, Argument("CORPUS", positional=True)] = ""
    """Corpus; its validation documents are encoded."""
    projects_dir: Path | None = None
    """Encode the C++ files of the projects in this folder instead, one project a sub-folder."""
    threads: int = 2
    """Measure the speed with this many threads too."""

    def __post_init__(self) -> None:
        if bool(self.data_dir) == (self.projects_dir is not None):
            raise UserError(
                "there is nothing to encode, or two things", fix="Give either CORPUS or --projects_dir."
            )
        if self.threads < 1:
            raise UserError(f"--threads {self.threads} must be at least 1")


@dataclass(frozen=True)
class TokenizerBenchmark:
    """Figures of encoding held-out text.

    Attributes:
        bytes_per_token: the mean over projects, so that one large project does not decide it.
        by_project: bytes per token of each.
        megabytes_per_second: by number of threads.
        documents: that were encoded, and decoded to what they were.
        bytes: of their text.
    """

    bytes_per_token: float
    by_project: dict[str, float]
    megabytes_per_second: dict[int, float]
    documents: int
    bytes: int


def benchmark_tokenizer(
    tokenizer: Tokenizer, texts: Iterable[tuple[str, bytes]], threads: int
) -> TokenizerBenchmark:
    """Encode every text with one thread, decode it, then encode all with `threads`.

    Raises:
        UserError: there is no text, or one does not come back as it was.
    """
    num_bytes: Counter[str] = Counter()
    num_tokens: Counter[str] = Counter()
    seconds = {1: 0.0}
    documents: list[bytes] = []
    for project, data in texts:
        begin = time.perf_counter()
        ids = tokenizer.encode(data)
        seconds[1] += time.perf_counter() - begin
        if tokenizer.decode_bytes(ids) != data:
            raise UserError(f"the tokenizer loses text of project {project}", fix="Train it again.")
        num_bytes[project] += len(data)
        num_tokens[project] += len(ids)
        documents.append(data)
    if not documents:
        raise UserError("there are no documents to encode", fix="Use a corpus with validation documents.")
    if threads > 1:
        begin = time.perf_counter()
        tokenizer.encode_batch(documents, threads=threads)
        seconds[threads] = time.perf_counter() - begin
    by_project = {project: num_bytes[project] / max(1, num_tokens[project]) for project in num_bytes}
    return TokenizerBenchmark(
        bytes_per_token=sum(by_project.values()) / len(by_project),
        by_project=by_project,
        megabytes_per_second={count: num_bytes.total() / 1e6 / spent for count, spent in seconds.items()},
        documents=len(documents),
        bytes=num_bytes.total(),
    )
