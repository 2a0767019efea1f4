"""The checks at the start of training speak up when something is wrong, and only then."""

import numpy as np

from cpplm.tokenizer.pretoken_counts import count_words
from cpplm.tokenizer.pretokenizer import PATTERNS
from cpplm.tokenizer.sanity_checks import check_batch, check_hashes, check_vocabulary
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.tokenizer.train import train_vocabulary
from tests.texts import TextBatch, cpp_document, make_tokenizer

PATTERN = PATTERNS["lines"]
CODE = [cpp_document(number) for number in range(20)]
PROSE = "The quick brown fox jumps over the lazy dog\nand then it sleeps in the sun for a while.\n" * 20
PYTHON = (
    'def area(width, height):\n    """The area."""\n    return width * height\n\n\nprint(area(2, 3))\n' * 10
)


def test_keywords() -> None:
    counted = count_words([TextBatch(tuple(text.encode() for text in CODE), "p")], PATTERN, workers=1)
    small = Tokenizer(PATTERN, train_vocabulary(counted, 400))
    (warning,) = check_vocabulary(small)
    assert "C++ keywords and directives" in warning
    assert "'cpplm tokenizer train'" in warning
    large = make_tokenizer(["".join(f"name_{i:x}_{i * 7919 % 1009:x};" for i in range(6000)), *CODE], 2048)
    assert check_vocabulary(large) == []


def test_batches(tokenizer: Tokenizer) -> None:
    def rows(text: str) -> list[list[int]]:
        return np.array_split(np.array(tokenizer.encode(text, prepend="<BOS>")), 4)

    assert check_batch(tokenizer, [tokenizer.encode(text, prepend="<BOS>") for text in CODE]) == []
    for text in (PROSE, PYTHON):
        (warning,) = check_batch(tokenizer, rows(text))
        assert "look like C++" in warning
        assert "'cpplm corpus inspect CORPUS'" in warning
    assert check_batch(tokenizer, [[2, 3]]) == []
    assert check_batch(tokenizer, []) == []
    (warning,) = check_batch(tokenizer, [[2, tokenizer.vocab_size]])
    assert f"token id {tokenizer.vocab_size:,}" in warning


def test_hashes(tokenizer: Tokenizer) -> None:
    assert check_hashes(tokenizer, "") == []
    assert check_hashes(tokenizer, tokenizer.hash) == []
    (warning,) = check_hashes(tokenizer, "f" * 64)
    assert "f" * 12 in warning
    assert tokenizer.hash[:12] in warning
