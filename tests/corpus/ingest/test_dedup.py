import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.corpus.ingest.dedup import (
    Fingerprint,
    exact_duplicates,
    fingerprint,
    jaccard,
    near_duplicates,
    rows_per_band,
    shingles,
    sketch_similarity,
)
from cpplm.corpus.ingest.ngram_hash import hash_words

WORDS = [f"w{i}" for i in range(5_000)]


def text(seed: int, length: int = 600) -> list[str]:
    return random.Random(seed).choices(WORDS, k=length)


def changed(words: list[str], share: float, seed: int = 0) -> list[str]:
    """Other words in one stretch, so that about `share` of the runs change."""
    count = int(share * len(words))
    return words[: len(words) - count] + text(seed + 77, count)


def twins(texts: list[list[str]], threshold: float = 0.85) -> dict[int, int]:
    found = [shingles(hash_words(" ".join(words).encode()), 0) for words in texts]
    prints = [fingerprint(str(i).encode(), each, threshold) for i, each in enumerate(found)]
    return near_duplicates(prints, threshold, lambda position: found[position])


def test_near_copies_are_found_and_the_first_stays():
    one, two = text(1), text(2)
    assert twins([one, two, changed(one, 0.05), changed(two, 0.03), one]) == {2: 0, 3: 1, 4: 0}


def test_less_alike_files_stay():
    assert twins([text(1), changed(text(1), 0.2), changed(text(1), 0.5)]) == {}
    assert twins([text(1), changed(text(1), 0.2)], threshold=0.5) == {1: 0}


def test_nothing_goes_for_being_like_a_file_that_went():
    one = text(1, 1_000)
    two = changed(one, 0.06, seed=5)
    three = changed(two[::-1], 0.06, seed=6)[::-1]  # changed at its other end
    found = [np.unique(shingles(hash_words(" ".join(each).encode()), 0)) for each in (one, two, three)]
    assert jaccard(found[0], found[1]) > 0.85 < jaccard(found[1], found[2])
    assert jaccard(found[0], found[2]) < 0.85
    assert twins([one, two, three]) == {1: 0}


@given(st.integers(0, 2**32), st.integers(40, 4_000), st.floats(0, 1))
def test_sketches_estimate_the_similarity(seed, length, share):
    one = text(seed, length)
    found = [shingles(hash_words(" ".join(each).encode()), 0) for each in (one, changed(one, share, seed))]
    prints = [fingerprint(b"", each, 0.85) for each in found]
    exact = jaccard(*map(np.unique, found))
    short = max(len(each) for each in found) <= 512
    assert sketch_similarity(*prints) == pytest.approx(exact, abs=1e-9 if short else 5 * (0.25 / 512) ** 0.5)


def test_known_files_stay_and_are_compared_by_their_sketches():
    one, two = text(1), text(2)
    found = [shingles(hash_words(" ".join(each).encode()), 0) for each in (one, changed(one, 0.03), one, two)]
    prints = [fingerprint(bytes([i]), each, 0.85) for i, each in enumerate(found)]

    def read(position):
        assert position >= 2, "the text of a known file is not at hand"
        return found[position]

    assert near_duplicates(prints, 0.85, read, num_known=2) == {2: 0}


def test_zero_switches_it_off():
    found = shingles(hash_words(" ".join(text(1)).encode()), 0)
    assert fingerprint(b"a", found, 0.0) == Fingerprint(b"a")
    assert near_duplicates([Fingerprint(b"a", b"")] * 2, 0.0, lambda position: found) == {}


def test_many_copies_are_compared_with_the_first_only():
    reads = []
    one = shingles(hash_words(" ".join(text(1)).encode()), 0)
    prints = [fingerprint(b"", one, 0.85)] * 200

    def read(position: int):
        reads.append(position)
        return one

    assert near_duplicates(prints, 0.85, read) == dict.fromkeys(range(1, 200), 0)
    assert len(reads) == 200


def test_exact_copies():
    prints = [Fingerprint(digest, b"") for digest in (b"a", b"b", b"a", b"b", b"a", b"c")]
    assert exact_duplicates(prints) == {2: 0, 3: 1, 4: 0}
    assert near_duplicates(prints, 0.85, lambda position: np.empty(0, dtype=np.uint64)) == {}


@pytest.mark.parametrize(("threshold", "rows"), [(0.85, 8), (0.7, 4), (0.5, 2), (0.95, 16), (1.0, 32)])
def test_bands_are_as_long_as_recall_allows(threshold, rows):
    assert rows_per_band(threshold) == rows
    assert 1 - (1 - threshold**rows) ** (128 // rows) >= 0.99


SETS = st.sets(st.integers(0, 30), max_size=20)


@given(SETS, SETS)
def test_jaccard_is_that_of_sets(one, two):
    arrays = [np.array(sorted(each), dtype=np.uint64) for each in (one, two)]
    assert jaccard(*arrays) == (len(one & two) / len(one | two) if one & two else 0)


def test_the_decision_is_the_exact_similarity():
    """Around the threshold every pair is decided by its true Jaccard similarity; few are not looked at."""
    missed = 0
    for seed in range(60):
        one = text(seed, 400)
        two = changed(one, 0.04 + 0.001 * seed, seed)
        found = [np.unique(shingles(hash_words(" ".join(each).encode()), 0)) for each in (one, two)]
        similar = jaccard(*found) >= 0.85
        decided = bool(twins([one, two]))
        assert similar or not decided
        missed += similar and not decided
    assert missed <= 2
