"""The merges on whole arrays are those of the definition, word by word."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.tokenizer.bpe_trainer import PairMerger, train_bpe
from cpplm.tokenizer.forced_vocab import forced_tokens
from cpplm.tokenizer.pretoken_counts import WordCounts
from cpplm.tokenizer.train import train_vocabulary

BYTES = [bytes([value]) for value in range(256)]


def merger(words: dict[bytes, int], longest: int = 64, min_weight: int = 1) -> PairMerger:
    return PairMerger(
        np.frombuffer(b"".join(words), dtype=np.uint8),
        np.array([len(word) for word in words]),
        np.array(list(words.values())),
        BYTES,
        max_token_bytes=longest,
        min_weight=min_weight,
    )


def defined_merges(words: dict[bytes, int], steps: int, longest: int, min_weight: int) -> list[bytes]:
    """Sennrich et al. 2016, algorithm 1: count all pairs of all words, merge the best one, begin anew."""
    tokens, ids = list(BYTES), {token: number for number, token in enumerate(BYTES)}
    split = {word: list(word) for word in words}
    for _ in range(steps):
        counts: Counter[tuple[int, int]] = Counter()
        for word, parts in split.items():
            for pair in itertools.pairwise(parts):
                counts[pair] += words[word]
        counts = Counter(
            {
                p: n
                for p, n in counts.items()
                if len(tokens[p[0]] + tokens[p[1]]) <= longest and n >= min_weight
            }
        )
        if not counts:
            return tokens
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        token = tokens[best[0]] + tokens[best[1]]
        if token not in ids:
            ids[token] = len(tokens)
            tokens.append(token)
        for parts in split.values():
            position = 0
            while position < len(parts) - 1:
                if (parts[position], parts[position + 1]) == best:
                    parts[position : position + 2] = [ids[token]]
                position += 1
    return tokens


def fast_merges(words: dict[bytes, int], steps: int, longest: int, min_weight: int) -> list[bytes]:
    found = merger(words, longest, min_weight)
    for _ in range(steps):
        pair = found.pop()
        if pair is None:
            break
        found.merge(pair)
    return found.tokens


@given(
    words=st.dictionaries(
        st.text("ab", min_size=1, max_size=14).map(str.encode) | st.binary(min_size=1, max_size=6),
        st.integers(1, 30),
        min_size=1,
        max_size=12,
    ),
    steps=st.integers(0, 40),
    longest=st.sampled_from([3, 64]),
    min_weight=st.sampled_from([1, 5]),
)
def test_merges_are_those_of_the_definition(
    words: dict[bytes, int], steps: int, longest: int, min_weight: int
) -> None:
    """Short words over two letters make overlaps, runs, and different pairs of the same token."""
    assert fast_merges(words, steps, longest, min_weight) == defined_merges(words, steps, longest, min_weight)


def test_forced_tokens_come_last_unless_they_are_learned() -> None:
    tokens = train_bpe(merger({b"int": 100, b"char": 90, b"xy": 1}), 261, [b"int", b"xyz"])
    assert tokens is not None
    assert len(tokens) == 261
    assert tokens[:256] == BYTES
    assert tokens[-1] == b"xyz"
    assert tokens.count(b"int") == 1
    assert tokens.index(b"int") < 260


def test_too_few_pairs() -> None:
    assert train_bpe(merger({b"ab": 5}), 300, []) is None
    words = WordCounts([b"int", b" x", b";"], np.array([20, 20, 20]), 7, 1)
    with pytest.raises(UserError, match=r"gives only .* smaller vocabulary"):
        train_vocabulary(words, 4096)


@pytest.mark.parametrize(("num_words", "vocab_size"), [(60, 4096), (300, 4096), (300, 512)])
def test_a_soft_limit_gives_what_the_text_gives(num_words: int, vocab_size: int) -> None:
    letters = random.Random(num_words)
    chosen = sorted({bytes(letters.choices(b"abcdefgh", k=8)) for _ in range(num_words)})
    words = WordCounts(chosen, np.full(len(chosen), 100), 8 * len(chosen), 1)
    number = 64 + len(train_vocabulary(words, vocab_size, soft_limit=True))
    assert 320 < number <= vocab_size and number % 64 == 0
    if number < vocab_size:
        with pytest.raises(UserError, match="--soft_vocab_limit"):
            train_vocabulary(words, vocab_size)
    with pytest.raises(UserError, match="gives only 320 tokens"):
        train_vocabulary(WordCounts([b"a", b"b"], np.array([20, 20]), 2, 1), vocab_size, soft_limit=True)


def test_core_names_are_in_every_vocabulary_that_has_room() -> None:
    letters = random.Random(0)
    words = {bytes(letters.choices(b"abcdefgh", k=8)) for _ in range(3000)}
    counted = WordCounts(sorted(words), np.full(len(words), 100), 24_000, 1)
    for vocab_size in (1024, 4096):
        tokens = train_vocabulary(counted, vocab_size)
        assert len(tokens) == vocab_size - 64
        assert len(set(tokens)) == len(tokens)
        forced = forced_tokens()[: (vocab_size - 320) // 8]
        assert set(forced) <= set(tokens)
    assert set(forced_tokens()) <= set(tokens)
