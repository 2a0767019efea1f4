"""Checks before training starts; each warning says what it will cost and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cpplm.tokenizer.forced_vocab import forced_words
from cpplm.tokenizer.tokenizer import Tokenizer

# Most lines of C++ end in one of these, or are a directive or a comment; of prose or Python few are.
_DIRECTIVE = "|".join(forced_words()["directives"])
_CPP_LINE = re.compile(rf"\s*(?:#\s*(?:{_DIRECTIVE})\b|//|/\*|.*[;{{}}]\s*(?://.*|/\*.*)?$)")
_MIN_CPP_SHARE = 0.3
_MIN_LINES = 20
_MAX_EXAMPLES = 5


def check_vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Warnings about keywords and directives of C++ that are not single tokens."""
    names = forced_words()
    words = [*names["keywords"], *(f"#{name}" for name in names["directives"])]
    split = [word for word in words if len(tokenizer.encode(word)) != 1]
    if not split:
        return []
    return [
        f"the tokenizer splits {len(split)} of {len(words)} C++ keywords and directives ("
        f"{_examples(split)}): "
        "it is very small or made for something else, and C++ takes more tokens than it has to. Train one on "
        "C++: 'cpplm tokenizer train'."
    ]


def check_batch(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    """Warnings about a batch of token ids that is not C++, or not of this tokenizer."""
    largest = max((max(row) for row in rows if len(row)), default=0)
    if largest >= tokenizer.vocab_size:
        return [
            f"the batch has token id {largest:,}, the tokenizer only {tokenizer.vocab_size:,}: it was "
            "encoded with another one. Give the --tokenizer that belongs to the data."
        ]
    lines = [line for row in rows for line in tokenizer.decode(row).splitlines() if line.strip()]
    share = sum(bool(_CPP_LINE.match(line)) for line in lines) / max(1, len(lines))
    if len(lines) < _MIN_LINES or share >= _MIN_CPP_SHARE:
        return []
    return [
        f"only {share:.0%} of the lines of the first batch look like C++ ({_examples(lines)}). Look at the "
        "corpus: 'cpplm corpus inspect CORPUS'."
    ]


def check_hashes(tokenizer: Tokenizer, counted_with: str) -> list[str]:
    """Warnings about a corpus whose documents were measured with another tokenizer ("" for none)."""
    if counted_with in ("", tokenizer.hash):
        return []
    return [
        f"the corpus counted its documents' tokens with tokenizer {counted_with[:12]}, this one is "
        f"{tokenizer.hash[:12]}: documents may be longer than the context. Build the corpus with this "
        "--tokenizer, or train with that one."
    ]


def _examples(items: Sequence[str]) -> str:
    examples = ", ".join(repr(item[:40]) for item in items[:_MAX_EXAMPLES])
    return examples + (", ..." if len(items) > _MAX_EXAMPLES else "")
