import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.corpus.ingest import dedup
from cpplm.corpus.ingest.dedup import (
    Fingerprint,
    exact_duplicates,
    fingerprint,
    near_duplicates,
    sketch_similarity,
)
from cpplm.corpus.ingest.ngram_hash import Hashes, hash_words, ngram_hashes

WORDS = [f"w{i}" for i in range(5_000)]


def text(seed: int, length: int = 600) -> list[str]:
    return random.Random(seed).choices(WORDS, k=length)


def changed(words: list[str], share: float, seed: int = 0) -> list[str]:
    """Other words in one stretch, so that about `share` of the runs change."""
    count = int(share * len(words))
    return words[: len(words) - count] + text(seed + 77, count)


def hashes(words: list[str]) -> Hashes:
    return hash_words([word.encode() for word in words])


def twins(texts: list[list[str]], threshold: float = 0.85, num_known: int = 0) -> dict[int, int]:
    prints = [fingerprint(str(i).encode(), hashes(words)) for i, words in enumerate(texts)]
    return near_duplicates(prints, threshold, num_known)


def jaccard(one: list[str], two: list[str]) -> float:
    first, second = (set(ngram_hashes(hashes(each), 5).tolist()) for each in (one, two))
    return len(first & second) / len(first | second)


def test_near_copies_are_found_and_the_first_stays():
    one, two = text(1), text(2)
    assert twins([one, two, changed(one, 0.05), changed(two, 0.03), one]) == {2: 0, 3: 1, 4: 0}


def test_less_alike_files_stay():
    assert twins([text(1), changed(text(1), 0.2), changed(text(1), 0.5)]) == {}
    assert twins([text(1), changed(text(1), 0.2)], threshold=0.5) == {1: 0}


def test_nothing_goes_for_being_like_a_file_that_went():
    one = text(1, 500)
    two = changed(one, 0.06, seed=5)
    three = changed(two[::-1], 0.06, seed=6)[::-1]  # changed at its other end
    assert jaccard(one, two) > 0.85 < jaccard(two, three)
    assert jaccard(one, three) < 0.85
    assert twins([one, two, three]) == {1: 0}


@given(st.integers(0, 2**32), st.integers(40, 4_000), st.floats(0, 1))
def test_sketches_estimate_the_similarity(seed, length, share):
    one = text(seed, length)
    two = changed(one, share, seed)
    estimate = sketch_similarity(*(fingerprint(b"", hashes(each)) for each in (one, two)))
    is_exact = max(map(len, (one, two))) <= 512
    assert estimate == pytest.approx(jaccard(one, two), abs=1e-9 if is_exact else 5 * (0.25 / 512) ** 0.5)


def test_known_files_stay():
    one, two = text(1), text(2)
    assert twins([one, changed(one, 0.03), one, two], num_known=2) == {2: 0}


def test_what_is_too_short_is_not_judged():
    assert fingerprint(b"a", hashes(text(1, 30))) == Fingerprint(b"a")
    assert near_duplicates([Fingerprint(b"a")] * 2, 0.85) == {}


def test_many_copies_are_compared_with_the_first_only(monkeypatch):
    compared = []
    monkeypatch.setattr(dedup, "sketch_similarity", lambda one, two: compared.append(1) or 1.0)
    assert twins([text(1)] * 200) == dict.fromkeys(range(1, 200), 0)
    assert len(compared) == 199


def test_exact_copies():
    prints = [Fingerprint(digest) for digest in (b"a", b"b", b"a", b"b", b"a", b"c")]
    assert exact_duplicates(prints) == {2: 0, 3: 1, 4: 0}


@pytest.mark.parametrize("threshold", [0.5, 0.85, 1.0])
def test_the_similarity_decides_and_all_twins_are_looked_at(threshold):
    for seed in range(60):
        one = text(seed, 400)
        two = changed(one, (1 - threshold) * seed / 60, seed)
        assert bool(twins([one, two], threshold)) == (jaccard(one, two) >= threshold)
