"""Train a tokenizer on the training split of a corpus.

Pieces are counted and merged by the `tokenizers` library. The result depends on the documents as a set,
not on their order or on the number of threads: counts are summed, ties go to the smaller pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.shards import ShardReader
from cpplm.core.storage import Storage
from cpplm.tokenizer.pattern import PATTERN
from cpplm.tokenizer.special import NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer

NUM_BYTES = 256


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of `cpplm tokenizer train`."""

    data_dir: str
    """Corpus to train on: a folder or bucket URL written by `cpplm corpus build`."""
    out: Path
    """Tokenizer file to write (.json)."""
    vocab_size: int = 32_768
    """Number of token ids in all: 64 special tokens, 256 bytes, the rest learned."""
    max_bytes: int = 1_000_000_000
    """Read at most this many bytes of text; memory grows with the number of distinct words in them."""

    def __post_init__(self) -> None:
        if self.vocab_size <= NUM_SPECIAL + NUM_BYTES:
            raise UserError(
                f"--vocab_size {self.vocab_size} leaves no room for merges",
                fix=f"{NUM_SPECIAL} special tokens and {NUM_BYTES} bytes are fixed; use 4096 or more.",
            )
        if self.max_bytes < 1:
            raise UserError(f"--max_bytes {self.max_bytes} is not positive")


def train_tokenizer(settings: TokenizerSettings) -> tuple[Tokenizer, bool]:
    """Train and save, or load what an equal earlier call saved.

    Returns:
        The tokenizer, and whether it was trained now.

    Raises:
        UserError: no corpus, too little text for the vocabulary, or `out` holds another tokenizer.
    """
    reader = ShardReader(settings.data_dir)
    provenance = {
        "corpus": reader.fingerprint(),
        "vocab_size": settings.vocab_size,
        "max_bytes": settings.max_bytes,
        "tokenizers": version("tokenizers"),
    }
    out = settings.out.expanduser()
    if out.exists():
        found = Tokenizer.load(out)
        if found.provenance == provenance and found.pattern == PATTERN:
            return found, False
        raise UserError(
            f"{out} holds a tokenizer of another corpus or other settings",
            fix="Delete it or name another --out.",
        )
    tokens = learn_merges(_texts(reader, settings.max_bytes), settings.vocab_size)
    tokenizer = Tokenizer(pattern=PATTERN, tokens=tokens, provenance=provenance)
    Storage(out.parent, create=True).write(out.name, tokenizer.to_json())
    return tokenizer, True


def _texts(reader: ShardReader, max_bytes: int) -> Iterator[str]:
    total = min(max_bytes, sum(shard.bytes for shard in reader.shards("train")))
    with progress_bar(total, "counting words", "B", unit_scale=True) as bar:
        for _, text in reader.texts("train"):
            if bar.n >= total:
                return
            yield text
            bar.update(len(text.encode()))


def learn_merges(texts: Iterator[str], vocab_size: int) -> tuple[bytes, ...]:
    """All tokens behind the special ones: the 256 bytes, then merges by rank.

    Raises:
        UserError: the texts do not have enough repeated pairs for `vocab_size`.
    """
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - NUM_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(texts, trainer)
    byte_of = {character: value for value, character in _byte_characters().items()}
    learned = sorted((rank, token) for token, rank in model.get_vocab().items() if len(token) > 1)
    tokens = [bytes([value]) for value in range(NUM_BYTES)]
    tokens += [bytes(byte_of[character] for character in token) for _, token in learned]
    if NUM_SPECIAL + len(tokens) != vocab_size:
        raise UserError(
            f"the corpus gives only {NUM_SPECIAL + len(tokens):,} tokens, not --vocab_size {vocab_size:,}",
            fix="Use a smaller vocabulary or more code.",
        )
    return tuple(tokens)


def _byte_characters() -> dict[int, str]:
    """The printable character by which the `tokenizers` library writes each byte (the GPT-2 alphabet)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [value for value in range(NUM_BYTES) if value not in printable]
    return {value: chr(value) for value in printable} | {
        value: chr(256 + i) for i, value in enumerate(others)
    }
