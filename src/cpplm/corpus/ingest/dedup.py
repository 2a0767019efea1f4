"""Files that another file repeats, wholly or nearly, within a project or across projects.

Exact: equal normalised text. Near: the sets of runs of five words, without the comments at the head, have a
Jaccard similarity above the threshold. Of each file a sketch is kept, the 512 least hashes of its runs (min_s
of Broder 1997, "On the resemblance and containment of documents"): the similarity is exact for two files of
at most 512 runs, and beyond that its standard error is 0.016 at a similarity of 0.85. Files that share some
of their very least hashes are compared. Of equals the first one stays, in the order given; a file is compared
only with those that stay, so that nothing goes for being like a file that went.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpplm.corpus.ingest.ngram_hash import Hashes, ngram_hashes

SHINGLE_WORDS = 5
# Below this a file has too little text to be judged: forwarding headers, a class with one member.
_FEWEST_RUNS = 30
_SKETCH_SIZE = 512
# Files are compared that have 3 of their 12 least hashes in common: 99.7% of twins at a similarity of 0.5.
_NUM_LEAST = 12
_FEWEST_COMMON = 3
# Files that are remembered for one hash: bounds the work when it is common to thousands.
_MOST_COMPARED = 16


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of a file, by which copies and near copies of it are found.

    Attributes:
        text: SHA-256 of its normalised, redacted text.
        sketch: the least hashes of its runs, their upper 4 bytes, ascending; empty when it is not compared.
    """

    text: bytes
    sketch: bytes = b""


def fingerprint(text_digest: bytes, words: Hashes) -> Fingerprint:
    """A file's fingerprint; without a sketch when it is too short to be judged.

    `words` are the hashes of those behind the comments at its head.
    """
    runs = ngram_hashes(words, SHINGLE_WORDS)
    if len(runs) < _FEWEST_RUNS:
        return Fingerprint(text_digest)
    least = np.unique(runs >> np.uint64(32)).astype(np.uint32)[:_SKETCH_SIZE]
    return Fingerprint(text_digest, least.tobytes())


def sketch_similarity(one: Fingerprint, two: Fingerprint) -> float:
    """The Jaccard similarity of two files by their sketches."""
    first, second = (np.frombuffer(each.sketch, dtype=np.uint32) for each in (one, two))
    union = np.union1d(first, second)
    if max(len(first), len(second)) == _SKETCH_SIZE:
        union = union[:_SKETCH_SIZE]
    common = np.intersect1d(first, second, assume_unique=True)
    return float(np.count_nonzero(common <= union[-1]) / len(union)) if len(union) else 0.0


def exact_duplicates(fingerprints: Sequence[Fingerprint]) -> dict[int, int]:
    """Position of each file with the same text as an earlier one, to that one's position."""
    first: dict[bytes, int] = {}
    duplicates = {}
    for position, one in enumerate(fingerprints):
        if first.setdefault(one.text, position) != position:
            duplicates[position] = first[one.text]
    return duplicates


def near_duplicates(
    fingerprints: Sequence[Fingerprint], threshold: float, num_known: int = 0
) -> dict[int, int]:
    """Position of each file that nearly repeats an earlier one that stays, to that one's position.

    Args:
        fingerprints: in the order in which files are to be preferred.
        threshold: the least Jaccard similarity of twins.
        num_known: so many of the first stay in any case.
    """
    with_hash: dict[int, list[int]] = defaultdict(list)  # files that stay, by their least hashes
    duplicates: dict[int, int] = {}
    for position, one in enumerate(fingerprints):
        least = np.frombuffer(one.sketch, dtype=np.uint32)[:_NUM_LEAST].tolist()
        if position >= num_known:
            common = Counter(other for value in least for other in with_hash[value])
            candidates = sorted(other for other, count in common.items() if count >= _FEWEST_COMMON)
            twin = next((c for c in candidates if sketch_similarity(one, fingerprints[c]) >= threshold), None)
            if twin is not None:
                duplicates[position] = twin
                continue
        for value in least:
            if len(with_hash[value]) < _MOST_COMPARED:
                with_hash[value].append(position)
    return duplicates
