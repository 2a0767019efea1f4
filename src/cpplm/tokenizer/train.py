"""Train a tokenizer: count the words of a corpus, learn merges, write one file.

The result depends on the texts as a set: not on their order, on how they are spread over shards, or on the
number of workers. Memory is bounded by `max_bytes`: a larger corpus is sampled, text by text, by a hash of
the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.settings import Argument
from cpplm.core.shards import ShardReader
from cpplm.core.storage import Storage
from cpplm.core.workers import available_cores
from cpplm.tokenizer.bpe_trainer import NUM_BYTES, PairMerger, train_bpe
from cpplm.tokenizer.forced_vocab import forced_tokens
from cpplm.tokenizer.pretoken_counts import ShardBatch, TextBatch, WordCounts, count_words
from cpplm.tokenizer.pretokenizer import PATTERNS, PretokenizerName
from cpplm.tokenizer.special_tokens import NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer

# Longer tokens are separator lines and tables: each would be one place lost.
_MAX_TOKEN_BYTES = 64
# Pairs with less weight, in twentieths of an occurrence, are not even looked at: first the rare ones of a
# large corpus, then, when the vocabulary does not fill, only those that occur once.
_MIN_WEIGHTS = (400, 20)
# Core names take at most this share of a vocabulary; all fit from 4,096 tokens on.
_MAX_FORCED_SHARE = 1 / 8
MAX_VOCAB_SIZE = 65_536
# Of a vocabulary that follows from the text: matrix products like it.
_VOCAB_MULTIPLE = 64


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of `cpplm tokenizer train`."""

    out: Annotated[Path, Argument("FILE")]
    """Tokenizer file to write (.json)."""
    data_dir: Annotated[str, Argument("CORPUS", positional=True)] = ""
    """Corpus to train on: a folder or bucket URL written by `cpplm corpus build`; its training documents."""
    projects_dir: Path | None = None
    """Train on the C++ files of the projects in this folder instead, one project a sub-folder."""
    vocab_size: int = 32_768
    """Number of token ids in all: 64 special tokens, 256 bytes, core names of C++, the rest learned."""
    soft_vocab_limit: bool = False
    """With too little text for --vocab_size: as many tokens as it gives, instead of an error."""
    pretokenizer: PretokenizerName = "lines"
    """lines: a line break ends a token. dense: it takes the next line's indentation along, for 9 % fewer
    tokens but 2 % more bits per byte in the models that were compared."""
    max_bytes: int = 1_000_000_000
    """Learn from at most about this much text; memory grows with it."""
    max_project_bytes: int = 60_000_000
    """With --projects_dir: take at most this much of each project, chosen by a hash of the files' names."""
    workers: int = 0
    """Processes that count (0 = one per core)."""

    def __post_init__(self) -> None:
        if bool(self.data_dir) == (self.projects_dir is not None):
            raise UserError(
                "a tokenizer is trained on a corpus or on a folder of projects",
                fix="Give either CORPUS or --projects_dir.",
            )
        fixed = NUM_SPECIAL + NUM_BYTES
        if not fixed < self.vocab_size <= MAX_VOCAB_SIZE:
            raise UserError(
                f"--vocab_size {self.vocab_size:,} is not between {fixed + 1:,} and {MAX_VOCAB_SIZE:,}",
                fix=f"{NUM_SPECIAL} special tokens and {NUM_BYTES} bytes are fixed; "
                "use 4096, 16384, 32768 or 65536.",
            )
        for name in ("max_bytes", "max_project_bytes"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)} is not positive")
        if self.workers < 0:
            raise UserError(f"--workers {self.workers}", fix="Use 0 for one per core.")


def train_on_corpus(settings: TokenizerSettings) -> tuple[Tokenizer, bool]:
    """`train_tokenizer` on the training documents of `data_dir`.

    Raises:
        UserError: no corpus there, or as `train_tokenizer`.
    """
    reader = ShardReader(settings.data_dir)
    batches = [ShardBatch(reader.storage.location, shard) for shard in reader.shards("train")]
    return train_tokenizer(settings, batches, {"corpus": reader.fingerprint()})


def train_tokenizer(
    settings: TokenizerSettings, batches: Sequence[TextBatch], source: dict[str, Any]
) -> tuple[Tokenizer, bool]:
    """Train and save, or load what an equal earlier call saved.

    Args:
        settings: everything but where the text comes from.
        batches: the text.
        source: identifies the text.

    Returns:
        The tokenizer, and whether it was trained now.

    Raises:
        UserError: no text, too little for the vocabulary, or `out` holds another tokenizer.
    """
    provenance = {**source, "vocab_size": settings.vocab_size, "max_bytes": settings.max_bytes}
    pattern = PATTERNS[settings.pretokenizer]
    out = settings.out.expanduser()
    if out.exists():
        existing = Tokenizer.load(out)
        if provenance.items() <= existing.provenance.items() and existing.pattern == pattern:
            return existing, False
        raise UserError(
            f"{out} holds a tokenizer of another corpus or other settings",
            fix="Delete it or name another --out.",
        )
    total = sum(batch.size for batch in batches)
    words = count_words(
        batches,
        pattern,
        workers=settings.workers or available_cores(),
        share=min(1.0, settings.max_bytes / max(1, total)),
    )
    tokens = train_vocabulary(words, settings.vocab_size, soft_limit=settings.soft_vocab_limit)
    figures = {"bytes": words.num_bytes, "projects": words.num_projects, "words": len(words.words)}
    tokenizer = Tokenizer(pattern, tokens, {**provenance, **figures})
    Storage(out.parent, create=True).write(out.name, tokenizer.to_json())
    return tokenizer, True


def train_vocabulary(words: WordCounts, vocab_size: int, *, soft_limit: bool = False) -> tuple[bytes, ...]:
    """All tokens behind the special ones: the 256 bytes, merges in the order learned, core names left over.

    Args:
        words: what to learn from.
        vocab_size: number of tokens, special ones included.
        soft_limit: with too few words, give as many tokens as there are, a multiple of 64.

    Raises:
        UserError: the words do not have enough repeated pairs for `vocab_size`, or for any token at all.
    """
    single = [bytes([value]) for value in range(NUM_BYTES)]
    symbols = np.frombuffer(b"".join(words.words), dtype=np.uint8)
    lengths = np.fromiter(map(len, words.words), dtype=np.int64, count=len(words.words))
    room = vocab_size - NUM_SPECIAL
    forced = forced_tokens()[: int((room - NUM_BYTES) * _MAX_FORCED_SHARE)]
    for min_weight in _MIN_WEIGHTS:
        merger = PairMerger(
            symbols, lengths, words.weights, single, max_token_bytes=_MAX_TOKEN_BYTES, min_weight=min_weight
        )
        with progress_bar(room - NUM_BYTES, "learning merges", "token") as bar:
            tokens = train_bpe(merger, room, forced, bar.update)
        if tokens is not None:
            return tuple(tokens)
    fewer = (NUM_SPECIAL + len(merger.tokens)) // _VOCAB_MULTIPLE * _VOCAB_MULTIPLE
    if soft_limit and NUM_SPECIAL + NUM_BYTES < fewer < vocab_size:
        return train_vocabulary(words, fewer, soft_limit=True)
    raise UserError(
        f"the corpus gives only {NUM_SPECIAL + len(merger.tokens):,} tokens, not --vocab_size {vocab_size:,}",
        fix="Use a smaller vocabulary, --soft_vocab_limit or more code.",
    )
